"""Replicas on the slices that exist.

In: assessed shapes, free devices, quotas, budgets. Out: a target for each LLMDeployment, and why not the
other shapes.
"""
