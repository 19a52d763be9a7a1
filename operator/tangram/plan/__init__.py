"""One planner with two horizons. Pure.

`plan.py` plans on the slices that exist, and the operator carries it out. `recommend.py` plans the fleet as
it could be cut, moved and grown.

| room | in | out |
| --- | --- | --- |
| `fleet_input` | a snapshot, or YAML documents | nodes with prices and holders; GPUs; free devices |
| `offers` | the fleet, a checkpoint | shapes with rates and prices, and why others do not serve |
| `place` | shapes, devices or GPUs, limits | shape and replicas of all LLMDeployments, decided together |
| `explanation` | a packing | alternatives, steps, why demand is unmet, changes that would serve it |
| `rollout` | targets, Deployments | actions that reach the targets, make before break |
| `jobs` | facts, reports | inspect and evaluate Jobs to start or to end |
| `repartition` | GPUNodes, FleetPlans, pods | actions that may begin now on GPUs that are cut anew |
| `result` | a packing and its explanation | the plan document, advice, the spec of a FleetPlan |
| `status` | a plan | conditions, status blocks, Events |
"""

from tangram.plan.plan import plan
from tangram.plan.status.events import transitions
from tangram.plan.status.status_block import render_status

__all__ = ["plan", "render_status", "transitions"]
