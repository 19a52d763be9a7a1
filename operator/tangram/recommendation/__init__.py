"""The layout that the whole fleet should have: cut, moved and grown as far as GPUPools allow. Pure.

| room | in | out |
| --- | --- | --- |
| `documents` | YAML documents: nodes, pods, GPUPools, LLMDeployments, inventories | the input of a plan |
| `observed` | a snapshot of the operator | the same input |
| `problem` | the input | a packing problem |
| `pack` | a packing problem | a packing |
| `explanation` | a packing | alternatives, why demand stays unmet, what would serve it |
| `result` | a packing and its explanation | the plan as a document; a FleetPlan |
"""
