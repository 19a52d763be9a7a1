"""A plan as data for others.

In: a packing and its explanation. Out: the plan document, advice by LLMDeployment, the spec of a FleetPlan.
"""
