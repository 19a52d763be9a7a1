"""The view of the cluster.

In: list and watch. Out: mirrored objects, expectations, a `FleetSnapshot`.
"""
