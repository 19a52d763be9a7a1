"""Replicas on the fleet as it could be cut: a problem of `tangram.packing`, and its packing.

In: GPUs, pools, LLMDeployments. Out: demands with their offers, bounds on replicas.
"""
