"""The step function that gives GPUs new MIG layouts under running replicas. Pure.

In: the world, as the API server shows it: nodes with their holds, GPUNodes, pods, FleetPlans with changes.
Out: the actions that may begin now, and the state of each plan. Nothing is kept between two calls: a new
leader, or the same one after a crash between any two writes, goes on from the world alone.
"""

from tangram.repartition.consent import closed_to_consent, has_ended, proposed_again
from tangram.repartition.next_step import next_step
from tangram.repartition.observed_plan import RETREAT_S
from tangram.repartition.world import (
    Action,
    Hold,
    HoldNode,
    MarkPod,
    PlanProgress,
    PlanRecord,
    PlanState,
    ReleaseNode,
    RepartitionLimits,
    RepartitionStep,
    RepartitionWorld,
    SetLayouts,
    UnmarkPod,
    WorldNode,
    WorldOwner,
    WorldPod,
)

__all__ = [
    "RETREAT_S",
    "Action",
    "Hold",
    "HoldNode",
    "MarkPod",
    "PlanProgress",
    "PlanRecord",
    "PlanState",
    "ReleaseNode",
    "RepartitionLimits",
    "RepartitionStep",
    "RepartitionWorld",
    "SetLayouts",
    "UnmarkPod",
    "WorldNode",
    "WorldOwner",
    "WorldPod",
    "closed_to_consent",
    "has_ended",
    "next_step",
    "proposed_again",
]
