"""The nouns: what is observed (`FleetSnapshot`), wanted (`Intent`) and decided (`Plan`). All frozen."""

from tangram.fleet.intent import Intent, InvalidIntent, MIGPolicy, Objective, Spread, Traffic
from tangram.fleet.plan import (
    Action,
    ApplyDeployment,
    ApplyService,
    Decision,
    EventNote,
    FinishInspection,
    Plan,
    Rejection,
    RemoveDeployment,
    StartInspection,
)
from tangram.fleet.pool import InvalidPool, Pool, PoolPolicy
from tangram.fleet.shape import WHOLE_GPU, Shape, resource_name
from tangram.fleet.snapshot import (
    CheckpointFacts,
    Claim,
    FactsKey,
    FleetSnapshot,
    Inspection,
    InspectionFailure,
    Node,
    Workload,
    WriteProblem,
)

__all__ = [
    "WHOLE_GPU",
    "Action",
    "ApplyDeployment",
    "ApplyService",
    "CheckpointFacts",
    "Claim",
    "Decision",
    "EventNote",
    "FactsKey",
    "FinishInspection",
    "FleetSnapshot",
    "Inspection",
    "InspectionFailure",
    "Intent",
    "InvalidIntent",
    "InvalidPool",
    "MIGPolicy",
    "Node",
    "Objective",
    "Plan",
    "Pool",
    "PoolPolicy",
    "Rejection",
    "RemoveDeployment",
    "Shape",
    "Spread",
    "StartInspection",
    "Traffic",
    "Workload",
    "WriteProblem",
    "resource_name",
]
