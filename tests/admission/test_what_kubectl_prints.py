"""Two dozen objects, good and bad, and what a person reads who applies them.

The fleet: two whole H100s, slices of another one, an L4; `code` and another namespace hold some of it.
"""

import re
from pathlib import Path

import pytest

from tangram.admission import (
    LONGEST_WARNING,
    Review,
    ReviewedFleet,
    ReviewedObjects,
    object_warnings,
    placement_warnings,
    refusal,
)
from tangram.fleet import FactsKey, Inspection, InspectionFailure, Pool, PriorityClass
from tests.support.fleet import IMAGE, NOW, claims, intent, node, shape, snapshot, workload

CODE = intent("code", "image:///m/8b")
HIDDEN = intent("hidden-model", namespace="hidden-team", uid="uid-hidden")
SLICE = shape("1g.10gb")
MISSING = Inspection(
    FactsKey("ns", "pvc://claim/gone", IMAGE),
    "ns",
    "inspect-1",
    "uid-job",
    NOW - 10,
    InspectionFailure("NotFound", "there is no directory gone on the PersistentVolumeClaim claim", NOW - 5),
)
FLEET = ReviewedFleet(
    snapshot(
        node("whole", gpu=2),
        node("cut", mig_1g_10gb=4),
        node("small", sku="L4", gpu=1),
        workloads=(workload(CODE, shape()), workload(HIDDEN, SLICE)),
        claims=(*claims(CODE, shape(), "whole"), *claims(HIDDEN, SLICE, "cut")),
        inspections=(MISSING,),
        pools=(Pool("l4", (("sku", "l4"),)),),
        priority_classes=(PriorityClass("low", 0, is_allowed=True, preempts=False),),
    ),
    (CODE, HIDDEN),
    NOW,
)


def raw(name, namespace="ns"):
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"model": {"uri": "image:///m/8b"}},
    }


OBJECTS = ReviewedObjects(
    llm_deployments=(raw("code"), raw("hidden-model", "hidden-team")),
    priority_classes=(
        {
            "metadata": {"name": "low", "labels": {"tangram.dev/priority-class": "true"}},
            "value": 0,
            "preemptionPolicy": "Never",
        },
    ),
    resource_quotas=({"metadata": {"name": "small", "namespace": "ns"}, "hard": {"pods": "4"}, "used": {}},),
    gpu_pools=(),
    nodes=({"metadata": {"name": "whole", "labels": {"sku": "h100"}}},),
)


def apply(kind, plural, body, old=None):
    """Return the lines of kubectl."""
    meta = body["metadata"]
    operation = "UPDATE" if old else "CREATE"
    review = Review(operation, plural, meta.get("namespace", ""), meta["name"], body, old)
    refused = refusal(review, OBJECTS)
    if refused is not None:
        return [f'The {kind} "{meta["name"]}" is invalid: {refused.field_path}: {refused.message}']
    warnings = (*object_warnings(review, OBJECTS), *placement_warnings(review, FLEET))
    return [
        *(f"Warning: {line}" for line in warnings),
        f"{kind.lower()}/{meta['name']} {'configured' if old else 'created'}",
    ]


def model(uri="image:///m/1b", served=None, **spec):
    name = {"uri": uri} | ({"servedName": served} if served else {})
    return {"metadata": {"name": "chat", "namespace": "ns"}, "spec": {"model": name} | spec}


def ms(ttft=None, tpot=None):
    limits = {"ttft": ttft, "tpot": tpot}
    return {"objectives": {name: {"milliseconds": value} for name, value in limits.items() if value}}


BIG = "image:///m/8b"
SHORT = {"engine": {"maxModelLen": 4096}}
MODELS = {
    "the smallest spec": model(),
    "objectives": model(**ms(500, 20), scaling={"minReplicas": 2}),
    "one that fits a small GPU": model(BIG, **SHORT),
    "a set number of replicas": model(replicas=3),
    "more replicas than devices": model(scaling={"minReplicas": 4}),
    "no GPU is large enough": model("image:///m/70b"),
    "an objective out of reach": model(BIG, **ms(tpot=2), **SHORT),
    "requests too long for any slice": model(BIG, placement={"mig": "Required"}),
    "a budget too small": model(placement={"mig": "Forbidden", "budgetPerHour": "0.1"}),
    "a GPU that the fleet lacks": model(placement={"allowedSKUs": ["A10"]}),
    "a pool that there is not": model(placement={"pools": ["h100"]}),
    "a pool without a node": model(placement={"pools": ["l4"]}),
    "not inspected": model("pvc://claim/llama"),
    "not inspected, and no GPU to run on": model("pvc://claim/llama", placement={"allowedSKUs": ["A10"]}),
    "a checkpoint that is not there": model("pvc://claim/gone"),
    "off": model(replicas=0),
    "paused": model(paused=True),
    "a misspelt GPU": model(placement={"allowedSKUs": ["H100-SXM"]}),
    "a PriorityClass that there is not": model(priorityClassName="high"),
    "a served name that is taken": model(served="code"),
    "more than the quota": model(replicas=5),
    "a precision without a report": model(
        BIG, engine={"maxModelLen": 4096, "precision": "Any"}, placement={"mig": "Required"}
    ),
}
POOLS = {
    "a pool": {"metadata": {"name": "h100"}, "spec": {"nodeSelector": {"sku": "h100"}}},
    "a pool that selects nothing": {"metadata": {"name": "h100"}, "spec": {"nodeSelector": {"sku": "h1oo"}}},
}
PRINTED = Path(__file__).with_name("printed.txt")
_CALIBRATED = re.compile(r"(?<![\d.])\d+\.\d+(?![\d.]| \$/h| it)")  # milliseconds and GiB, no prices


def printed():
    """Yield what kubectl prints; figures that calibration moves are left out."""
    for title, body in MODELS.items():
        yield from (f"# {title}", *apply("LLMDeployment", "llmdeployments", body))
    for title, body in POOLS.items():
        yield from (f"# {title}", *apply("GPUPool", "gpupools", body))


def masked():
    return _CALIBRATED.sub("N", "\n".join(printed())) + "\n"


def by_title(text):
    return dict(part.split("\n", 1) for part in text.strip().removeprefix("# ").split("\n# "))


@pytest.fixture(scope="module")
def answers():
    return by_title(masked())


@pytest.mark.parametrize("title", [*MODELS, *POOLS])
def test_what_a_person_reads(answers, title):
    assert answers[title] == by_title(PRINTED.read_text())[title]


def test_no_warning_is_too_long_and_none_names_another_namespace(answers):
    warnings = [line.removeprefix("Warning: ") for line in printed() if line.startswith("Warning: ")]

    assert len(warnings) > 40
    assert max(map(len, warnings)) <= LONGEST_WARNING
    assert not [line for line in warnings if "hidden" in line]


if __name__ == "__main__":  # python -m tests.admission.test_what_kubectl_prints, after a change of the words
    PRINTED.write_text(masked())
