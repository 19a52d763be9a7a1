"""Warnings about updates, GPUs that may be cut and consent; and their bounds."""

import time
from dataclasses import replace

import pytest

from tangram.admission import (
    LONGEST_WARNING,
    Review,
    ReviewedFleet,
    ReviewedObjects,
    object_warnings,
    placement_warnings,
)
from tangram.admission.text import MOST_WARNINGS, warning_lines
from tangram.fleet import NodePartition, PartitionView, Pool, PoolPolicy, PriorityClass
from tests.support.fleet import NOW, claims, intent, node, shape, snapshot, workload

CHAT = intent("chat")
SLICE = shape("1g.10gb")
CUT = node("cut", mig_1g_10gb=2)
RUNNING = snapshot(CUT, workloads=(workload(CHAT, SLICE),), claims=claims(CHAT, SLICE, "cut"))


def model(uid="uid-chat", **spec):
    meta = {"name": "chat", "namespace": "ns", "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": meta, "spec": {"model": {"uri": "image:///m/1b"}} | spec}


def lines(body, fleet, old=None, **more):
    review = Review("UPDATE" if old else "CREATE", "llmdeployments", "ns", "chat", body, old)
    return placement_warnings(review, fleet, **more)


def test_an_update_is_planned_in_place_of_what_runs():
    fleet = ReviewedFleet(RUNNING, (CHAT,), NOW)

    told = lines(model(replicas=2), fleet, model())

    assert told[0] == "chat runs on H100-80GB-SXM:1g.10gb: 2 replicas at 0.44 $/h each, 0.88 $/h in all"


def test_an_update_that_cannot_be_placed_does_not_say_that_nothing_serves():
    fleet = ReviewedFleet(RUNNING, (CHAT,), NOW)

    told = lines(model(objectives={"tpot": {"milliseconds": 1}}), fleet, model())

    assert told[0].startswith("chat: the smallest TPOT that can be reached is")
    assert any("goes on serving meanwhile" in line for line in told)


def test_an_object_that_was_deleted_a_moment_ago_is_not_planned_beside_its_successor():
    """The last round has not seen the deletion; its LLMDeployment would keep the served name."""
    fleet = ReviewedFleet(snapshot(node("cut", mig_1g_10gb=1)), (CHAT,), NOW)

    successor = model(uid="uid-new")
    successor["metadata"]["creationTimestamp"] = "2026-12-01T00:00:00Z"

    told = lines(successor, fleet)

    assert told[0].startswith("chat runs on H100-80GB-SXM:1g.10gb: 1 replica")


@pytest.mark.parametrize(
    ("known", "told"),
    [
        (("low",), "chat runs on H100-80GB-SXM:1g.10gb: 1 replica at 0.44 $/h"),  # a refusal has asked for it
        (
            (),
            "chat is not accepted: spec.priorityClassName: the operator may not list PriorityClasses",
        ),
    ],
)
def test_a_class_that_was_created_after_the_last_round_counts_where_classes_are_listed(known, told):
    classes = tuple(PriorityClass(name, 0, is_allowed=True, preempts=False) for name in known)
    fleet = ReviewedFleet(snapshot(CUT, priority_classes=classes), (), NOW)
    body = model(priorityClassName="new")

    assert lines(body, fleet)[0].startswith(told)
    assert "not accepted" in lines(model(priorityClassName="new", paused=True), fleet, body)[0]


@pytest.mark.parametrize(("changed", "told"), [("metadata", False), ("deleted", False), ("spec", True)])
def test_a_spec_that_stays_is_not_planned(changed, told):
    old, new = model(), model(paused=True) if changed == "spec" else model()
    if changed == "deleted":
        new = model(paused=True)
        new["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    assert bool(lines(new, ReviewedFleet(RUNNING, (CHAT,), NOW), old)) is told


@pytest.mark.parametrize(
    ("policy", "mig", "told"),
    [
        (PoolPolicy.FULL, "Allowed", True),
        (PoolPolicy.RECOMMEND, "Required", True),
        (PoolPolicy.IGNORE, "Allowed", False),
        (PoolPolicy.FULL, "Forbidden", False),
    ],
)
def test_gpus_that_a_plan_may_cut_are_named_where_replicas_have_none(policy, mig, told):
    on_rack = replace(node("whole", gpu=1), labels=(("rack", "a"),))
    partition = PartitionView((NodePartition("whole", "nvml"),))
    pools = (Pool("h100", (("rack", "a"),), policy=policy),)
    fleet = ReviewedFleet(snapshot(on_rack, pools=pools, partition=partition), (), NOW)

    printed = lines(model(placement={"mig": mig}, replicas=3), fleet)

    hint = "this is about the GPUs as they are cut now: a FleetPlan may cut GPUs of GPUPool h100 for it"
    assert (hint in printed) is told


def test_devices_of_other_namespaces_are_counted_and_not_named():
    mine, other = intent("mine"), intent("theirs", namespace="secret")
    cut, running = node("cut", mig_1g_10gb=4), (workload(mine, SLICE, 2), workload(other, SLICE))
    held = (*claims(mine, SLICE, "cut", 2), *claims(other, SLICE, "cut"), *claims(None, SLICE, "cut"))
    fleet = ReviewedFleet(snapshot(cut, workloads=running, claims=held), (mine, other), NOW)

    told = lines(model(), fleet)

    assert "there are 4 of 1g.10gb on H100-80GB-SXM: this namespace holds 2, others 2" in told
    assert "secret" not in str(told)


def node_object(name, product):
    return {"metadata": {"name": name, "labels": {"rack": "a", "nvidia.com/gpu.product": product}}}


def test_a_pool_whose_nodes_have_another_gpu_says_which():
    nodes = (node_object("n1", "NVIDIA-L4"), node_object("n2", "NVIDIA-H100-80GB-HBM3"))
    spec = {"nodeSelector": {"rack": "a"}, "nodes": {"max": 5}}

    def told(**more):
        body = {"metadata": {"name": "p"}, "spec": spec | more}
        review = Review("CREATE", "gpupools", "", "p", body)
        return object_warnings(review, ReviewedObjects(nodes=nodes))

    assert told(sku="L4")[0].startswith(
        "spec.sku is L4, but node n2 has the label nvidia.com/gpu.product=NVIDIA-H100"
    )
    assert told() == ("plans add no nodes, because its nodes have different GPUs: H100-80GB-SXM, L4",)


def consented(approved, **spec):
    disturbed = [{"owner": "secret/a", "restarts": True}, {"owner": "secret/b"}, {"owner": "secret/b"}]
    changes = [{"node": "n", "before": {}, "after": {"x": 1}}, {"node": "m", "before": {}, "after": {}}]
    costs = {"costBeforePerHour": "6.15", "costPerHour": "3.07"}
    body = {"metadata": {"name": "p"}, "spec": {"changes": changes, "disturbed": disturbed} | costs | spec}
    new = body | {"spec": body["spec"] | {"approved": approved}}
    return object_warnings(Review("UPDATE", "fleetplans", "", "p", new, body), ReviewedObjects())


def test_consent_says_what_it_does_and_counts_who_it_concerns():
    assert consented(approved=True) == (
        "DOWNTIME: replicas of 1 LLMDeployment stop before their replacements serve",
        "cuts 1 GPU anew; replicas of 2 LLMDeployments move",
        "these GPUs cost 6.15 $/h before, 3.07 $/h after",
    )
    assert consented(approved=True, disturbed=[])[0] == "cuts 1 GPU anew; replicas of no LLMDeployments move"
    assert consented(approved=False) == (
        "the plan is rejected: nothing is changed, and it is not proposed again",
    )
    assert consented(approved=None) == ()


def test_no_edit_is_planned_once_time_is_over():
    asked = []

    def expired():
        asked.append(True)
        return True

    told = lines(model(placement={"pools": ["none"]}), ReviewedFleet(snapshot(CUT), (), NOW), expired=expired)

    assert len(asked) == 1
    assert told == (
        "nothing serves chat: placement.pools names none, and there is no such GPUPool; waits for one",
    )


def test_lines_are_bounded_whatever_a_sentence_holds():
    text = "x" * 500 + "; \x1b[31mred\n" + "; ".join(f"clause {i} \N{SNOWMAN}" for i in range(500))

    told = warning_lines(("short", "short", "", text))

    assert len(told) == MOST_WARNINGS
    assert told[0] == "short"
    assert max(map(len, told)) <= LONGEST_WARNING
    assert all(line.isprintable() for line in told)
    assert sum(map(len, told)) < 4096


def test_a_thousand_gpus_are_answered_within_a_second():
    lengths = (1024 * (1 + i % 20) for i in range(60))
    others = tuple(
        intent(f"m{i}", "image:///m/8b", namespace="secret", max_model_len=length)
        for i, length in enumerate(lengths)
    )
    nodes = [node(f"n{i}", gpu=8) for i in range(124)] + [node("cut", mig_1g_10gb=7)]
    held = tuple(claim for i, other in enumerate(others) for claim in claims(other, shape(), f"n{i}"))
    running = tuple(workload(other, shape()) for other in others)
    observed = snapshot(*nodes, workloads=running, claims=held)
    known = tuple((replace(key, namespace="secret"), found) for key, found in observed.facts)
    fleet = ReviewedFleet(replace(observed, facts=(*observed.facts, *known)), others, NOW)
    body = model(objectives={"tpot": {"milliseconds": 1}}, placement={"pools": ["none"]}, replicas=1000)
    started = time.process_time()

    told = (*lines(model(), fleet), *lines(body, fleet))

    assert time.process_time() - started < 2.0  # of two reviews; a second each
    assert told[0].startswith("chat runs on H100-80GB-SXM:1g.10gb")
    assert "secret" not in str(told)
