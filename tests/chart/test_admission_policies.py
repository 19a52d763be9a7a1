"""What node agents and the operator may write on a real API server, with the chart's roles and policies."""

import json
import ssl
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from tangram.api.gpu_node import DEFAULT_STATUS
from tangram.kube.client import ApiError
from tangram.partition.agent.api_thread import ApiThread
from tangram.partition.agent.cluster import Cluster as AgentCluster
from tangram.partition.agent.watch import NodeWatch
from tests.support.mig_manager_node import CLUSTER_POLICY_CRD
from tests.support.plain_credentials import PlainCredentials

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "tangram"
pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(180)]

RELEASE, NAMESPACE, OPERANDS = "mig", "partition", "gpu-operator"
OPERATOR, AGENT = "mig-tangram", "mig-tangram-agent"
VALUES = {
    "image": {"registry": "registry.example.com/team"},
    "crds": {"enabled": False},  # they are there
    "agent": {"enabled": True},
    "partition": {"enabled": True, "migManager": {"enabled": True, "editClusterPolicy": True}},
    "gpuPools": {"h100": {"nodeSelector": {"pool": "h100"}, "backend": "NVML", "pricePerGPUHour": "2.50"}},
}
PLUGIN = {"app": "nvidia-device-plugin-daemonset"}
ENGINE = {"app.kubernetes.io/managed-by": "tangram", "app.kubernetes.io/component": "engine"}
HOLD = {"key": "hold.tangram.dev/mig-1g.10gb", "effect": "NoSchedule"}
OLD_HOLD = {"key": "hold.tangram.dev/gpu", "value": "a", "effect": "NoSchedule"}
DEDICATED = {"key": "dedicated", "value": "llm", "effect": "NoSchedule"}
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


def meta(name, namespace=None, **more):
    return {"name": name, **({"namespace": namespace} if namespace else {}), **more}


def account(name, namespace):
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta(name, namespace)}


def node(name):
    labels = {"nvidia.com/gpu.product": "X", "nvidia.com/gpu.deploy.mig-manager": "true"}
    annotations = {"example.com/a": "b", "tangram.dev/old": "x"}
    spec = {"taints": [DEDICATED, OLD_HOLD]}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": meta(name, labels=labels, annotations=annotations),
        "spec": spec,
    }


def pod(name, namespace, on, labels=None, owner="DaemonSet", service_account="default"):
    owners = [{"apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "u", "controller": True}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta(name, namespace, labels=labels or {}, ownerReferences=owners if owner else []),
        "spec": {
            **({"nodeName": on} if on else {}),
            "serviceAccountName": service_account,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "i"}],
        },
    }


class Caller:
    """Requests with the token of one ServiceAccount; the API server checks them and writes nothing."""

    def __init__(self, cluster, name, bound_to=None, namespace=NAMESPACE):
        bound = () if bound_to is None else ("--bound-object-kind=Pod", f"--bound-object-name={bound_to}")
        self.token = cluster.ok("kubectl", "create", "token", name, "-n", namespace, *bound).strip()
        self.server = cluster.plane.url
        self.authority = str(cluster.plane.authority.certificate)
        self.tls = ssl.create_default_context(cafile=self.authority)

    def call(self, method, path, body=None, content_type="application/json"):
        """Return the message of a refusal; empty: it was accepted."""
        apply = {"fieldManager": "test", "force": "true"} if content_type == APPLY else {}
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": content_type}
        content = None if body is None else json.dumps(body)
        with httpx.Client(base_url=self.server, verify=self.tls, headers=headers) as client:
            response = client.request(method, path, params={"dryRun": "All", **apply}, content=content)
        return response.json().get("message", "no message") if response.is_error else ""


@contextmanager
def agent_thread(caller):
    """What the agent calls the API server by, with the token of a caller."""
    api = ApiThread(PlainCredentials(caller.server, caller.authority, tokens=[caller.token] * 2))
    try:
        yield api
    finally:
        api.close()


@pytest.fixture(scope="module")
def mig(cluster):
    """A cluster whose release may change MIG layouts; an agent and a device plugin on each of two nodes."""

    def create(*objects):
        cluster.ok("kubectl", "create", "-f", "-", stdin=yaml.safe_dump_all(objects))

    for namespace in (NAMESPACE, OPERANDS, "models"):
        cluster.ok("kubectl", "create", "namespace", namespace)
    create(CLUSTER_POLICY_CRD, *(account("default", name) for name in (OPERANDS, "models")))
    cluster.ok("kubectl", "wait", "--for=condition=Established", "crd/clusterpolicies.nvidia.com")
    install = ("install", RELEASE, str(CHART), "--namespace", NAMESPACE, "--values", "-")
    cluster.ok("helm", *install, stdin=json.dumps(VALUES))
    policy_spec = {"driver": {"image": "d"}, "migManager": {"enabled": True, "config": {"name": "old"}}}
    create(
        *(node(name) for name in ("node-a", "node-b")),
        *(pod(f"agent-{one}", NAMESPACE, f"node-{one}", service_account=AGENT) for one in "ab"),
        *(pod(f"plugin-{one}", OPERANDS, f"node-{one}", PLUGIN) for one in "ab"),
        pod("exporter", OPERANDS, "node-a", {"app": "nvidia-dcgm-exporter"}),
        pod("unscheduled", OPERANDS, None, PLUGIN),
        pod("bare", OPERANDS, "node-a", PLUGIN, owner=None),
        pod("job", OPERANDS, "node-a", PLUGIN, owner="ReplicaSet"),
        pod("replica", "models", "node-a", ENGINE, owner="ReplicaSet"),
        pod("foreign", "models", "node-a", {"app": "x"}, owner="ReplicaSet"),
        *(
            {
                "apiVersion": "tangram.dev/v1alpha1",
                "kind": "GPUNode",
                "metadata": meta(f"node-{one}"),
                "spec": {},
            }
            for one in "ab"
        ),
        {
            "apiVersion": "nvidia.com/v1",
            "kind": "ClusterPolicy",
            "metadata": meta("cluster-policy"),
            "spec": policy_spec,
        },
        *(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(name, OPERANDS), "data": {}}
            for name in ("tangram-mig-config", "default-mig-parted-config")
        ),
    )
    # The API server taints new nodes.
    cluster.ok("kubectl", "taint", "nodes", "node-a", "node-b", "node.kubernetes.io/not-ready:NoSchedule-")
    yield cluster
    # No kubelet is here to run the Job of the hook.
    cluster.ok("helm", "uninstall", RELEASE, "--namespace", NAMESPACE, "--no-hooks")


@pytest.fixture(scope="module")
def operator(mig):
    """The operator, once all policies about it are in force."""
    caller = Caller(mig, OPERATOR)
    node_change = {"spec": {"unschedulable": True}}
    in_force(caller, "nodes", "PATCH", "/api/v1/nodes/node-a", node_change)
    in_force(caller, "pods", "PATCH", f"{MODELS}/foreign", {"metadata": {"annotations": {"a": "b"}}})
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("other", OPERANDS)}
    in_force(caller, "mig-config", "POST", CONFIG_MAPS, other, "application/json")
    in_force(caller, "gpunodes", "PATCH", f"{GPU_NODES}/node-b/status", {"status": {"backend": "NVML"}})
    in_force(caller, "mig-policy", "PATCH", CLUSTER_POLICY, {"spec": {"driver": None}})
    return caller


@pytest.fixture(scope="module")
def agents(mig):
    """By the node that their tokens name, agents, once all policies about them are in force."""
    without_node = Caller(mig, AGENT)
    in_force(without_node, "agent-node", "PATCH", f"{GPU_NODES}/node-a/status", {"status": {}})
    in_force(without_node, "agent-pods", "DELETE", f"{PODS}/plugin-a")
    found = {f"node-{one}": Caller(mig, AGENT, bound_to=f"agent-{one}") for one in "ab"}
    return {None: without_node, **found}


@pytest.fixture
def agent_of(agents):
    """The agent's own calls about a node, with the token of node-a; they are carried out."""
    selector = ",".join(f"{key}={value}" for key, value in PLUGIN.items())
    with agent_thread(agents["node-a"]) as api:
        yield lambda name: AgentCluster(api, name, plugin_namespace=OPERANDS, plugin_selector=selector)


def in_force(caller, policy, method, path, body=None, content_type=MERGE, release=OPERATOR):
    """Wait until a policy refuses a request: the API server reads policies a moment after they are made."""
    deadline = time.monotonic() + 30
    while f"ValidatingAdmissionPolicy '{release}-{policy}'" not in caller.call(
        method, path, body, content_type
    ):
        assert time.monotonic() < deadline, f"the policy {policy} is not in force"
        time.sleep(0.1)


GPU_NODES, PODS = "/apis/tangram.dev/v1alpha1/gpunodes", f"/api/v1/namespaces/{OPERANDS}/pods"
MODELS, CONFIG_MAPS = "/api/v1/namespaces/models/pods", f"/api/v1/namespaces/{OPERANDS}/configmaps"
CLUSTER_POLICY = "/apis/nvidia.com/v1/clusterpolicies/cluster-policy"


def test_an_agent_writes_the_status_of_its_own_node_and_no_other(agent_of):
    agent, other = (agent_of(name) for name in ("node-a", "node-b"))
    version = agent.gpu_node()["metadata"]["resourceVersion"]
    agent.apply_status(version, {"observedGeneration": 1})
    assert agent.gpu_node()["status"] == {**DEFAULT_STATUS, "observedGeneration": 1}

    version = other.gpu_node()["metadata"]["resourceVersion"]
    with pytest.raises(ApiError, match="own node alone; its token names the node node-a"):
        other.apply_status(version, {"observedGeneration": 1})
    assert other.gpu_node()["status"] == DEFAULT_STATUS


def test_an_agent_may_watch_its_objects_and_a_watch_without_a_list_begins_with_them(agents):
    changed = threading.Semaphore(0)
    with agent_thread(agents["node-a"]) as api:
        watch = NodeWatch(api.client, "node-a", changed.release)
        api.begin(watch.follow())
        assert changed.acquire(timeout=30)
        assert changed.acquire(timeout=30)
        copies = watch.copies()

    assert [(obj["kind"], obj["metadata"]["name"]) for obj in copies] == [
        ("GPUNode", "node-a"),
        ("Node", "node-a"),
    ]


def test_an_agent_restarts_the_device_plugin_of_its_own_node_and_no_other(agent_of):
    agent, other = (agent_of(name) for name in ("node-a", "node-b"))
    (foreign,) = other.device_plugin_pods()
    with pytest.raises(ApiError, match="own node alone; its token names the node node-a"):
        other.delete_pod(foreign)
    assert other.device_plugin_pods() == [foreign]

    own = next(pod for pod in agent.device_plugin_pods() if pod.name == "plugin-a")
    agent.delete_pod(own)
    assert own not in agent.device_plugin_pods()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", f"{GPU_NODES}/node-a/status", {"status": {}}),
        ("DELETE", f"{PODS}/plugin-b", None),
        ("DELETE", f"{PODS}/unscheduled", None),
    ],
)
def test_a_token_of_the_agent_that_names_no_node_may_write_nothing(agents, method, path, body):
    assert "its token names no node" in agents[None].call(method, path, body, MERGE)
    assert agents["node-b"].call("DELETE", f"{PODS}/plugin-b") == ""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("bare", "pods of a DaemonSet alone"),
        ("job", "pods of a DaemonSet alone"),
        ("exporter", "the label app=nvidia-device-plugin-daemonset alone"),
    ],
)
def test_an_agent_deletes_no_other_pod_of_its_node(agents, name, reason):
    assert reason in agents["node-a"].call("DELETE", f"{PODS}/{name}")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PATCH", f"{GPU_NODES}/node-a"),
        ("DELETE", f"{GPU_NODES}/node-a"),
        ("GET", GPU_NODES),
        ("GET", "/api/v1/nodes"),
        ("PATCH", "/api/v1/nodes/node-a"),
        ("PATCH", "/api/v1/nodes/node-a/status"),
        ("PATCH", f"{PODS}/plugin-b"),
        ("DELETE", PODS),
        ("GET", MODELS),
        ("DELETE", f"{MODELS}/replica"),
        ("GET", f"/api/v1/namespaces/{OPERANDS}/secrets"),
    ],
)
def test_an_agent_has_no_other_rights(agents, method, path):
    body, content_type = ({"metadata": {}}, MERGE) if method == "PATCH" else (None, "application/json")
    assert "is forbidden: User" in agents["node-a"].call(method, path, body, content_type)


def _metadata(**changes):
    return {"metadata": changes}


def _taints(*taints):
    return {"spec": {"taints": list(taints)}}


@pytest.mark.parametrize(
    "change",
    [
        _taints(DEDICATED, OLD_HOLD, HOLD),
        _taints(DEDICATED),
        _taints(HOLD, DEDICATED),
        _metadata(labels={"nvidia.com/mig.config": "plan-1", "nvidia.com/gpu.deploy.mig-manager": "false"}),
        _metadata(labels={"nvidia.com/mig.config": "plan-1", "nvidia.com/mig.config.state": "pending"}),
        _metadata(labels={"nvidia.com/gpu.deploy.mig-manager": None}),
        _metadata(annotations={"tangram.dev/new": "y", "tangram.dev/old": None}),
    ],
    ids=json.dumps,
)
def test_the_operator_prepares_a_node_for_a_change_of_its_layout(operator, change):
    assert operator.call("PATCH", "/api/v1/nodes/node-a", change, MERGE) == ""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_taints(DEDICATED, OLD_HOLD, {"key": "a", "effect": "NoSchedule"}), "of a Node's taints"),
        (_taints(OLD_HOLD), "of a Node's taints"),
        (_taints({**DEDICATED, "value": "x"}, OLD_HOLD), "of a Node's taints"),
        (_taints({**DEDICATED, "effect": "NoExecute"}, OLD_HOLD), "of a Node's taints"),
        ({"spec": {"taints": None}}, "of a Node's taints"),
        (_taints(DEDICATED, {**HOLD, "effect": "NoExecute"}), "NoSchedule alone"),
        ({"spec": {"unschedulable": True}}, "of a Node's spec"),
        ({"spec": {"providerID": "x://y"}}, "of a Node's spec"),
        ({"spec": {"podCIDR": "10.0.0.0/24"}}, "of a Node's spec"),
        (_metadata(labels={"a": "b"}), "of a Node's labels"),
        (_metadata(labels={"nvidia.com/gpu.product": "Y"}), "of a Node's labels"),
        (_metadata(labels={"nvidia.com/gpu.product": None}), "of a Node's labels"),
        (_metadata(labels={"nvidia.com/mig.strategy": "single"}), "of a Node's labels"),
        (_metadata(labels=None), "of a Node's labels"),
        (_metadata(annotations={"a": "b"}), "of a Node's annotations"),
        (_metadata(annotations={"example.com/a": "c"}), "of a Node's annotations"),
        (_metadata(annotations={"example.com/a": None}), "of a Node's annotations"),
        (_metadata(finalizers=["example.com/f"]), "of a Node's metadata"),
        (
            _metadata(ownerReferences=[{"apiVersion": "v1", "kind": "Node", "name": "b", "uid": "u"}]),
            "of a Node's metadata",
        ),
    ],
    ids=json.dumps,
)
def test_the_operator_changes_nothing_else_of_a_node(operator, change, reason):
    assert reason in operator.call("PATCH", "/api/v1/nodes/node-a", change, MERGE)


def test_the_status_of_a_node_stays_as_it_is_whatever_the_operator_sends(operator):
    change = {"status": {"allocatable": {"nvidia.com/gpu": "8"}}}
    assert operator.call("PATCH", "/api/v1/nodes/node-a", change, MERGE) == ""  # ignored by the API server
    assert "is forbidden: User" in operator.call("PATCH", "/api/v1/nodes/node-a/status", change, MERGE)


COST = "controller.kubernetes.io/pod-deletion-cost"


def test_the_operator_decides_which_engine_pod_ends_first_and_evicts_none(operator):
    assert operator.call("PATCH", f"{MODELS}/replica", _metadata(annotations={COST: "-1"}), MERGE) == ""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta("replica", "models")}
    assert "is forbidden" in operator.call("POST", f"{MODELS}/replica/eviction", eviction)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("foreign", _metadata(annotations={COST: "-1"}), "engine pods alone"),
        ("replica", _metadata(annotations={COST: "-1", "a": "b"}), "of a Pod's annotations"),
        ("replica", _metadata(labels={"app": "x"}), "of a Pod's metadata"),
        ("replica", _metadata(finalizers=["example.com/f"]), "of a Pod's metadata"),
        ("replica", _metadata(ownerReferences=None), "of a Pod's metadata"),
        ("replica", {"spec": {"containers": [{"name": "c", "image": "other"}]}}, "the spec of a Pod"),
        ("replica", {"spec": {"activeDeadlineSeconds": 1}}, "the spec of a Pod"),
    ],
    ids=str,
)
def test_the_operator_changes_nothing_else_of_a_pod(operator, name, change, reason):
    assert reason in operator.call("PATCH", f"{MODELS}/{name}", change, STRATEGIC)


def test_the_operator_writes_the_specs_of_gpu_nodes(operator):
    gpu_node = {"apiVersion": "tangram.dev/v1alpha1", "kind": "GPUNode", "metadata": meta("new"), "spec": {}}
    assert operator.call("PATCH", f"{GPU_NODES}/new", gpu_node, APPLY) == ""
    assert operator.call("DELETE", f"{GPU_NODES}/node-a") == ""


def test_the_operator_writes_the_status_of_gpu_nodes_that_mig_manager_partitions_and_no_other(mig, operator):
    status = ("kubectl", "patch", "gpunode", "node-b", "--subresource=status", "--type=merge", "-p")
    path, own = f"{GPU_NODES}/node-b/status", {"status": {"backend": "MIGManager"}}
    refusal = "whose backend is MIGManager alone"
    assert operator.call("PATCH", path, own, MERGE) == ""
    assert refusal in operator.call("PATCH", path, {"status": {"backend": "NVML"}}, MERGE)
    mig.ok(*status, '{"status": {"backend": "NVML"}}')
    assert refusal in operator.call("PATCH", path, own, MERGE)
    mig.ok(*status, '{"status": null}')


def test_the_operator_writes_one_config_map_of_the_gpu_operator(operator):
    def config_map(name):
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(name, OPERANDS), "data": {"a": "b"}}

    own, other = "tangram-mig-config", "default-mig-parted-config"
    assert operator.call("PATCH", f"{CONFIG_MAPS}/{own}", config_map(own), APPLY) == ""
    assert "already exists" in operator.call(
        "POST", CONFIG_MAPS, config_map(own)
    )  # so the policy let it pass
    assert "is forbidden: User" in operator.call("PATCH", f"{CONFIG_MAPS}/{other}", config_map(other), APPLY)
    assert f"{OPERANDS}/{own} alone" in operator.call("POST", CONFIG_MAPS, config_map("third"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"spec": {"migManager": {"config": {"name": "tangram-mig-config"}}}}, ""),
        ({"spec": {"driver": {"image": "evil"}}}, "spec, the operator may change migManager.config alone"),
        ({"spec": {"toolkit": {"image": "evil"}}}, "spec, the operator may change migManager.config alone"),
        ({"spec": {"migManager": {"image": "evil"}}}, "may change config alone"),
        ({"spec": {"migManager": {"enabled": False}}}, "may change config alone"),
        (_metadata(labels={"a": "b"}), "metadata of a ClusterPolicy"),
    ],
    ids=str,
)
def test_the_operator_names_the_config_map_in_the_cluster_policy_and_changes_nothing_else(
    operator, change, reason
):
    refusal = operator.call("PATCH", CLUSTER_POLICY, change, MERGE)
    assert reason in refusal
    assert bool(refusal) == bool(reason)


def test_other_users_are_not_held_to_the_policies(mig, operator):
    assert operator.call("PATCH", "/api/v1/nodes/node-b", {"spec": {"unschedulable": True}}, MERGE)
    mig.ok("kubectl", "cordon", "node-b", "--dry-run=server")


def test_a_namespace_of_the_privileged_level_takes_the_agents_pod_and_one_of_the_baseline_level_does_not(mig):
    daemon_set = yaml.safe_load(mig.ok("kubectl", "get", "daemonset", AGENT, "-n", NAMESPACE, "-o", "yaml"))
    probe = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta("probe", NAMESPACE),
        "spec": daemon_set["spec"]["template"]["spec"],
    }
    create = ("kubectl", "create", "--dry-run=server", "-f", "-")
    level = ("kubectl", "label", "--overwrite", "namespace", NAMESPACE)
    mig.ok(*level, "pod-security.kubernetes.io/enforce=privileged")
    mig.ok(*create, stdin=json.dumps(probe))
    mig.ok(*level, "pod-security.kubernetes.io/enforce=baseline")
    refused = mig.run(*create, stdin=json.dumps(probe)).stderr
    assert "violates PodSecurity" in refused
    mig.ok(*level, "pod-security.kubernetes.io/enforce-")


def test_pools_of_the_values_are_made_once_the_cluster_has_their_definition(mig):
    assert "Install without gpuPools, then run helm upgrade" in mig.first_with_pools.stderr
    pool = yaml.safe_load(mig.ok("kubectl", "get", "gpupool", "h100", "-o", "yaml"))
    assert pool["spec"]["nodeSelector"] == {"pool": "h100"}
    assert pool["spec"]["backend"] == "NVML"
