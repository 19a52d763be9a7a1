"""A plan for readers.

In: a packing and its explanation. Out: a document, a FleetPlan of bounded size.
"""
