"""The backend over NVIDIA's mig-manager: gives a node the layouts of its GPUNode by labels and a ConfigMap.

In: a GPUNode, its Node, the pods with GPU resources on it, mig-manager's ConfigMap, the time. Out: at most
one action (an entry of the ConfigMap, labels of the Node), and the status of the GPUNode. Pure.

mig-manager gives GPUs counts of instances, not positions; it skips a GPU whose counts fit, clears any other
one completely, evicts no pod, and reacts only where the value of its label changes. So an action is taken
only while no pod holds a device of a GPU that changes, and a change is over once the node offers what was
asked for: its label alone proves nothing. Nothing is kept between two steps but the status of the GPUNode.

The room, from the bottom: `node_counts` (layouts by counts, and their names); `config_entries` (the
ConfigMap) and `managed_node` (the Node); `observed_counts`, `blocking_pods` and `readiness`; `wanted_counts`
and `decision` (what is due); `step` (the whole of it, and the status).
"""
