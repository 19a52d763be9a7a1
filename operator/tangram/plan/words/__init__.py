"""The sentences that users read: in conditions, Events, `explain` and the alternatives of a status.

In: the records of `reasons`. Out: text.
"""
