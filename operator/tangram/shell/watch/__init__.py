"""The mirrors of the operator: which kinds, and which fields of them.

In: mirrored objects. Out: a `MirrorView` of all kinds at one instant.
Expectations say whether the copies already show the operator's own writes.
"""
