"""Leader election, and the order of writes.

In: a Lease. Out: whether and for how long this process may write, and which namespace is written next.
"""
