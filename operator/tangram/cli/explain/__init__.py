"""`tangram explain`.

In: a cluster or files, and the name of an LLMDeployment. Out: its devices, the reasons, and the alternatives.
"""
