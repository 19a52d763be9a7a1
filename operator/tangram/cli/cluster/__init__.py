"""A cluster, read with the rights of the user.

In: a kubeconfig. Out: a `FleetSnapshot`, the operator's settings.
"""
