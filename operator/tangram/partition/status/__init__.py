"""The status of a GPUNode: how every backend reads the former one and writes the next. Pure.

In: a stored status, what a backend found, failures. Out: conditions with their times, attempts with their
back-off, the status as it is written.

The room, from the bottom: `times`; `attempts` (back-off, quarantine) and `conditions`; `node_record` (what is
kept of the former status, and the next one); `operator_labels` are the labels of NVIDIA's GPU Operator.
"""
