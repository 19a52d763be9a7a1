"""The operator's own kinds, as kopf's handlers receive them; LISTs of their names correct what kopf misses.

In: events of kopf, which runs in a thread of its own, and LISTs. Out: mirrors of these kinds.
kopf writes nothing. A fault of it is a restart of kopf alone: the reconcile loop and the Lease go on.
"""
