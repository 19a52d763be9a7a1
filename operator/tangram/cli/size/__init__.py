"""`tangram size`.

In: a model, traffic and objectives. Out: the GPUs and slices that serve them; why others do not.
"""
