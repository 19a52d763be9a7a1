"""Measurement.

In: Prometheus, counted events. Out: readings, wanted replicas, the operator's own metrics.
"""
