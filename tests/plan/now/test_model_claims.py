"""Checkpoints on claims: made and filled once, mounted by all, deleted when unused for a while."""

from dataclasses import replace
from typing import Any

import pytest

from tangram.fleet import (
    ApplyDeployment,
    ApplyModelClaim,
    ClaimFill,
    FactsKey,
    FinishInspection,
    InspectionFailure,
    Intent,
    InvalidIntent,
    ModelClaim,
    ModelClaimKey,
    PinnedRevision,
    Pool,
    RemoveModelClaim,
    StartFill,
)
from tangram.plan import plan
from tests.support.fleet import FACTS_1B, IMAGE, NOW, intent, node, shape, snapshot, workload

URI, PIN = "hf://org/model", PinnedRevision("c" * 40, 2_500_000_000)
PINNED = replace(FACTS_1B, pin=PIN)
KEY = ModelClaimKey("ns", URI, PIN, "nfs")
CLAIM = ModelClaim(KEY, "tangram-model-1", "claim-uid", is_filled=True)
OF_CLAIMS = (ApplyModelClaim, StartFill, FinishInspection, RemoveModelClaim)


def gpu_node(name: str, pool: str) -> Any:
    return replace(node(name, gpu=1), labels=(("pool", pool),))


def pool(name: str, storage_class: str = "nfs") -> Pool:
    return Pool(name, (("pool", name),), model_storage_class=storage_class)


def fleet(*claims: ModelClaim, **changes: Any) -> Any:
    defaults = {"pools": (pool("a"),), "facts": ((FactsKey("ns", URI, IMAGE), PINNED),)}
    nodes = (gpu_node("n1", "a"), gpu_node("n2", "a"))
    return snapshot(*nodes, model_claims=claims, **(defaults | changes))


def actions(observed: Any, *intents: Any, now: float = NOW) -> list[Any]:
    made = plan(observed, intents, now).actions
    return [action for action in made if isinstance(action, OF_CLAIMS)]


def applied(observed: Any, *intents: Intent) -> list[ApplyDeployment]:
    return [a for a in plan(observed, intents, NOW).actions if isinstance(a, ApplyDeployment)]


CHAT = intent(uri=URI, model_secret="hub")


def test_replicas_mount_a_claim_that_is_made_before_them() -> None:
    made = plan(fleet(), (CHAT,), NOW).actions
    (deployment,) = (a for a in made if isinstance(a, ApplyDeployment))
    assert deployment.model_claim == KEY
    assert made.index(ApplyModelClaim(CHAT.uid, KEY)) < made.index(deployment)


def test_two_llmdeployments_fetch_a_checkpoint_once() -> None:
    other = intent("other", uri=URI)
    assert [a.model_claim for a in applied(fleet(), CHAT, other)] == [KEY, KEY]
    assert len(actions(fleet(), CHAT, other)) == 1
    empty = replace(CLAIM, is_filled=False)
    (start,) = actions(fleet(empty), CHAT, other)
    assert isinstance(start, StartFill)
    assert actions(fleet(replace(empty, fill=ClaimFill("job", "job-uid"))), CHAT, other) == []


def test_another_namespace_has_a_claim_of_its_own() -> None:
    other = replace(intent("other", uri=URI), namespace="team")
    facts = tuple((FactsKey(ns, URI, IMAGE), PINNED) for ns in ("ns", "team"))
    made = actions(fleet(facts=facts), CHAT, other)
    assert {a.key.namespace for a in made} == {"ns", "team"}
    assert actions(fleet(CLAIM), intent(uri=URI), replace(other, model_uri="hf://org/x")) == []


@pytest.mark.parametrize(
    ("pools", "expected"),
    [
        ((pool("a"), pool("b")), KEY),
        ((pool("a"), pool("b", "ssd")), None),
        ((pool("a"), pool("b", "")), None),
        ((pool("a"),), None),  # a node without a pool
        ((pool("a", ""), pool("b", "")), None),
    ],
)
def test_claims_need_one_class_on_all_nodes_of_a_replica(pools: Any, expected: Any) -> None:
    observed = replace(fleet(pools=pools), nodes=(gpu_node("n1", "a"), gpu_node("n2", "b")))
    (deployment,) = applied(observed, CHAT)
    assert deployment.model_claim == expected


def test_a_deployment_keeps_its_claim_while_a_node_of_another_pool_comes() -> None:
    running = workload(CHAT, shape(), model_claim=CLAIM.name)
    nodes = (gpu_node("n1", "a"), gpu_node("n2", "b"))
    observed = replace(fleet(replace(CLAIM, is_mounted=True), workloads=(running,)), nodes=nodes)
    (deployment,) = applied(observed, CHAT)
    assert deployment.model_claim == KEY


def test_a_filled_claim_is_recorded_once_and_left_alone() -> None:
    filled = replace(CLAIM, is_filled=False, fill=ClaimFill("job", "job-uid", is_complete=True))
    assert actions(fleet(filled), CHAT) == [ApplyModelClaim(CHAT.uid, KEY, is_filled=True)]
    assert actions(fleet(CLAIM), CHAT) == []


def test_a_fill_that_failed_is_tried_again_after_a_while() -> None:
    failure = InspectionFailure("NoSpace", "the volume is full", NOW - 30)
    claim = replace(CLAIM, is_filled=False, fill=ClaimFill("job", "job-uid", failure=failure))
    assert actions(fleet(claim), CHAT) == []
    assert actions(fleet(claim), CHAT, now=NOW + 60) == [FinishInspection(CHAT.uid, "ns", "job", "job-uid")]


def test_an_unused_claim_is_deleted_after_an_hour_and_not_before() -> None:
    other = intent(uri="image:///m/1b")
    assert actions(fleet(CLAIM), other) == [ApplyModelClaim("", KEY, is_filled=True, unused_since=NOW)]
    unused = replace(CLAIM, unused_since=NOW)
    assert actions(fleet(unused), other, now=NOW + 3599) == []
    assert actions(fleet(unused), now=NOW + 3600) == [
        RemoveModelClaim("", "ns", "tangram-model-1", "claim-uid")
    ]
    assert actions(fleet(unused), CHAT, now=NOW + 3600) == [ApplyModelClaim(CHAT.uid, KEY, is_filled=True)]


@pytest.mark.parametrize(
    "uses",
    [
        (replace(CHAT, paused=True),),
        (replace(CHAT, min_replicas=0, max_replicas=0, replicas=0),),
        (replace(CHAT, model_uri="image:///m/1b", next_model_uri=URI),),
        (InvalidIntent("uid-m", "ns", "m", 1, NOW, "no model"),),
    ],
)
def test_a_claim_stays_while_an_llmdeployment_of_its_namespace_may_use_it(uses: Any) -> None:
    assert actions(fleet(replace(CLAIM, unused_since=NOW - 7200)), *uses) == [
        ApplyModelClaim("", KEY, is_filled=True)
    ]


def test_an_llmdeployment_of_another_namespace_keeps_no_claim() -> None:
    other = replace(CHAT, namespace="team", paused=True)
    assert actions(fleet(CLAIM), other) == [ApplyModelClaim("", KEY, is_filled=True, unused_since=NOW)]


def test_a_claim_stays_while_a_deployment_mounts_it() -> None:
    assert actions(fleet(replace(CLAIM, is_mounted=True))) == []
