"""What is known of the fleet.

In: a snapshot of the operator, or YAML documents. Out: nodes with their GPUPools, prices and holders, the
devices that are free, and GPUs with their slices.
"""
