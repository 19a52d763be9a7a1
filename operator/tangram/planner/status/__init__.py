"""What users see.

In: decisions, observations. Out: conditions, status blocks, Events.
"""
