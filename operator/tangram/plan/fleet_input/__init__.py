"""The observed fleet as every plan reads it.

In: a snapshot. Out: nodes with their GPUPools, prices and holders.
"""
