"""Where replicas go.

In: usable shapes, free capacity, quotas. Out: a shape and a number for each LLMDeployment.
"""
