"""From input to `packing.Problem`.

In: GPUs, pools, LLMDeployments. Out: demands with their offers, bounds on replicas.
"""
