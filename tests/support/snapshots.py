"""Snapshot documents of a small observed fleet, for the commands that read them."""

from dataclasses import replace

from tangram.api.common.priority import CHART_CLASSES
from tangram.fleet import FactsKey, FleetSnapshot, Intent, InvalidIntent, Objective, Pool, Traffic
from tangram.fleet.lengths import around
from tangram.plan.fleet_input.documents.snapshot_file import snapshot_document
from tests.support.fleet import (
    CHECKPOINTS,
    IMAGE,
    NOW,
    claims,
    intent,
    node,
    shape,
    snapshot,
    tpot,
    workload,
)

CHAT = intent(
    "chat",
    "image:///m/8b",
    namespace="default",
    ttft=Objective(90, 500),
    tpot=tpot(40),
    min_replicas=1,
    max_replicas=8,
    traffic=Traffic(12.0, around(1024), around(256)),
)
CODE = intent("code", "image:///m/8b", namespace="default", tpot=tpot(30), max_replicas=4)
BIG = intent("big", "image:///m/70b", namespace="default")
BAD = InvalidIntent(
    "uid-bad", "default", "bad", 1, NOW, "spec.scaling.minReplicas must not be above scaling.maxReplicas"
)
NEW = intent("new", "image:///m/nobody-looked-yet", namespace="default")


def seen(*pools: Pool) -> FleetSnapshot:
    """A GPU cut in seven, two whole ones on which CHAT runs, and two of another kind."""
    nodes = (
        replace(node("a", mig_1g_10gb=7), gpus=1),
        replace(node("b", gpu=2), gpus=2),
        replace(node("l", sku="L4", gpu=2), gpus=2, labels=(("team", "llm"),)),
    )
    return snapshot(
        *nodes,
        facts=tuple((FactsKey("default", uri, IMAGE), found) for uri, found in CHECKPOINTS.items()),
        workloads=(workload(CHAT, shape(), 2),),
        claims=claims(CHAT, shape(), "b", 2),
        desired=((CHAT.uid, 2), (CODE.uid, 1)),
        pools=pools,
        priority_classes=tuple(sorted(CHART_CLASSES)),
    )


def document(*intents: Intent | InvalidIntent, fleet: FleetSnapshot | None = None) -> dict:
    """The Snapshot of that fleet with these LLMDeployments."""
    return snapshot_document(fleet or seen(), intents or (CHAT, CODE))
