"""Statuses of GPUPools. Pure.

In: GPUPools, a snapshot, the use of each pool. Out: each GPUPool with the status to write now.
"""
