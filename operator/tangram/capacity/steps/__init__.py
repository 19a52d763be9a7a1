"""The time of one step.

In: an architecture, hardware, a batch. Out: seconds of prefill and decode, calibrated.
"""
