"""The observed fleet.

In: a snapshot of the operator. Out: the input of a plan, with notes on left-out devices; use of each GPUPool.
"""
