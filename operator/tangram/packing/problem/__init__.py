"""The question and the answer: GPUs, demands and prices as people state them, and as the solver reads them.

In: what a caller states. Out: validated problems, prepared demands, packings. Imports geometry only.
"""
