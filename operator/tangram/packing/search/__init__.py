"""Stages, bounds and incumbents: the master problem over mixes, its pricing problem, CP-SAT beside it.

In: a model. Out: counts of GPUs per target and of replicas per shape, with the bound of each stage.
"""
