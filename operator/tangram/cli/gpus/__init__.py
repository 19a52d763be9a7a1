"""`tangram gpus` and `tangram mig`.

In: a SKU or none, and prices. Out: GPUs and MIG profiles of the catalog with their sources.
"""
