"""The layout that the whole fleet should have: re-cut, moved and grown as far as GPUPools allow. Pure.

| room | in | out |
| --- | --- | --- |
| `documents` | YAML documents: nodes, pods, GPUPools, LLMDeployments, inventories | the input of a plan |
| `observed` | a snapshot of the operator | the same input |
| `problem` | the input | a packing problem, and its packing |
| `explanation` | a packing | alternatives, steps, why demand is unmet, changes that would serve it |
| `result` | a packing and its explanation | the plan document, advice, the spec of a FleetPlan |

`recommend.py` runs them in order; `executable_packing.py` avoids a packing to which no step leads;
`inputs_hash.py` names the plan.
"""
