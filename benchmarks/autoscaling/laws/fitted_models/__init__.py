"""Models of one replica that laws fit while they run: a queue with its filter, a line through step times.

In: a profile to begin with, readings. Out: expected latency.
"""
