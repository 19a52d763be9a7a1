"""`tangram convert`.

In: files of an older form of the API. Out: the same files in the present form, otherwise unchanged.
"""
