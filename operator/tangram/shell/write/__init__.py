"""Writes of workloads.

In: the actions of a plan. Out: Deployments, Services and Jobs, written where they differ; what was refused.
"""
