"""Read a cluster with the rights of the user.

In: options that choose a cluster. Out: an `ObservedCluster`, the operator's settings, or a client.
"""
