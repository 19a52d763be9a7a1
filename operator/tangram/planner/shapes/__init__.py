"""Shapes that exist in the fleet.

In: nodes, facts. Out: for each LLMDeployment the usable ones, and the others' reasons.
"""
