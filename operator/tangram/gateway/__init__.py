"""The front door: one endpoint for all models, behind which a picker chooses the replica of each request.

In: requests as Envoy's external processing (ext_proc) shows them, LLMDeployments and the EndpointSlices of
their Services. Out: the address of a replica, or an answer in OpenAI's form. Envoy moves the bytes: bodies of
requests pass through this process once, those of responses never.
"""
