"""What users read.

In: statuses, Events, FleetPlans. Out: writes where they changed; probes and /metrics.
"""
