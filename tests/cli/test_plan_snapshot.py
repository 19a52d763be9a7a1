"""A Snapshot in `tangram plan -f`: the cluster's plan without the cluster, and what if more were applied."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tangram.fleet import Pool, PoolPolicy, Refusal
from tangram.plan.recommend import recommend
from tests.support.plans import Planner, gpu, inventory, request, run
from tests.support.snapshots import BAD, BIG, CHAT, CODE, NEW, document, seen

EXAMPLES = Path(__file__).parents[2] / "examples" / "plan"


@pytest.fixture
def planner(tmp_path):
    return Planner(tmp_path)


def llm(name="chat", uri="image:///m/8b", **spec):
    return {"kind": "LLMDeployment", "metadata": {"name": name}, "spec": {"model": {"uri": uri}, **spec}}


ENGINE = {"maxModelLen": 4096, "maxRunningRequests": 64}


def code(least, most):
    """The cluster's CODE as a document, with other bounds."""
    objectives = {"tpot": {"milliseconds": 30}}
    return llm(
        "code", objectives=objectives, engine=ENGINE, scaling={"minReplicas": least, "maxReplicas": most}
    )


def pool(name, **spec):
    return {"kind": "GPUPool", "metadata": {"name": name}, "spec": {"nodeSelector": {"team": "llm"}, **spec}}


CHEAP = pool("l4s", pricePerGPUHour="0.01", migPolicy="Full")


def by_name(plan):
    return {each["name"]: each for each in plan["deployments"]}


def test_what_runs_stays_and_newcomers_get_a_place(planner):
    plan = planner.plan(document())

    assert {i["owner"] for g in plan["gpus"] if g["node"] == "b" for i in g["instances"]} == {"chat"}
    assert by_name(plan)["code"]["chosen"]
    assert plan["moves"] == []


def test_equal_snapshots_give_equal_bytes_and_the_hash_of_what_went_in(planner):
    outs = {planner.run(document(), flags=("-o", "json"))[1] for _ in range(2)}
    other = planner.plan(document(CHAT))

    assert len(outs) == 1
    told = json.loads(outs.pop())["inputsHash"]
    assert len(told) == 12
    assert told != other["inputsHash"]


def test_json_and_yaml_of_one_snapshot_are_one_snapshot(planner, tmp_path):
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps(document()))

    _, out, _ = run("plan", "-f", path, "-o", "json")

    assert json.loads(out) == planner.plan(document())


def test_who_cannot_be_planned_is_said(planner):
    notes = "\n".join(planner.plan(document(CHAT, BAD, NEW))["notes"])

    assert "bad is not planned: spec.scaling.minReplicas must not be above scaling.maxReplicas" in notes
    assert "new is not planned: its checkpoint has not been inspected" in notes


def test_a_model_that_nobody_inspected_may_be_told(planner):
    plan = planner.plan(document(CHAT, NEW), flags=("--model-facts", "new=llama-3.1-8b"))

    assert by_name(plan)["new"]["chosen"]


def test_another_deployment_is_planned_beside_the_clusters(planner):
    plan = planner.plan(document(), llm("extra", "pvc://models/qwen2.5-7b"))

    assert set(by_name(plan)) == {"chat", "code", "extra"}
    assert by_name(plan)["extra"]["chosen"]


def test_a_deployment_of_the_same_name_takes_the_place_of_the_clusters(planner):
    before, same = (planner.plan(document(), *more) for more in ([], [code(1, 4)]))
    after = planner.plan(document(), code(3, 3))

    assert same == before
    assert [s["replicas"] for s in by_name(before)["code"]["chosen"]] == [1]
    assert [s["replicas"] for s in by_name(after)["code"]["chosen"]] == [3]
    assert before["inputsHash"] != after["inputsHash"]


def test_what_runs_is_still_its_owners_after_its_spec_changed(planner):
    spec = {"objectives": {"ttft": {"milliseconds": 500}, "tpot": {"milliseconds": 40}}, "engine": ENGINE}
    spec["traffic"] = {"requestsPerSecond": 13, "inputTokens": {"mean": 1024}, "outputTokens": {"mean": 256}}

    plan = planner.plan(document(), llm("chat", **spec, scaling={"minReplicas": 2, "maxReplicas": 8}))

    assert {i["owner"] for g in plan["gpus"] if g["node"] == "b" for i in g["instances"]} == {"chat"}
    assert plan["moves"] == []


def test_a_pool_of_the_same_name_takes_the_place_of_the_clusters(planner):
    pool = Pool("l4s", (("team", "llm"),), 9.0, PoolPolicy.FULL)
    asked = llm("small", "image:///m/1b", engine=ENGINE)

    dear, cheap = (planner.plan(document(CHAT, fleet=seen(pool)), asked, *more) for more in ([], [CHEAP]))

    assert [s["sku"] for s in by_name(dear)["small"]["chosen"]] == ["H100-80GB-SXM"]
    assert [s["sku"] for s in by_name(cheap)["small"]["chosen"]] == ["L4"]


def test_a_pool_that_selects_by_a_label_of_which_the_snapshot_tells_nothing_is_said(planner):
    pool = {"kind": "GPUPool", "metadata": {"name": "p"}, "spec": {"nodeSelector": {"rack": "3"}}}

    notes = planner.plan(document(), pool)["notes"]

    assert any("GPUPool p" in note and "rack" in note for note in notes)


def test_more_gpus_and_requests_may_stand_beside(planner):
    plan = planner.plan(document(), inventory(gpu("spare")), request("batch", "7g.80gb", 1))

    assert "spare" in {g["id"] for g in plan["gpus"]}
    assert plan["requests"][0]["placed"] == 1


def test_examples_are_planned_beside_a_snapshot(planner):
    path = planner.file(document())

    status, out, err = run("plan", "-f", path, "-f", EXAMPLES / "models.yaml", "-o", "json")

    assert (status, err) == (0, "")
    assert set(by_name(json.loads(out))) == {"chat", "code", "analyst"}


def cut(*path, to=None):
    """The snapshot with one thing taken away or changed."""
    found = copy.deepcopy(document())
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    if to is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return found


NODES = ("spec", "fleet", "nodes", 0)
QWEN = llm("x", "pvc://m/qwen2.5-7b")
NAMELESS = {"kind": "LLMDeployment", "metadata": {}, "spec": {}}
NODE, POD = ({"kind": kind, "metadata": {"name": "z"}, "spec": {}} for kind in ("Node", "Pod"))
BROKEN = {
    "another version": (
        cut("apiVersion", to="tangram.dev/v2"),
        "apiVersion: is 'tangram.dev/v2'; supported is",
    ),
    "no version": (cut("apiVersion"), "apiVersion: is None"),
    "no spec": (cut("spec"), "spec: is missing"),
    "no name": (cut(*NODES, "name"), "spec.fleet.nodes[0]"),
    "unknown key": (cut(*NODES, "colour", to="red"), "colour"),
    "a count below zero": (cut(*NODES, "gpus", to=-1), "nodes[0].gpus: is -1"),
    "text for a list": (cut("spec", "fleet", "nodes", to="all"), "spec.fleet.nodes"),
    "an unknown GPU": (cut(*NODES, "sku", to="H9"), "no GPU of the catalog is called 'H9'"),
}
NEIGHBOURS = {
    "two snapshots": ([document()], "is a second snapshot"),
    "nodes": ([NODE], "already has Nodes and Pods"),
    "pods": ([POD], "already has Nodes and Pods"),
    "one deployment twice": ([QWEN, QWEN], "LLMDeployment x: is there more than once"),
    "one pool twice": ([CHEAP, CHEAP], "GPUPool l4s: is there more than once"),
    "a wrong deployment": (
        [llm("code", scaling={"minReplicas": 9, "maxReplicas": 2})],
        "spec.scaling.minReplicas",
    ),
    "a typo": ([llm("code", scalling={})], "scalling: is unknown"),
    "an unknown model": ([llm("x", "pvc://m/secret")], "'secret' is no well-known model"),
    "a deployment without a name": ([NAMELESS], "name"),
    "a wrong pool": ([pool("p", migPolicy="No")], "migPolicy"),
    "a GPU that is there": ([inventory(gpu("b/0"))], "GPU b/0: is in the Snapshot already"),
}
REFUSED = {name: ([found], problem) for name, (found, problem) in BROKEN.items()}
REFUSED |= {name: ([document(), *more], problem) for name, (more, problem) in NEIGHBOURS.items()}


@pytest.mark.parametrize("case", REFUSED)
def test_a_broken_snapshot_or_neighbour_is_refused_in_one_line(planner, case):
    documents, problem = REFUSED[case]

    assert problem in planner.refused(*documents)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_snapshot_is_refused_in_one_line(planner, tmp_path, share):
    path = tmp_path / "cut.json"
    text = json.dumps(document(), indent=1)
    path.write_text(text[: int(len(text) * share)])

    status, out, err = run("plan", "-f", path)

    assert (status, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("lines", range(2, 60, 3))
def test_a_snapshot_of_which_lines_are_missing_at_the_end_is_no_traceback(planner, lines):
    """YAML may still be whole where it was cut: then it is a smaller fleet."""
    path = planner.file(document())
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-lines]))

    status, out, err = run("plan", "-f", path)

    assert (status, bool(out)) in {(0, True), (2, False)}
    assert err.count("\n") == (status == 2)


def test_the_plan_is_the_operators_recommendation_to_the_byte(planner):
    everyone = (CHAT, CODE, BIG, BAD, NEW)
    theirs = recommend(seen(), everyone)

    ours = planner.plan(document(*everyone))

    assert ours.pop("inputsHash") == theirs.inputs_hash
    assert json.dumps(ours) == json.dumps(theirs.document)
    assert any("because" in each for each in ours["deployments"])


@pytest.mark.parametrize(
    ("key", "value"),
    [("minReplicas", 10**18), ("budgetPerHour", "much"), ("colour", "red"), ("spread", {"node": 0})],
)
def test_one_llmdeployment_that_cannot_be_read_costs_that_one_alone(planner, key, value):
    good = by_name(planner.plan(document()))
    broken = document()
    (number,) = [i for i, each in enumerate(broken["spec"]["intents"]) if each["name"] == "code"]
    broken["spec"]["intents"][number][key] = value

    made = planner.plan(broken)

    assert set(by_name(made)) == set(good) - {"code"}
    assert [note for note in made["notes"] if note.startswith("code is not planned: ") and key in note]


UNKNOWN_KEYS = (
    "whether the operator's setting engine.podMetadataKeys allows the keys of spec.metadata is not known"
)


def test_a_plan_says_that_it_does_not_know_which_keys_of_pods_the_operator_allows(planner):
    asks = llm("new", metadata={"labels": {"team": "a"}})
    in_snapshot = planner.plan(document(), asks)
    asks["spec"]["model"]["uri"] = "pvc://models/llama-3.1-8b"
    in_files = planner.plan(inventory(gpu("g")), asks)

    assert any(note.startswith(f"new: {UNKNOWN_KEYS}") for note in in_snapshot["notes"])
    assert any(note.startswith(UNKNOWN_KEYS) for note in by_name(in_files)["new"]["notes"])
    assert UNKNOWN_KEYS not in json.dumps(planner.plan(document(), llm("new")))


def test_a_refused_key_stays_refused_whatever_becomes_of_priority_classes(planner):
    refusal = Refusal("MetadataKeyNotAllowed", "spec.metadata.labels: the key team is not allowed")
    refused = replace(CHAT, refusal=refusal, priority=1000, priority_class_name="tangram-standard")
    meta = {"name": "tangram-standard", "labels": {"tangram.dev/priority-class": "true"}}
    changed = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": meta}
    changed |= {"value": 7, "preemptionPolicy": "Never"}

    plan = planner.plan(document(refused), changed)

    assert f"chat is not planned: {refusal.message}" in plan["notes"]
