"""The packing model in CP-SAT: classes of GPUs and their targets, variables, constraints, objectives.

In: a problem and its prepared demands. Out: one `Model`, whose objectives the search minimises in stages.
"""
