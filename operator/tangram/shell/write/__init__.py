"""Writes of workloads, and of the alerts beside them.

In: the actions of a plan. Out: Deployments, Services and Jobs, written where they differ; what was refused.
In: valid LLMDeployments. Out: PrometheusRules, written beside the reconcile loop.
"""
