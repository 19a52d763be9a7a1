"""The step function that gives GPUs new MIG layouts under running replicas. Pure.

In: the state of the fleet, as the API server shows it: nodes with their holds, GPUNodes, pods, and FleetPlans
with changes. Out: the actions that may begin now, and the state of each plan. Nothing is kept between two
calls: a new leader, or the same one after a crash between any two writes, goes on from that state alone.
"""

from tangram.plan.repartition.consent import closed_to_consent, has_ended, proposed_again
from tangram.plan.repartition.fleet_state import (
    Action,
    DevicePod,
    FleetState,
    Hold,
    HoldNode,
    MarkPod,
    PlanProgress,
    PlanRecord,
    PlanState,
    ReleaseNode,
    RepartitionLimits,
    RepartitionNode,
    RepartitionStep,
    ReplicaOwner,
    SetLayouts,
    UnmarkPod,
)
from tangram.plan.repartition.next_step import next_step
from tangram.plan.repartition.observed_plan import RETREAT_S

__all__ = [
    "RETREAT_S",
    "Action",
    "DevicePod",
    "FleetState",
    "Hold",
    "HoldNode",
    "MarkPod",
    "PlanProgress",
    "PlanRecord",
    "PlanState",
    "ReleaseNode",
    "RepartitionLimits",
    "RepartitionNode",
    "RepartitionStep",
    "ReplicaOwner",
    "SetLayouts",
    "UnmarkPod",
    "closed_to_consent",
    "has_ended",
    "next_step",
    "proposed_again",
]
