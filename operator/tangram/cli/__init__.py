"""`tangram`, the command line. One room per command, read in the order command, computation, document, table.

| room | in | out |
| --- | --- | --- |
| `size` | a model, traffic, objectives | shapes that serve, ranked by price; rejected ones |
| `plan` | files of a fleet | its cheapest layout |
| `simulate` | files of a fleet, traces of requests | its cost, and the requests that it fails |
| `explain` | a cluster or files, a name | devices, reasons and alternatives of one LLMDeployment |
| `snapshot` | a cluster | a file for `plan` and `explain` |
| `scale` | an LLMDeployment, a number | its changed `spec.replicas` |
| `explain_memory` | a model, a GPU or slice | its memory by use |
| `diagnose` | an engine's /metrics | what limits the engine |
| `predict` | measurements | predictions and their errors |
| `gpus` | a SKU or none | GPUs and MIG profiles with sources (`tangram gpus`, `tangram mig`) |
| `cluster` | a kubeconfig | the cluster as the operator reads it |
| `options` | option values and files of the user | checked values |
"""
