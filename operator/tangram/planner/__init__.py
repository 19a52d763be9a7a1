"""The plan of the operator, and the status of each LLMDeployment. Pure.

| room | in | out |
| --- | --- | --- |
| `observe` | the fleet | free devices, shapes in back-off |
| `placement` | shapes, quotas, budgets | the shape and the replicas of each LLMDeployment, decided together |
| `rollout` | targets, Deployments | actions that reach the targets, make before break |
| `jobs` | facts, reports | inspect and evaluate Jobs to start or to end |
| `status` | a plan | conditions, status blocks, Events |
"""

from tangram.planner.decision import plan
from tangram.planner.status.events import transitions
from tangram.planner.status.status_block import render_status

__all__ = ["plan", "render_status", "transitions"]
