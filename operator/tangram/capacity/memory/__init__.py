"""Memory of one replica.

In: an architecture, a format, a GPU or slice. Out: weights, buffers, KV cache, what is left.
"""
