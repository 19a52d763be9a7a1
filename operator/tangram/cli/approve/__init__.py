"""`tangram approve`.

In: a FleetPlan of changes. Out: its spec.approved and what is consented to, in sentences.
"""
