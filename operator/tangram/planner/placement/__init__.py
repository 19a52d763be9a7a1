"""The shape and the number of replicas of each LLMDeployment, decided together.

In: assessed shapes, free devices, quotas, budgets. Out: a target for each LLMDeployment, and why not the
other shapes.
"""
