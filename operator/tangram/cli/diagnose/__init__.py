"""`tangram diagnose`.

In: two readings of an engine's /metrics. Out: what bounds it, and one next step each.
"""
