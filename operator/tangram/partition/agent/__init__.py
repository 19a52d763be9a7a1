"""The node agent: one process per GPU node that gives its GPUs the layouts of its GPUNode, through NVML.

In: the GPUNode and the Node of this node, by watches, what the driver reports, what pods hold by the kubelet.
Out: operations on the driver, one at a time; the status of the GPUNode; a restart of the device plugin.

Nothing that decides is kept between two rounds, and nothing but the status outlives the process: what is due
is computed from the status and from what is there. Each operation is preceded by a status that announces it.

The room, from the bottom: `node_labels`, `layout_work`, `device_plugin` and `node_status` are pure;
`api_thread`, `cluster`, `pod_resources` and `driver_thread` do I/O, `watch` follows the objects; `loop` is
one round, `round_trigger` begins the next one, `metrics` shows the last one, and `command` is the process.
"""
