"""Decisions in processes of their own.

In: a snapshot. Out: a plan, a recommendation, or a timeout.
"""
