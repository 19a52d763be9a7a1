"""`tangram size`.

In: a model, traffic and objectives. Out: the GPUs and slices that serve it, and why not the others.
"""
