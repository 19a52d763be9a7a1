"""Options that several commands share.

In: what a user types. Out: checked values.
"""
