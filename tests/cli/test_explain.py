"""`tangram explain llmdep/NAME` on files: what it says, in which forms it is asked, and what it refuses."""

import asyncio
import contextlib
import copy
import importlib.resources
import json
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.api.llm_deployment.status import ScalingDecisionStatus
from tangram.catalog import InputError
from tangram.cli.cluster import observed_cluster
from tangram.cli.cluster.observed_cluster import ObservedCluster
from tangram.cli.explain import command
from tangram.cli.explain.document import explanation_document
from tangram.cli.explain.requested_name import requested_name
from tangram.fleet import BackOff, LeftOut, MIGPolicy, PartitionView, ProvisionedLoad
from tangram.fleet.times import rfc3339
from tangram.kube.client import ApiError
from tangram.plan.place.best.packing_problem import fleet_problem
from tests.support.fleet import node, shape, whole_gpu_price
from tests.support.json_schema import violations
from tests.support.plans import Planner, gpu, inventory, run
from tests.support.snapshots import BAD, BIG, CHAT, CODE, NEW, document, seen

SCHEMA = json.loads(importlib.resources.files("tangram.cli.explain").joinpath("schema.json").read_text())
OBJECTIVES = {"ttft": {"milliseconds": 500}, "tpot": {"milliseconds": 40}}


@pytest.fixture
def planner(tmp_path):
    return Planner(tmp_path)


def llm(name="chat", namespace="default", rps=12, **spec):
    traffic = {"requestsPerSecond": rps, "inputTokens": {"mean": 1024}, "outputTokens": {"mean": 256}}
    spec = {"model": {"uri": "pvc://m/llama-3.1-8b"}, "engine": {"maxModelLen": 8192}, **spec}
    spec |= {
        "objectives": OBJECTIVES,
        "traffic": traffic,
        "scaling": spec.get("scaling", {"minReplicas": 1, "maxReplicas": 20}),
    }
    return {"kind": "LLMDeployment", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


EXPLANATIONS = {}  # by the text of the file and the LLMDeployment: equal ones are computed once


def explain(planner, *documents, what="llmdep/chat", flags=(), columns=100):
    file = planner.file(*documents)

    def explained_once(source, *name_and_limits):
        key = (file.read_text(), *name_and_limits[:2])
        if key not in EXPLANATIONS:
            EXPLANATIONS[key] = explanation_document(source, *name_and_limits)
        return copy.deepcopy(EXPLANATIONS[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "explanation_document", explained_once)
        return run("explain", what, "-f", file, *flags, columns=columns)


def told(planner, *documents, **more):
    status, out, err = explain(planner, *documents, flags=("-o", "json"), **more)
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert violations(found, SCHEMA) == []
    return found


def refused(planner, *documents, **more):
    status, out, err = explain(planner, *documents, **more)
    assert (status, out, err.count("\n")) == (2, "", 1), (out, err)
    return err.removeprefix("tangram: ").strip()


FLEET = inventory(*(gpu(f"g{i}", node=f"n{i // 2}") for i in range(4)))
HERE = (CHAT, CODE, BIG, BAD, NEW)


def test_it_tells_what_is_asked_where_it_is_to_run_and_what_it_costs(planner):
    found = told(planner, FLEET, llm())

    assert found["asks"]["requestsPerSecond"] == 12
    assert found["asks"]["replicas"] == {"min": 1, "max": 20}
    assert found["plan"]["chosen"]
    assert found["plan"]["nodes"]
    assert found["plan"]["costPerHour"] > 0
    assert "operator" not in found


def test_every_alternative_that_serves_was_tried_on_the_whole_fleet(planner):
    found = told(planner, FLEET, llm(), llm("other", rps=3))

    tried = [other for other in found["alternatives"] if "fleetCostPerHour" in other]
    assert tried
    assert all(o["fleetObjectiveChange"] >= -1e-6 or o["unmetChange"] > 0 for o in tried)


def test_who_goes_short_is_told_why_and_what_would_help(planner):
    found = told(planner, inventory(gpu("g0")), llm(rps=200, scaling={"minReplicas": 1, "maxReplicas": 100}))

    assert found["plan"]["unmet"] > 0
    assert found["because"]
    assert found["relaxations"]

    _, out, _ = explain(
        planner, inventory(gpu("g0")), llm(rps=200, scaling={"minReplicas": 1, "maxReplicas": 100})
    )
    assert "is not served because of" in out
    assert "helps" in out


def test_what_runs_is_told_by_node(planner):
    found = told(planner, document(*HERE))

    assert found["runsOn"] == [
        {"sku": "H100-80GB-SXM", "profile": "gpu", "tensorParallel": 1, "node": "b", "replicas": 2}
    ]


def test_what_runs_on_a_cordoned_node_is_told_with_its_cost_and_what_happens_if_it_ends(planner):
    note = LeftOut("Cordoned", "cordoned; run kubectl uncordon to use it again")
    nodes = tuple(
        replace(each, usable=each.name != "b", left_out=(note,) * (each.name == "b")) for each in seen().nodes
    )
    cordoned = document(CHAT, fleet=replace(seen(), nodes=nodes))
    found = told(planner, cordoned)
    _, text, _ = explain(planner, cordoned, columns=1000)

    assert [(part["node"], part["replicas"]) for part in found["runsOn"]] == [("b", 2)]
    assert (found["operator"]["placed"]["reason"], found["operator"]["replicas"]) == ("Placed", 2)
    assert found["operator"]["costPerHour"] == pytest.approx(2 * whole_gpu_price("H100-80GB-SXM"), abs=1e-5)
    assert found["plan"]["fleet"]["costPerHour"] == pytest.approx(found["operator"]["costPerHour"], abs=1e-3)
    assert (found["plan"]["unmet"], found["plan"]["nodes"]) == (0, ["b"])
    assert "2 replicas run where no new one is placed: node b (cordoned" in text
    assert "if they end, 2 of them need a free gpu on H100-80GB-SXM, and there is none" in text


def test_of_a_cluster_it_tells_what_the_operator_does_and_what_the_whole_fleet_should_become(planner):
    found = told(planner, document(*HERE), what="llmdep/code")

    assert found["operator"]["accepted"]["reason"] == "Valid"
    assert found["operator"]["placed"]["reason"]
    assert found["plan"]["chosen"][0]["profile"] != "gpu"  # a slice that nobody has cut yet


def test_a_shape_of_which_no_replica_became_ready_is_named_with_the_reason_and_the_time(planner):
    now = float(int(time.time()))
    back_off = BackOff(
        CODE.uid, 1, shape("1g.20gb"), "ReplicasNotStarting", "CrashLoopBackOff", 0, now - 60, now + 540, 1
    )
    nodes = (node("a", mig_1g_20gb=4), node("b", gpu=2))
    fleet = replace(seen(), nodes=nodes, workloads=(), claims=(), back_offs=(back_off,))
    found = told(planner, document(CODE, fleet=fleet), what="llmdep/code")
    _, text, _ = explain(planner, document(CODE, fleet=fleet), what="llmdep/code", columns=1000)

    message = found["operator"]["placed"]["message"]
    assert message.startswith("1 on H100-80GB-SXM at")
    why = f"no replica on H100-80GB-SXM:1g.20gb became ready in time (attempt 1, since {rfc3339(now - 60)})"
    assert f"{why}: CrashLoopBackOff; another shape is used, until {rfc3339(now + 540)} at least" in message
    assert why in text


def test_a_model_that_waits_for_a_consent_is_told_which_plan_to_approve(planner):
    alone = replace(CODE, mig=MIGPolicy.REQUIRED)
    waits = PartitionView(waiting=((f"{CODE.namespace}/{CODE.name}", "60336f49ed9c"),))
    fleet = replace(seen(), nodes=(node("b", gpu=2),), workloads=(), claims=(), partition=waits)
    _, text, _ = explain(planner, document(alone, fleet=fleet), what="llmdep/code", columns=1000)

    assert "WaitingForConsent: FleetPlan 60336f49ed9c serves it" in text
    assert "tangram approve 60336f49ed9c" in text


@pytest.mark.parametrize("status", [403, 404, 500])
def test_without_rights_to_fleetplans_the_cluster_is_explained_all_the_same(status):
    async def refuse(_kind):
        raise ApiError(status, "Forbidden", "no")

    reading = observed_cluster._fleet_plans(SimpleNamespace(list=refuse))
    if status == 500:
        with pytest.raises(ApiError):
            asyncio.run(reading)
    else:
        assert asyncio.run(reading) == []


def test_of_a_cluster_it_says_that_the_plan_is_the_best_with_one_shape_per_deployment(planner):
    fleet = told(planner, document(*HERE), what="llmdep/code")["plan"]["fleet"]

    assert fleet["proof"] == "Proved best with one shape per LLMDeployment"
    assert fleet["oneShapePerDeployment"].startswith("One shape per LLMDeployment ")

    _, out, _ = explain(planner, document(*HERE), what="llmdep/code")
    shown = " ".join(out.split())
    assert "For the whole fleet: proved best with one shape per LLMDeployment" in shown
    assert fleet["oneShapePerDeployment"] in shown


def test_of_files_no_restriction_is_claimed(planner):
    fleet = told(planner, FLEET, llm())["plan"]["fleet"]

    assert fleet["proof"] == "Proved best"
    assert "oneShapePerDeployment" not in fleet


def test_it_is_the_plan_that_tangram_plan_makes(planner):
    plan = planner.plan(document(*HERE))
    mine = next(each for each in plan["deployments"] if each["name"] == "code")

    found = told(planner, document(*HERE), what="llmdep/code")

    assert found["inputsHash"] == plan["inputsHash"]
    assert found["plan"]["chosen"] == mine["chosen"]
    assert [o["chosen"] for o in found["alternatives"]] == [o["chosen"] for o in mine["alternatives"]]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("bad", "spec.scaling.minReplicas must not be above scaling.maxReplicas"),
        ("new", "has not been inspected"),
    ],
)
def test_one_that_cannot_be_planned_is_explained_too(planner, name, reason):
    found = told(planner, document(*HERE), what=f"llmdep/{name}")

    assert "plan" not in found
    assert any(reason in note for note in found["notes"])
    status, out, _ = explain(planner, document(*HERE), what=f"llmdep/{name}")
    assert status == 0
    assert reason in " ".join(out.split())


def test_the_last_decisions_of_the_scaling_law_are_shown(monkeypatch):
    runner_up = "0.4 % expected to miss with 4, 2.3 % with 3, beyond the error budget of 1 %"
    text = f"14 requests/s expected in 90 s, up to 16; 3.1 per replica; {runner_up}"
    decisions = [
        {
            "time": "2026-11-27T10:05:00Z",
            "from": 5,
            "to": 4,
            "reason": "LoadFell",
            "message": f"{text}: 5 -> 4",
            "need": {
                "replicas": 4,
                "expectedMissedShare": "0.00400",
                "errorBudget": "0.01000",
                "limit": "ErrorBudget",
                "runnerUp": {"replicas": 3, "expectedMissedShare": "0.02300"},
            },
        },
        {"time": "2026-11-27T09:00:00Z", "from": 3, "to": 5, "reason": "LoadForecast", "message": text},
    ]
    statuses = tuple(ScalingDecisionStatus.model_validate(decision) for decision in decisions)
    cluster = ObservedCluster(seen(), (CHAT, CODE), decisions={CHAT.uid: statuses})
    monkeypatch.setattr(observed_cluster, "read_cluster", lambda _access: cluster)

    _, out, _ = run("explain", "llmdep/chat", "-o", "json")
    shown = json.loads(out)
    assert violations(shown, SCHEMA) == []
    assert shown["scaling"] == decisions

    _, out, _ = run("explain", "llmdep/chat")
    lines = " ".join(out.split())
    assert f"scaled 2026-11-27T10:05:00Z 5 -> 4 (LoadFell): {text} 2026-11-27T09:00:00Z 3 -> 5" in lines


@pytest.mark.parametrize(
    ("spare", "shown"),
    [
        ({"spareReplicas": 2, "spareCostPerHour": "9.20"}, "with 4; 9.20 $/h for 2 spare replicas"),
        ({"spareReplicas": 1, "spareCostPerHour": "4.60"}, "with 4; 4.60 $/h for 1 spare replica"),
        ({"spareReplicas": 1}, "with 4"),
        ({"spareReplicas": 0, "spareCostPerHour": "0.00"}, "with 4"),
        ({}, "with 4"),
    ],
    ids=["two", "one", "no price", "none", "written before spares were known"],
)
def test_the_cost_of_the_spare_replicas_is_shown(monkeypatch, spare, shown):
    need = {"replicas": 4, "expectedMissedShare": "0.00400", "errorBudget": "0.01000", "limit": "ErrorBudget"}
    change = {"time": "2026-11-27T10:05:00Z", "from": 5, "to": 4, "reason": "LoadFell"}
    decision = change | {"message": "0.4 % expected to miss with 4: 5 -> 4", "need": need | spare}
    statuses = (ScalingDecisionStatus.model_validate(decision),)
    cluster = ObservedCluster(seen(), (CHAT, CODE), decisions={CHAT.uid: statuses})
    monkeypatch.setattr(observed_cluster, "read_cluster", lambda _access: cluster)

    _, out, _ = run("explain", "llmdep/chat", "-o", "json")
    document = json.loads(out)
    assert violations(document, SCHEMA) == []
    assert document["scaling"] == [decision]

    _, out, _ = run("explain", "llmdep/chat")
    lines = " ".join(out.split())
    assert f"5 -> 4 (LoadFell): 0.4 % expected to miss {shown} plan" in lines


def test_the_load_that_replicas_are_ordered_for_is_shown(monkeypatch):
    load = ProvisionedLoad(12.345, 1419.6, 310.2)
    cluster = ObservedCluster(replace(seen(), provisioned=((CHAT.uid, load),)), (CHAT, CODE))
    monkeypatch.setattr(observed_cluster, "read_cluster", lambda _access: cluster)

    _, out, _ = run("explain", "llmdep/chat", "-o", "json")
    shown = json.loads(out)
    assert violations(shown, SCHEMA) == []
    assert shown["load"] == {"requestsPerSecond": 12.3, "inputTokens": 1420, "outputTokens": 310}

    _, out, _ = run("explain", "llmdep/chat")
    assert "load 12.3 requests/s of 1420 + 310 tokens" in " ".join(out.split())


def test_where_metrics_are_read_is_shown(monkeypatch):
    active = "True, metrics are recent, read from 3 of 3 pods"
    cluster = ObservedCluster(seen(), (CHAT, CODE), scaling_active={CHAT.uid: active})
    monkeypatch.setattr(observed_cluster, "read_cluster", lambda _access: cluster)

    _, out, _ = run("explain", "llmdep/chat", "-o", "json")
    shown = json.loads(out)
    assert violations(shown, SCHEMA) == []
    assert shown["scalingActive"] == active

    _, out, _ = run("explain", "llmdep/chat")
    assert f"scaling {active}" in " ".join(out.split())


def with_a_bug_in_demands_of(name, monkeypatch):
    real = fleet_problem.__globals__["demand"]

    def demand(each, *rest):
        if each.requirements.intent.name == name:
            raise ZeroDivisionError("division by zero")
        return real(each, *rest)

    monkeypatch.setitem(fleet_problem.__globals__, "demand", demand)


@pytest.mark.parametrize("of", ["a cluster", "its snapshot"])
def test_a_bug_about_one_llmdeployment_leaves_the_explanation_of_the_others(planner, monkeypatch, of):
    monkeypatch.setattr(
        observed_cluster, "read_cluster", lambda _access: ObservedCluster(seen(), (CHAT, CODE))
    )
    files = () if of == "a cluster" else ("-f", planner.file(document(CHAT, CODE)))
    with_a_bug_in_demands_of("code", monkeypatch)

    status, out, err = run("explain", "llmdep/chat", *files, "-o", "json")
    assert (status, err) == (0, "")
    assert json.loads(out)["plan"]["chosen"]

    status, out, err = run("explain", "llmdep/code", *files, "-o", "json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert violations(found, SCHEMA) == []
    assert "plan" not in found
    assert found["notes"] == ["code is not planned: ZeroDivisionError: division by zero; please report this"]


def test_a_paused_one_keeps_what_it_has(planner):
    found = told(planner, document(replace(CHAT, paused=True), CODE))

    assert found["plan"]["chosen"] == []
    assert found["notes"] == ["paused: its replicas stay as they are"]
    assert found["runsOn"]


@pytest.mark.parametrize("columns", [80, 100, 120])
@pytest.mark.parametrize("name", [each.name for each in HERE])
def test_no_line_is_wider_than_the_terminal(planner, name, columns):
    status, out, _ = explain(planner, document(*HERE), what=f"llmdep/{name}", columns=columns)

    assert status == 0
    assert max(map(len, out.splitlines())) <= columns


def test_equal_files_give_equal_bytes(planner):
    file = planner.file(document(*HERE))

    assert len({run("explain", "llmdep/chat", "-f", file)[1] for _ in range(2)}) == 1


@pytest.mark.parametrize(
    "what", ["llmdep/chat", "llmdeployment/chat", "LLMDeployments/chat", "chat", "llmdep/default/chat"]
)
def test_every_usual_way_to_name_it_is_understood(planner, what):
    assert told(planner, FLEET, llm(), llm("other"), what=what)["name"] == "chat"


def test_kind_and_name_may_be_two_words(planner):
    status, out, _ = run("explain", "llmdep", "chat", "-f", planner.file(FLEET, llm()), "-o", "json")

    assert (status, json.loads(out)["name"]) == (0, "chat")


TWO = (FLEET, llm(namespace="a"), llm(namespace="b"), llm("solo", namespace="b"))
NAMES = {
    "nearly": ((FLEET, llm()), "llmdep/caht", (), "there is no LLMDeployment caht; did you mean chat?"),
    "not at all": ((FLEET, llm()), "llmdep/zebra", (), "there is no LLMDeployment zebra; there are chat"),
    "none": ((FLEET,), "llmdep/chat", (), "there is no LLMDeployment chat; there are no LLMDeployments"),
    "two": (TWO, "llmdep/chat", (), "namespaces a, b have an LLMDeployment chat each: choose one with -n"),
    "elsewhere": (TWO, "llmdep/solo", ("-n", "a"), "no LLMDeployment solo in namespace a; one is in b"),
    "nowhere": (TWO, "llmdep/sola", ("-n", "a"), "in namespace a; did you mean solo?"),
    "another kind": ((FLEET, llm()), "pod/chat", (), "'pod/chat': only LLMDeployments can be explained:"),
    "no name": ((FLEET, llm()), "llmdep/", (), "'llmdep/' is not llmdep/NAME"),
    "nothing": ((FLEET, llm()), "", (), "'' is not llmdep/NAME"),
    "too much": ((FLEET, llm()), "llmdep/a/b/c", (), "'llmdep/a/b/c' is not llmdep/NAME"),
    "slashes": ((FLEET, llm()), "//", (), "LLMDeployments can be explained:"),
    "no fleet": ((llm(),), "llmdep/zebra", (), "there is no LLMDeployment zebra"),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMES)
def test_a_name_that_is_none_is_one_line_that_helps(planner, case):
    documents, what, flags, problem = NAMES[case]

    assert problem in refused(planner, *documents, what=what, flags=flags)


@pytest.mark.parametrize("what", ["pod/chat", "llmdep/", "llmdep/a/b/c", "", "/"])
def test_what_cannot_be_explained_is_refused_before_anything_is_read(tmp_path, what):
    for source in (("-f", tmp_path / "nothing.yaml"), ("--kubeconfig", tmp_path / "nothing")):
        status, out, err = run("explain", what, *source)

        assert (status, out, err.count("\n")) == (2, "", 1)
        assert "llmdep/NAME or llmdep/NAMESPACE/NAME" in err


def test_a_namespace_chooses_among_equals(planner):
    assert told(planner, *TWO, what="llmdep/b/chat")["namespace"] == "b"
    status, out, _ = explain(planner, *TWO, flags=("-n", "a", "-o", "json"))
    assert (status, json.loads(out)["namespace"]) == (0, "a")


def test_a_snapshot_that_is_cut_is_refused(planner, tmp_path):
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(document())[:500])

    status, out, err = run("explain", "llmdep/chat", "-f", path)

    assert (status, out, err.count("\n")) == (2, "", 1)


words = st.text(st.characters(blacklist_categories=("Cs",)), max_size=12)


@given(st.lists(words, min_size=1, max_size=4), st.none() | words)
def test_whatever_the_name_is_it_is_found_or_refused(what, namespace):
    known = [("default", "chat"), ("a", "chat"), ("a", "code")]
    with contextlib.suppress(InputError):
        assert requested_name(what, namespace).among(known) in known
