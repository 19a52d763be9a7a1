"""`tangram gpus` and `tangram mig`.

In: a filter. Out: the catalog's facts with their sources.
"""
