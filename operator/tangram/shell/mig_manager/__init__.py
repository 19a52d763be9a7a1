"""The shell of the backend over NVIDIA's mig-manager: does what `tangram.partition.mig_manager` decides.

In: mirrored GPUNodes, Nodes and pods; ClusterPolicy and our ConfigMap, read each round. Out: entries of the
ConfigMap, labels of Nodes, statuses of GPUNodes; ClusterPolicy where a setting allows it.

The room, from the bottom: `config_map` (the ConfigMap and ClusterPolicy), `managed_layouts` (a round).
"""
