"""Devices of GPU nodes: which new replicas may be given, and why the others are left out.

In: labels, taints and resources of a Node. Out: its GPUs and slices, the reasons, and tolerations of pods.
"""
