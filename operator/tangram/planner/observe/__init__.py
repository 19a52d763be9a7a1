"""What the planner reads from a snapshot: free devices and shapes in back-off.

In: a snapshot. Out: free devices and their holders; shapes on which pods do not start, until when.
"""
