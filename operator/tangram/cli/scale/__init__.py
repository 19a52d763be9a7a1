"""`tangram scale`.

In: a name and a number. Out: `spec.replicas` of one LLMDeployment, set or removed.
"""
