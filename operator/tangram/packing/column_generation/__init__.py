"""Bounds of all mixes by column generation: a master problem, and pricing problems that add its columns.

In: a model of all mixes and what earlier stages reached. Out: the bound of an objective, and columns near it.
"""
