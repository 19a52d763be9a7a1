"""`LLMDeployment`.

In: the object as the API server stores it. Out: an `Intent`, or what is wrong with it; its status.
"""
