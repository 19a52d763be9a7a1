"""`tangram explain-memory`.

In: a model, a GPU or slice, and limits of the engine. Out: its memory by use, and the requests that fit.
"""
