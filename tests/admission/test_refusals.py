"""Refusals: what CEL rules cannot know, by the rules of the operator's conditions, and nothing else."""

import copy
import time

import pytest

from tangram.admission import ObjectKey, Review, ReviewedObjects, refusal
from tangram.api import parse, parse_quota
from tangram.fleet import PodNeeds
from tangram.plan import plan
from tests.support.fleet import NOW, node, snapshot

BORN, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"
H100 = "H100-80GB-SXM"


def obj(name="chat", ns="team", status=None, kind="LLMDeployment", **spec):
    meta = {
        "name": name,
        "namespace": ns,
        "uid": f"uid-{ns}-{name}",
        "creationTimestamp": BORN,
        "generation": 1,
    }
    spec = spec if kind != "LLMDeployment" else {"model": {"uri": "image:///m/1b"}} | spec
    return {"kind": kind, "metadata": meta, "spec": spec} | ({"status": status} if status else {})


def priority_class(name, *, allowed=True, policy="Never", **more):
    labels = {"tangram.dev/priority-class": "true"} if allowed else {}
    return {"metadata": {"name": name, "labels": labels}, "value": 5, "preemptionPolicy": policy} | more


def quota(hard, ns="team", name="small", **more):
    return {"metadata": {"name": name, "namespace": ns}, "hard": hard, "used": {}} | more


def gpu_node(name, **labels):
    return {"metadata": {"name": name, "labels": labels}}


def pool(name, **selector):
    spec = {"nodeSelector": selector}
    return {
        "kind": "GPUPool",
        "metadata": {"name": name, "uid": f"uid-{name}", "generation": 1},
        "spec": spec,
    }


def fleet_plan(state, approved=None, **status):
    spec = {"changes": [{"node": "n"}], "pool": "p"} | ({} if approved is None else {"approved": approved})
    return {
        "kind": "FleetPlan",
        "metadata": {"name": "31dba31ff0a3"},
        "spec": spec,
        "status": {"state": state} | status,
    }


PLURAL = {"LLMDeployment": "llmdeployments", "GPUPool": "gpupools", "FleetPlan": "fleetplans"}
NODES = (gpu_node("n1", rack="a", gpu="h100"), gpu_node("n2", rack="a"), gpu_node("n3", rack="b"))
KNOWN = ReviewedObjects(
    llm_deployments=(
        obj("code"),
        obj("code", "other"),
        obj("spare", model={"uri": "image:///m", "servedName": "gpt"}),
    ),
    priority_classes=(
        priority_class("low"),
        priority_class("system", allowed=False),
        priority_class("bully", policy="PreemptLowerPriority"),
    ),
    resource_quotas=(
        quota({"pods": "3", "requests.cpu": "8", "requests.nvidia.com/gpu": "1"}),
        quota({"pods": "0"}, "other"),
    ),
    gpu_pools=(pool("a", rack="a"), pool("none", rack="z")),
    nodes=NODES,
    pod_metadata_keys=("cost-center",),
    pod_needs=PodNeeds(max_cpu_per_gpu=16.0),
)


def answer(body, old=None, known=KNOWN):
    meta = body["metadata"] if old else body["metadata"] | {"creationTimestamp": LATER}
    body = body | {"metadata": meta}
    review = Review(
        "UPDATE" if old else "CREATE",
        PLURAL[body["kind"]],
        meta.get("namespace", ""),
        meta["name"],
        body,
        old,
    )
    return refusal(review, known)


def renamed(served):
    return obj(model={"uri": "image:///m/1b", "servedName": served})


REFUSED = {  # what is applied: the path of the field, and the sentence
    "a SKU that does not exist": (
        obj(placement={"allowedSKUs": [H100, "H100-80GB-SMX"]}),
        "spec.placement.allowedSKUs[1]",
        f"no GPU is called 'H100-80GB-SMX', nearest is {H100}; `tangram gpus` lists them",
    ),
    "a SKU that is denied and does not exist": (
        obj(placement={"deniedSKUs": ["A1O0-80GB-SXM"]}),
        "spec.placement.deniedSKUs[0]",
        "no GPU is called 'A1O0-80GB-SXM', nearest is A100-80GB-SXM; `tangram gpus` lists them",
    ),
    "a PriorityClass that does not exist": (
        obj(priorityClassName="hihg"),
        "spec.priorityClassName",
        "PriorityClass hihg does not exist; name one of low",
    ),
    "a PriorityClass without the label": (
        obj(priorityClassName="system"),
        "spec.priorityClassName",
        'PriorityClass system has no label tangram.dev/priority-class: "true", by which an administrator'
        " allows its use here; name one of low",
    ),
    "a PriorityClass that preempts": (
        obj(priorityClassName="bully"),
        "spec.priorityClassName",
        "PriorityClass bully has preemptionPolicy PreemptLowerPriority: its pods could evict replicas that"
        " are to stay, and the policy of a class cannot be changed; name one of low, or create another with"
        ' the label tangram.dev/priority-class: "true" and preemptionPolicy Never',
    ),
    "a served name that another one has": (
        renamed("gpt"),
        "spec.model.servedName",
        "LLMDeployment spare of this namespace already serves 'gpt'; set another spec.model.servedName, or"
        " delete one of the two",
    ),
    "the name of another one as served name": (
        renamed("code"),
        "spec.model.servedName",
        "LLMDeployment code of this namespace already serves 'code'; set another spec.model.servedName, or"
        " delete one of the two",
    ),
    "replicas beyond the quota": (
        obj(replicas=4),
        "spec.replicas",
        "4 replicas never fit: ResourceQuota small allows 3 pods, enough for 3; ask for fewer, or let an"
        " administrator raise it",
    ),
    "a minimum beyond the quota, by CPU": (
        obj(scaling={"minReplicas": 3, "maxReplicas": 9}, engine={"resources": {"requests": {"cpu": "4"}}}),
        "spec.scaling.minReplicas",
        "3 replicas never fit: ResourceQuota small allows 8 requests.cpu, enough for 2; ask for fewer, or let"
        " an administrator raise it",
    ),
    "whole GPUs beyond the quota": (
        obj(replicas=2, placement={"mig": "Forbidden"}),
        "spec.replicas",
        "2 replicas never fit: ResourceQuota small allows 1 requests.nvidia.com/gpu, enough for 1; ask for"
        " fewer, or let an administrator raise it",
    ),
    "CPU above the operator's limit": (
        obj(engine={"resources": {"requests": {"cpu": "64"}}}),
        "spec.engine.resources.requests.cpu",
        "is 64, the operator's settings allow 16 on a whole GPU (maxCPUPerGPU); request less, or let an"
        " administrator raise the setting",
    ),
    "a label that is not listed": (
        obj(metadata={"labels": {"cost-center": "x", "team": "y"}}),
        "spec.metadata.labels.team",
        "the key team is not allowed: the operator's setting engine.podMetadataKeys allows cost-center alone;"
        " remove it, or let an administrator list it",
    ),
    "GPUPools that overlap": (
        pool("h100", gpu="h100"),
        "spec.nodeSelector",
        "GPUPool a has n1 already, and no node may belong to two: make the selectors exclude each other",
    ),
    "a GPUPool whose SKU does not exist": (
        pool("b", rack="b") | {"spec": {"nodeSelector": {"rack": "b"}, "sku": "H1000"}},
        "spec.sku",
        "no GPU is called 'H1000', nearest is H100-80GB-SXM; `tangram gpus` lists them",
    ),
}
ADMITTED = {
    "a new model": obj(),
    "the served name of another namespace": obj(
        "mine", "free", model={"uri": "image:///m", "servedName": "gpt"}
    ),
    "as many replicas as the quota allows": obj(replicas=3),
    "a maximum beyond the quota": obj(scaling={"minReplicas": 1, "maxReplicas": 9}),
    "slices beside a quota of whole GPUs": obj(replicas=2, placement={"mig": "Required"}),
    "an allowed class": obj(priorityClassName="low"),
    "a pool of free nodes": pool("b", rack="b"),
    "a pool of no node": pool("c", rack="c"),
    "a SKU in another spelling, of a pool": pool("b", rack="b")
    | {"spec": {"nodeSelector": {"x": "y"}, "sku": "h100-sxm"}},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_operator_would_not_accept_is_refused_with_its_field(name):
    body, path, message = REFUSED[name]

    refused = answer(body)

    assert refused is not None
    assert (refused.field_path, refused.message) == (path, message)


@pytest.mark.parametrize("name", ADMITTED)
def test_all_else_is_admitted(name):
    assert answer(ADMITTED[name]) is None


@pytest.mark.parametrize("name", REFUSED)
def test_what_mirrors_do_not_know_yet_refuses_nothing(name):
    """Except a word that no cluster knows: of a SKU, or a setting of this operator."""
    body, path, _ = REFUSED[name]
    unsynced = ReviewedObjects(pod_metadata_keys=KNOWN.pod_metadata_keys, pod_needs=KNOWN.pod_needs)
    by_itself = ("SKU", "sku", "metadata", "requests")

    assert (answer(body, known=unsynced) is not None) is any(word in path for word in by_itself)


@pytest.mark.parametrize("name", REFUSED)
def test_an_update_that_leaves_the_field_alone_is_never_refused(name):
    old = REFUSED[name][0]
    paused = copy.deepcopy(old)
    field = "paused" if old["kind"] == "LLMDeployment" else "zone"
    paused["spec"][field] = "z" if field == "zone" else True

    assert answer(paused, old) is None
    assert answer(old, old) is None


def test_a_second_wrong_item_is_refused_and_the_first_one_is_no_reason():
    old = obj(placement={"allowedSKUs": ["Typo"]})

    assert answer(obj(placement={"allowedSKUs": [H100, "Typo"]}), old) is None
    assert (
        answer(obj(placement={"allowedSKUs": ["Typ0", "Typo"]}), old).field_path
        == "spec.placement.allowedSKUs[0]"
    )


def test_replicas_beyond_the_quota_may_be_lowered_and_not_raised():
    assert answer(obj(replicas=5), obj(replicas=8)) is None
    assert answer(obj(replicas=9), obj(replicas=8)) is not None


def test_an_object_that_is_being_deleted_is_let_go():
    body = obj(placement={"allowedSKUs": ["Typo"]})
    body["metadata"]["deletionTimestamp"] = BORN

    assert answer(body, obj()) is None


@pytest.mark.parametrize(
    ("state", "refused"),
    [("Recommended", False), ("Approved", False), ("Executing", False)]
    + [(state, True) for state in ("Superseded", "Done", "Failed", "Blocked", "Rejected")],
)
def test_consent_to_a_plan_that_has_ended_is_refused(state, refused):
    old = fleet_plan(state, message="the last recommendation has other changes")

    found = answer(fleet_plan(state, approved=True, message="the last recommendation has other changes"), old)

    assert (found is not None) is refused
    if found is not None:
        undo = (
            "; to have it proposed again: kubectl delete fleetplan 31dba31ff0a3"
            if state == "Rejected"
            else ""
        )
        assert found.field_path == "spec.approved"
        assert found.message.removesuffix(undo) == (
            f"FleetPlan 31dba31ff0a3 is {state} (the last recommendation has other changes): it does not wait"
            " for consent any more"
        )


def test_a_plan_that_has_ended_may_be_rejected():
    assert answer(fleet_plan("Done", approved=False), fleet_plan("Done")) is None


# An object that was applied a moment earlier: mirrors lag, and the API server is asked before a refusal.


def test_a_class_that_was_just_created_is_found_when_the_refusal_is_confirmed():
    body = obj(priorityClassName="new")
    (key,) = answer(body).rests_on

    assert key == ObjectKey("priorityclasses", "", "new")
    assert answer(body, known=KNOWN.with_object(key, priority_class("new"))) is None
    assert answer(body, known=KNOWN.with_object(key, None)) is not None


def test_a_served_name_is_free_once_its_owner_is_gone():
    (key,) = answer(renamed("gpt")).rests_on

    assert key == ObjectKey("llmdeployments", "team", "spare")
    assert answer(renamed("gpt"), known=KNOWN.with_object(key, None)) is None
    leaving = obj("spare", model={"uri": "image:///m", "servedName": "gpt"})
    leaving["metadata"]["deletionTimestamp"] = BORN
    assert answer(renamed("gpt"), known=KNOWN.with_object(key, leaving)) is None


def test_other_refusals_are_confirmed_by_the_quota_and_the_pool():
    (of_quota,) = answer(obj(replicas=4)).rests_on
    (of_pool,) = answer(pool("h100", gpu="h100")).rests_on

    assert answer(obj(replicas=4), known=KNOWN.with_object(of_quota, quota({"pods": "9"}))) is None
    assert answer(pool("h100", gpu="h100"), known=KNOWN.with_object(of_pool, pool("a", rack="q"))) is None


def test_an_older_llmdeployment_keeps_the_name_that_it_was_accepted_with():
    """As the operator has it: the last accepted spec is in force while the present one is not accepted."""
    holder = obj("spare", model={"uri": "image:///m", "servedName": "code"})
    holder["status"] = {
        "acceptedSpec": {
            "generation": 1,
            "priority": 0,
            "spec": '{"model":{"servedName":"gpt","uri":"image:///m"}}',
        }
    }
    known = KNOWN.with_object(ObjectKey("llmdeployments", "team", "spare"), holder)

    assert answer(renamed("gpt"), known=known) is None  # its present spec does not ask for it any more
    holder["spec"]["placement"] = {"allowedSKUs": ["Typo"]}
    assert answer(renamed("gpt"), known=known).field_path == "spec.model.servedName"


def test_a_quota_that_refuses_is_one_under_which_the_operator_never_places_the_minimum():
    body = REFUSED["a minimum beyond the quota, by CPU"][0]
    body["metadata"]["namespace"] = "ns"
    limits = parse_quota(quota({"requests.cpu": "8"}, "ns"))
    fleet = snapshot(node("n", gpu=8), quotas=tuple(limits))

    (decision,) = plan(fleet, (parse(body),), NOW).decisions

    assert (decision.placed, decision.placed_reason) == (2, "QuotaExceeded")


def test_refusals_name_nothing_of_other_namespaces_and_take_no_time():
    many = tuple(obj(f"m{i}", "secret") for i in range(5000)) + tuple(
        obj(f"t{i}", model={"uri": "image:///m", "servedName": f"s{i}"}) for i in range(5000)
    )
    pools = tuple(pool(f"p{i}", rack="a", pool=f"p{i}") for i in range(5000))
    nodes = tuple(gpu_node(f"n{i}", rack="a", gpu=f"g{i % 7}") for i in range(10_000))
    known = ReviewedObjects(many, KNOWN.priority_classes, KNOWN.resource_quotas, pools, nodes)
    start = time.process_time()

    found = [
        answer(renamed("s4999"), known=known),
        answer(obj(priorityClassName="x" * 250), known=known),
        answer(obj(placement={"allowedSKUs": ["x" * 60] * 32}), known=known),
        answer(pool("new", gpu="g1"), known=known),
    ]

    assert time.process_time() - start < 1.0
    assert [each is not None for each in found] == [True, True, True, False]
    assert not any("secret" in str(each) for each in found)
    assert all(each is None or len(each.message) < 1100 for each in found)
