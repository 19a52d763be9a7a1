"""The executor: the input of the step function from mirrored objects, and the writes of its actions.

In: mirrored Nodes, pods, GPUNodes and FleetPlans; the changes of the last recommendation. Out: holds on
Nodes, specs of GPUNodes, FleetPlans of changes with their states. Nothing is kept in memory that the next
leader would need.
"""
