"""Measurement.

In: Prometheus, errors about objects. Out: readings, needed replicas, faults, the operator's own metrics.
"""
