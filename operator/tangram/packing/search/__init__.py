"""The solution of each stage: price-and-branch on a small fleet, neighbourhood search on a large one.

In: a model, and the bounds and columns of `column_generation`. Out: counts of GPUs per target and of replicas
per shape, with the bound of each stage.
"""
