"""`tangram scale`.

In: an LLMDeployment and a number of replicas, or none. Out: its changed spec.replicas and one sentence.
"""
