"""From counts to GPUs: which replica stands on which GPU instance, what it costs, what moved.

In: the counts of a solution. Out: a packing in which every GPU and every replica has its name.
"""
