"""The fleet as the operator observes it.

In: a snapshot. Out: the input of a plan, with notes on what is left out.
"""
