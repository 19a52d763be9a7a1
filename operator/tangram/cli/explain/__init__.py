"""`tangram explain`.

In: a cluster or files, and a name. Out: why that LLMDeployment runs where it runs.
"""
