"""`tangram diagnose`.

In: two readings of an engine's /metrics. Out: what limits the engine, and a next step for each finding.
"""
