"""The status of an LLMDeployment, and its Events.

In: decisions, workloads, signals, the previous status. Out: conditions, status blocks, Events.
"""
