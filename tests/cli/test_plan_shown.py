"""What `tangram plan` shows: tables, layouts, pictures; what-if, explanations, limits of time."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.support.plans import H100, Planner, gpu, inventory, request, run

REPACK = Path(__file__).parents[1] / "packing" / "data" / "repack_reference.json"
EXAMPLES = Path(__file__).parents[2] / "examples" / "plan"


@pytest.fixture
def planner(tmp_path):
    return Planner(tmp_path)


FLEET = inventory(
    gpu("g9", "1g.10gb@0=ann", "2g.20gb@2"), gpu("g10", "1g.10gb@4=bob", node="n1"), gpu("g11", sku="L4")
)
NEW = request("new", "3g.40gb", 1)


def llm(name="chat", rps=12):
    objectives = {"ttft": {"milliseconds": 500}, "tpot": {"milliseconds": 40}}
    traffic = {"requestsPerSecond": rps, "inputTokens": {"mean": 1024}, "outputTokens": {"mean": 256}}
    spec = {"model": {"uri": "pvc://m/llama-3.1-8b"}, "engine": {"maxModelLen": 8192}}
    spec |= {"objectives": objectives, "traffic": traffic, "scaling": {"minReplicas": 1, "maxReplicas": 20}}
    return {"kind": "LLMDeployment", "metadata": {"name": name}, "spec": spec}


def test_the_table_says_cost_bound_layout_and_moves(planner):
    status, out, err = planner.run(FLEET, NEW)

    assert (status, err) == (0, "")
    assert out.startswith("Proved best: 1 of 3 GPUs in use, ")
    for words in ("bound", "gap 0.00%", "SLICEREQUEST", "new 3g.40gb", "MOVES", "1 L4 empty", "1 move for"):
        assert words in out


def test_a_wide_enough_terminal_is_never_left(planner):
    for columns in (80, 120):
        _, out, _ = planner.run(FLEET, NEW, llm(), columns=columns)
        assert max(map(len, out.splitlines())) <= columns


def test_slices_are_drawn_to_scale(planner):
    _, out, _ = planner.run(inventory(gpu("g0", "4g.40gb@0=ann", "1g.10gb@4=bob", "1g.10gb@6")))

    line = next(line for line in out.splitlines() if line.startswith("g0"))
    bar = line[line.index("|") :].replace("\x1b", "")
    assert "ann 4g.40gb" in bar
    assert "bob" in bar
    assert ".1g." in bar


def test_equal_gpus_are_one_line(planner):
    _, out, _ = planner.run(inventory(*(gpu(f"g{i}") for i in range(6))), request("all", "7g.80gb", 5))

    assert "g0 and 4 more" in out or "g1 and 4 more" in out
    assert "1 H100-80GB-SXM empty" in out


def test_an_svg_holds_every_slice_to_scale_and_the_same_bytes(planner, tmp_path):
    path = tmp_path / "fleet.svg"
    documents = (FLEET, NEW, request("<&>", "1g.10gb", 1))
    plan = planner.plan(*documents, flags=("--picture", path))
    first = path.read_bytes()
    planner.plan(*documents, flags=("--picture", path))

    assert path.read_bytes() == first
    root = ET.fromstring(first)  # noqa: S314 - our own
    names = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    for each in plan["gpus"]:
        for instance in each["instances"]:
            assert f"{each['id']}: {instance['profile']}@{instance['start']} {instance['owner']}" in names


def test_a_png_is_a_picture(planner, tmp_path):
    path = tmp_path / "fleet.png"

    planner.plan(FLEET, NEW, flags=("--picture", path))

    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("change", "better"),
    [
        ("price=H100-80GB-SXM:1.0", True),
        ("add-gpu=L40S:2,node=new", True),
        ("objective=chat:tpot=15", False),
        ("traffic=chat:rps=40", False),
        ("remove-node=n0", None),
    ],
)
def test_what_if_compares_with_the_plan_as_it_is(planner, change, better):
    fleet = inventory(*(gpu(f"g{i}", node=f"n{i // 2}") for i in range(6)))

    plan = planner.plan(fleet, llm(), flags=("--what-if", change))

    before, after = plan["whatIf"]["before"]["objective"], plan["objective"]
    assert plan["whatIf"]["changes"] == [change]
    assert {True: after <= before, False: after >= before, None: after == before}[better]
    assert before == planner.plan(fleet, llm())["objective"]


def test_what_if_is_told_in_the_table(planner):
    _, out, _ = planner.run(
        inventory(gpu("g0"), gpu("g1")), llm(), flags=("--what-if", "price=h100-80gb-sxm:1")
    )

    assert "With price=h100-80gb-sxm:1: " in out


def test_explain_tries_every_alternative_on_the_whole_fleet(planner):
    fleet = inventory(*(gpu(f"g{i}") for i in range(4)))
    plan = planner.plan(fleet, llm(), llm("other", 3), flags=("--explain", "llmdep/chat"))

    tried = [other for other in plan["explained"]["alternatives"] if "fleetObjectiveChange" in other]
    assert tried
    for other in tried:
        assert other["fleetObjectiveChange"] >= -1e-6 or other["unmetChange"] > 0


def test_the_explanation_is_a_table(planner):
    _, out, _ = planner.run(inventory(gpu("g0"), gpu("g1")), llm(), flags=("--explain", "chat"))

    assert "chat: all alternatives that were evaluated." in out
    assert "REASON" in out


@pytest.mark.parametrize("seconds", ["0.02", "0.3"])
def test_when_time_is_over_there_is_still_a_plan_with_its_gap(planner, seconds):
    case = json.loads(REPACK.read_text())[3]
    states = [c["instances"] for c in case["existing_classes"] for _ in range(c["count"])]
    full = {"1g": "1g.10gb", "2g": "2g.20gb", "3g": "3g.40gb", "4g": "4g.40gb", "7g": "7g.80gb"}
    gpus = [
        gpu(f"g{i}", *(f"{full[p]}@{at}=pod-{i}-{at}" for p, at in state)) for i, state in enumerate(states)
    ]
    asked = [request(f"new-{p}", p, n) for p, n in case["new_requests"].items()]

    plan = planner.plan(inventory(*gpus), *asked, flags=("--time-limit", seconds))

    assert plan["status"] in {"FEASIBLE", "FALLBACK", "OPTIMAL"}
    assert plan["status"] != "OPTIMAL" or plan["gap"] == 0
    assert 0 <= plan["gap"] <= 1
    assert plan["bound"] <= plan["objective"]
    kept = {i["owner"] for g in plan["gpus"] for i in g["instances"]}
    assert {f"pod-{i}-{at}" for i, state in enumerate(states) for _, at in state} <= kept


def test_prices_of_a_file_win(planner, tmp_path):
    prices = tmp_path / "prices.yaml"
    prices.write_text(f"{H100}: 1.5\n")

    plan = planner.plan(inventory(gpu("g0"), prices={H100: 9.0}), NEW, flags=("--prices", prices))

    assert plan["costPerHour"] == 1.5


def test_yaml_holds_the_same_as_json(planner):
    import yaml

    _, out, _ = planner.run(FLEET, NEW, flags=("-o", "yaml"))

    assert yaml.safe_load(out) == planner.plan(FLEET, NEW)


def node(name, labels=None, conditions=(), **counts):
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", **(labels or {})}
    counts = {f"nvidia.com/{key}": str(value) for key, value in counts.items()}
    status = {"allocatable": {"cpu": "64", **counts}, "conditions": list(conditions)}
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def test_bare_nodes_get_a_layout_that_is_marked_as_inferred(planner):
    cut = node("a", {"nvidia.com/gpu.count": "2"}, **{"mig-3g.40gb": 2, "mig-2g.20gb": 2, "mig-1g.10gb": 2})
    nodes = {"kind": "List", "items": [cut, node("b", gpu=4), {"kind": "Node", "metadata": {"name": "cpu"}}]}

    plan = planner.plan(nodes, request("r", "3g.40gb", 2), request("whole", "gpu", 1))

    assert [g["id"] for g in plan["gpus"]] == ["a/0", "a/1", "b/0", "b/1", "b/2", "b/3"]
    assert all(g["inferred"] for g in plan["gpus"])
    assert not any(g["recut"] for g in plan["gpus"])
    assert plan["unmet"] == []


def test_a_pool_says_which_gpus_bare_nodes_without_labels_have(planner):
    unlabelled = node("a", gpu=2, **{"mig-1g.10gb": 7})
    unlabelled["metadata"]["labels"] = {"pool": "bare"}
    pool = {"kind": "GPUPool", "metadata": {"name": "bare"}}
    pool["spec"] = {"nodeSelector": {"pool": "bare"}, "sku": "H100-80GB-SXM"}
    asked = (request("r", "1g.10gb", 7), request("whole", "gpu", 2))

    assert "or set sku in a GPUPool" in planner.plan(unlabelled, *asked)["notes"][0]
    plan = planner.plan(unlabelled, pool, *asked)

    assert plan["unmet"] == []
    assert {(g["sku"], g["inferred"]) for g in plan["gpus"]} == {("H100-80GB-SXM", True)}
    assert len(plan["gpus"]) == 3


def test_uneven_nodes_get_some_layout_that_holds_all_slices(planner):
    plan = planner.plan(
        node("a", {"nvidia.com/gpu.count": "3"}, **{"mig-7g.80gb": 1, "mig-3g.40gb": 1, "mig-1g.10gb": 8})
    )

    free = sorted(each["profile"] for g in plan["gpus"] for each in g["free"])
    assert free == ["1g.10gb"] * 8 + ["3g.40gb", "7g.80gb"]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"labels": {"nvidia.com/gpu.product": "Foo-9000"}}, "the catalog does not know"),
        ({"conditions": [{"type": "Ready", "status": "Unknown"}]}, "not ready"),
    ],
)
def test_nodes_that_cannot_be_planned_are_left_out_and_told(planner, broken, words):
    plan = planner.plan(node("a", gpu=2), node("b", gpu=2, **broken))

    assert {g["node"] for g in plan["gpus"]} == {"a"}
    assert words in plan["notes"][0]


def pod(name, node, owner=None, phase="Running", **limits):
    meta = {
        "name": name,
        "namespace": "default",
        "labels": {"tangram.dev/llmdeployment": owner} if owner else {},
    }
    limits = {f"nvidia.com/{key}": str(value) for key, value in limits.items()}
    return {
        "kind": "Pod",
        "metadata": meta,
        "spec": {"nodeName": node, "containers": [{"resources": {"limits": limits}}]},
        "status": {"phase": phase},
    }


CUT = node("a", {"nvidia.com/gpu.count": "2"}, **{"mig-3g.40gb": 2, "mig-1g.10gb": 4})


def test_without_pods_no_gpu_of_a_node_is_cut_anew(planner):
    plan = planner.plan(CUT, request("big", "7g.80gb", 1))

    assert plan["unmet"][0]["name"] == "big"
    assert any("the pods are not listed" in note for note in plan["notes"])


def test_pods_hold_their_slices_and_what_nobody_holds_may_be_cut(planner):
    strangers = [
        pod("x", "a", **{"mig-3g.40gb": 1}),
        pod("done", "a", phase="Succeeded", **{"mig-3g.40gb": 1}),
    ]

    plan = planner.plan(CUT, *strangers, request("big", "7g.80gb", 1))

    held = {i["owner"]: g["id"] for g in plan["gpus"] for i in g["instances"]}
    assert set(held) == {"default/x", "big"}
    assert held["default/x"] != held["big"]
    assert (plan["moves"], plan["unmet"]) == ([], [])


def test_replicas_of_an_llmdeployment_are_known_by_their_label(planner):
    chat = llm(rps=1)
    shape = planner.plan(CUT, pod("none", "b"), chat)["deployments"][0]["chosen"][0]["profile"]
    mine = [pod("chat-1", "a", "chat", **{f"mig-{shape}": 1})]

    plan = planner.plan(CUT, *mine, chat)

    assert plan["moves"] == []
    assert [i["owner"] for g in plan["gpus"] for i in g["instances"]] == ["chat"]


def test_a_pod_for_which_nothing_is_left_is_told(planner):
    plan = planner.plan(CUT, pod("x", "a", **{"mig-7g.80gb": 1}))

    assert plan["notes"] == ["pod default/x holds 1 nvidia.com/mig-7g.80gb, more than node a has left"]


def test_a_pool_prices_the_nodes_that_it_selects(planner):
    pool = {"kind": "GPUPool", "metadata": {"name": "p"}}
    pool["spec"] = {"nodeSelector": {"team": "llm"}, "pricePerGPUHour": "1.25"}

    plan = planner.plan(node("a", {"team": "llm"}, gpu=2), node("b", gpu=2), pool, request("whole", "gpu", 2))

    assert plan["costPerHour"] == 2.5


@pytest.mark.parametrize(
    "names",
    [
        ("fleet.yaml", "models.yaml"),
        ("fragmented.yaml",),
        ("nodes.yaml", "models.yaml"),
        ("cluster.yaml",),
        ("cluster.yaml", "what-if.yaml"),
    ],
)
def test_the_examples_plan(names):
    files = [word for name in names for word in ("-f", EXAMPLES / name)]

    status, out, err = run("plan", *files, "-o", "json")

    assert (status, err) == (0, "")
    assert json.loads(out)["status"] == "OPTIMAL"


def test_help_names_every_kind():
    _, out, _ = run("plan", "--help")

    for kind in ("Snapshot", "Inventory", "SliceRequest", "GPUPool", "LLMDeployment", "Node"):
        assert kind in out


def test_a_long_reason_goes_on_in_the_next_line_and_is_said_once(planner):
    asks = llm()
    asks["spec"]["placement"] = {"budgetPerHour": "0.01"}
    _, wide, _ = planner.run(FLEET, NEW, asks, columns=400)
    _, narrow, _ = planner.run(FLEET, NEW, asks, columns=70)

    (row,) = [line for line in wide.splitlines() if line.startswith("chat") and "budget" in line]
    reason = row.split("  ")[-1]
    assert wide.count(reason) == 1
    assert " ".join(reason.split()) in " ".join(narrow.split())
    assert max(map(len, narrow.splitlines())) <= 70
