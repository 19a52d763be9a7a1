"""Writes of workloads.

In: the actions of a plan. Out: Deployments, Services and Jobs, each difference once.
"""
