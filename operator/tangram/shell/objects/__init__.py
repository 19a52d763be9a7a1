"""Kubernetes objects, written and read back.

In: actions. Out: manifests; from live objects, what they say. Pure.
"""
