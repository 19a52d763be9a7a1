"""PriorityClasses in `tangram plan -f`: those of the files, of a snapshot, and of the chart by name."""

from dataclasses import replace

import pytest

from tests.support.plans import Planner, gpu, inventory, request
from tests.support.snapshots import CHAT, document


@pytest.fixture
def planner(tmp_path):
    return Planner(tmp_path)


def llm(name, priority_class=None):
    named = {"priorityClassName": priority_class} if priority_class else {}
    model = {"uri": "pvc://models/llama-3.1-8b"}
    spec = {"model": model, "placement": {"mig": "Forbidden"}}
    return {"kind": "LLMDeployment", "metadata": {"name": name}, "spec": spec | named}


def priority_class(name, value, **changes):
    labels = {"tangram.dev/priority-class": "true"}
    meta = {"name": name, "labels": labels}
    obj = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": meta, "value": value}
    return obj | {"preemptionPolicy": "Never"} | changes


ONE = inventory(gpu("g"))


def served(plan):
    return {each["name"] for each in plan["deployments"] if each["chosen"]}


def test_the_class_of_a_file_decides_who_is_served(planner):
    classes = priority_class("gold", 5000), priority_class("lead", -5)
    assert served(planner.plan(ONE, *classes, llm("a", "lead"), llm("b", "gold"), llm("c"))) == {"b"}
    classes = priority_class("gold", 5), priority_class("lead", 2000)
    assert served(planner.plan(ONE, *classes, llm("a", "lead"), llm("b", "gold"), llm("c"))) == {"a"}


def test_the_charts_classes_are_known_by_name_and_standard_is_the_default(planner):
    low, high = llm("a", "tangram-low"), llm("z", "tangram-high")
    assert served(planner.plan(ONE, low, llm("b"), high)) == {"z"}
    assert served(planner.plan(ONE, low, llm("b"))) == {"b"}


def test_slice_requests_keep_their_number(planner):
    plan = planner.plan(ONE, llm("a"), request("r", "gpu", 1, priority=1001))
    assert served(plan) == set()


@pytest.mark.parametrize(
    ("documents", "told"),
    [
        ([], "PriorityClass gold is not among the files: add it"),
        ([priority_class("gold", 5, preemptionPolicy="PreemptLowerPriority")], "has preemptionPolicy"),
        ([priority_class("gold", 5, metadata={"name": "gold"})], "has no label tangram.dev/priority-class"),
        ([priority_class("gold", "5")], "value must be a whole number"),
        ([priority_class("gold", 5, apiVersion="scheduling.k8s.io/v1beta1")], "supported is scheduling"),
        ([priority_class("gold", 5), priority_class("gold", 6)], "is there more than once"),
    ],
)
def test_a_class_that_may_not_be_used_is_an_error_that_says_so(planner, documents, told):
    for base in (ONE, document()):
        status, _, err = planner.run(base, *documents, llm("a", "gold"))
        assert status == 2
        assert told in err


def test_classes_of_a_dump_are_read_and_others_do_no_harm(planner):
    critical = priority_class("system-node-critical", 2_000_001_000, preemptionPolicy="PreemptLowerPriority")
    dump = {"apiVersion": "v1", "kind": "List", "items": [critical, priority_class("gold", 5)]}
    assert served(planner.plan(ONE, dump, llm("a", "gold"))) == {"a"}


def priorities(plan):
    """The priorities of all demands, by the stages in which they are served."""
    return [stage["name"] for stage in plan["stages"] if stage["name"].startswith("unmet")]


def test_a_snapshot_knows_its_classes_and_one_of_a_file_takes_the_place_of_its_namesake(planner):
    draft = llm("draft", "tangram-low") | {"metadata": {"name": "draft"}}
    draft["spec"]["model"]["uri"] = "image:///m/8b"
    high = replace(CHAT, priority=10_000, priority_class_name="tangram-high")
    there = document(high)

    assert priorities(planner.plan(there, draft)) == ["unmet[10000]", "unmet[0]"]
    changed = priority_class("tangram-low", 70), priority_class("tangram-high", 50)
    assert priorities(planner.plan(there, *changed, draft)) == ["unmet[70]", "unmet[50]"]
    preempts = priority_class("tangram-high", 50, preemptionPolicy="PreemptLowerPriority")
    found = planner.plan(there, preempts, draft)
    assert any(note.startswith("chat is not planned: spec.priorityClassName") for note in found["notes"])
