"""Leadership.

In: a Lease. Out: whether this process may write, and in which order objects are written.
"""
