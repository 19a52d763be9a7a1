"""What `kubectl get … -o yaml` prints is read as the operator reads a cluster: nothing in it ends a plan."""

import pytest

from tests.support.fleet import whole_gpu_price
from tests.support.plans import Planner, request

H100 = "NVIDIA-H100-80GB-HBM3"
HOUR = whole_gpu_price("H100-80GB-SXM")
GPU, S1, S3 = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"


@pytest.fixture
def planner(tmp_path):
    return Planner(tmp_path)


def node(name, allocatable, capacity=None, labels=None, **spec):
    meta = {"name": name, "labels": {"nvidia.com/gpu.product": H100} | (labels or {})}
    status = {"allocatable": allocatable, "capacity": capacity or allocatable}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": spec, "status": status}


def pod(name, on, containers, init=()):
    spec = {"nodeName": on, "containers": containers, "initContainers": list(init)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "x"}, "spec": spec}


def container(resource, count=1, **more):
    return {"name": "c", "resources": {"limits": {resource: str(count)}}} | more


def planned_nodes(plan):
    return {gpu["node"] for gpu in plan["gpus"]}


HEALTHY = node("healthy", {GPU: "2"})
TAINT = {"key": "team", "value": "ml", "effect": "NoSchedule"}
LEFT_OUT = {
    "cordoned": (node("n", {GPU: "8"}, unschedulable=True), "cordoned"),
    "tainted": (node("n", {GPU: "8"}, taints=[TAINT]), "taint team=ml:NoSchedule"),
    "shared": (
        node("n", {GPU: "80"}, labels={f"{GPU}.sharing-strategy": "time-slicing"}),
        f"{GPU}.sharing-strategy=time-slicing",
    ),
    "pending": (
        node("n", {GPU: "8"}, labels={"nvidia.com/mig.config.state": "pending"}),
        "nvidia.com/mig.config.state=pending",
    ),
    "no layout": (node("n", {S3: "3"}, labels={f"{GPU}.count": "1"}), "fit no layout"),
    "slices of another board": (node("n", {"nvidia.com/mig-1g.5gb": "3"}), "is no slice of H100"),
    "no Node": ({"apiVersion": "v1", "kind": "Node", "metadata": "?"}, "this Node is skipped"),
    "no name": ({"apiVersion": "v1", "kind": "Node", "metadata": {}}, "this Node is skipped"),
    "no text for a count": (node("n", {GPU: {"a": 1}}), "no number of devices"),
}


@pytest.mark.parametrize("case", LEFT_OUT)
def test_a_node_that_takes_no_newcomers_is_left_out_with_its_reason(planner, case):
    odd, words = LEFT_OUT[case]
    plan = planner.plan({"kind": "List", "items": [HEALTHY, odd]}, request("r", "gpu", 2))

    assert (planned_nodes(plan), plan["unmet"]) == ({"healthy"}, [])
    assert [note for note in plan["notes"] if words in note]


@pytest.mark.parametrize("case", ["cordoned", "tainted", "pending", "shared"])
def test_what_an_llmdeployment_runs_on_a_left_out_node_is_in_use_and_paid(planner, case):
    odd, _ = LEFT_OUT[case]
    serving = pod("chat-0", "n", [container(GPU)])
    serving["metadata"]["labels"] = {"tangram.dev/llmdeployment": "chat"}
    foreign = pod("foreign", "n", [container(GPU)])

    plan = planner.plan({"kind": "List", "items": [HEALTHY, odd, serving, foreign]}, request("r", "gpu", 2))

    assert (plan["gpusInUse"], plan["costPerHour"]) == (3, pytest.approx(3 * HOUR, abs=1e-3))
    assert [i["owner"] for gpu in plan["gpus"] if gpu["node"] == "n" for i in gpu["instances"]] == ["x/chat"]
    assert plan["unmet"] == []


def test_taints_that_engine_pods_tolerate_are_no_obstacle(planner):
    tolerated = [
        {"key": GPU, "value": "present", "effect": "NoSchedule"},
        TAINT | {"effect": "PreferNoSchedule"},
    ]

    assert planned_nodes(planner.plan(node("n", {GPU: "8"}, taints=tolerated))) == {"n"}


def test_objects_of_other_projects_are_passed_over_and_counted(planner):
    dump = {
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            HEALTHY,
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}},
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "d"}},
            {"apiVersion": "metrics.k8s.io/v1beta1", "kind": "NodeMetrics"},
            {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "Snapshot"},
            {"apiVersion": "tangram.dev/v1alpha1", "kind": "FleetPlan", "metadata": {"name": "f"}},
            ["nonsense"],
        ],
    }
    plan = planner.plan(dump, request("r", "gpu", 1))

    assert planned_nodes(plan) == {"healthy"}
    (kinds,) = (note for note in plan["notes"] if note.startswith("skipped"))
    assert "2 ConfigMap, 1 FleetPlan, 1 NodeMetrics, 1 Snapshot;" in kinds
    assert any("items[6] is not an object with a kind" in note for note in plan["notes"])


def test_a_list_as_the_api_gives_it_has_no_kind_in_its_items(planner):
    items = [{key: value for key, value in HEALTHY.items() if key not in {"kind", "apiVersion"}}]

    assert planned_nodes(planner.plan({"apiVersion": "v1", "kind": "NodeList", "items": items})) == {
        "healthy"
    }


@pytest.mark.parametrize("version", [{}, {"apiVersion": "tangram.dev/v1alpha1"}])
def test_a_kind_that_nobody_else_can_mean_is_a_typo(planner, version):
    line = planner.refused(HEALTHY, {"kind": "LLMDeploymnt"} | version)

    assert "kind is 'LLMDeploymnt'; supported are" in line


def test_slices_of_sidecars_and_init_containers_are_held(planner):
    cut = node("n", {S1: "7"}, labels={f"{GPU}.count": "1"})
    pods = [
        pod("sidecar", "n", [{"name": "c"}], [container(S1, 2, restartPolicy="Always")]),
        pod("init", "n", [{"name": "c"}], [container(S1, 3)]),
    ]
    plan = planner.plan(cut, *pods, request("r", "1g.10gb", 3))

    assert [each["name"] for each in plan["unmet"]] == ["r"]
    owners = [i.get("owner") for i in plan["gpus"][0]["instances"]]
    assert (owners.count("x/sidecar"), owners.count("x/init")) == (2, 3)


def test_an_unhealthy_slice_is_no_empty_place_to_cut(planner):
    """One of two 3g is out of order: what is left of the board is not room for another one."""
    counts = {f"{GPU}.count": "1"}
    sick = node("n", {S3: "1"}, {S3: "2"}, labels=counts)
    elsewhere = pod("p", "other", [container(S3)])
    plan = planner.plan(sick, elsewhere, request("r", "3g.40gb", 2))

    assert sum(i.get("owner") == "r" for gpu in plan["gpus"] for i in gpu["instances"]) <= 1
    assert any(f"{S3}: capacity 2, allocatable 1" in note for note in plan["notes"])


def test_an_unhealthy_gpu_of_a_cut_node_is_no_empty_one(planner):
    """Eight GPUs, four of them cut; of the whole ones one is out of order."""
    counts = {f"{GPU}.count": "8"}
    allocatable = {GPU: "3", S3: "8"}
    plan = planner.plan(
        node("n", allocatable, allocatable | {GPU: "4"}, labels=counts),
        pod("p", "other", [container(S3)]),
        request("r", "gpu", 9),
    )

    assert len(plan["gpus"]) == 7


def test_slices_that_a_node_offered_before_it_was_cut_anew_are_not_counted(planner):
    """The kubelet keeps the old resource for some minutes: capacity 7, allocatable 0."""
    recut = node("n", {S1: "0", S3: "2"}, {S1: "7", S3: "2"}, labels={f"{GPU}.count": "1"})
    plan = planner.plan(recut, request("r", "3g.40gb", 2))

    assert plan["unmet"] == []


def test_an_llmdeployment_beside_a_dump_is_still_checked(planner):
    spec = {"model": {"uri": "pvc://m/llama-3.1-8b"}, "scaling": {"minReplicas": 3, "maxReplicas": 2}}
    line = planner.refused(HEALTHY, {"kind": "LLMDeployment", "metadata": {"name": "chat"}, "spec": spec})

    assert "spec.scaling.minReplicas" in line
