"""Devices of GPU nodes.

In: a Node. Out: its GPUs and slices, those left out with the reason; taints that pods tolerate.
"""
