"""Reasons of a plan, and the steps to it.

In: a problem and its packing. Out: alternatives, reasons, sufficient changes, steps.
"""
