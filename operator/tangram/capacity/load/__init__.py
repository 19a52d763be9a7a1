"""One replica under load.

In: a step-time model and traffic. Out: TTFT, TPOT and the request rate that it sustains.
"""
