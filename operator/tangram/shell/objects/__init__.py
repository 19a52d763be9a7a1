"""Manifests of Kubernetes objects, and what is read back from live ones. Pure.

In: actions of a plan, objectives. Out: the manifests of Deployments, Services, Jobs and PrometheusRules.
In: live objects. Out: their shape, owner, results, and why pods wait.
"""
