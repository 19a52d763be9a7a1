"""Measurement.

In: Prometheus, or the metrics pages of pods; errors about objects. Out: readings, needed replicas, faults,
the operator's own metrics.
"""
