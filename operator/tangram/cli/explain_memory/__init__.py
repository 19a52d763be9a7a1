"""`tangram explain-memory`.

In: a model and a shape. Out: the memory budget of one replica.
"""
