"""Manifests of Kubernetes objects, and what is read back from live ones. Pure.

In: actions of a plan. Out: the manifests of Deployments, Services and Jobs.
In: live objects. Out: their shape, owner, results, and why pods wait.
"""
