"""Why a plan is as it is.

In: a problem and its packing. Out: alternatives, reasons, sufficient changes, steps.
"""
