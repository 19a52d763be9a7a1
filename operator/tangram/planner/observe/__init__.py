"""The fleet as it is.

In: a snapshot. Out: free capacity and its holders; shapes in back-off.
"""
