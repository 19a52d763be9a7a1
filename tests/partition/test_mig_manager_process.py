"""The mig-manager backend against a real API server, with the stand-in of mig-manager as a process."""

import asyncio
import json
import logging
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from e2e.cluster import binaries
from e2e.cluster.apiserver import ControlPlane, free_port
from e2e.silicon.nvml.connection import Admin
from e2e.silicon.nvml.daemon import serving
from tangram.kube.client import UNGUARDED, ApiClient
from tangram.kube.kinds import CONFIG_MAPS, GPU_NODES, NODES, PODS
from tangram.kube.kubeconfig import load_kubeconfig
from tangram.partition.mig_manager.decision import MIGManagerTimes
from tangram.shell.mig_manager.managed_layouts import ManagedLayouts
from tests.support.api_requests import CLUSTER_POLICIES, STRATEGIC, ApiRequests, pods
from tests.support.api_requests import GPU_NODES as GPU_NODES_PATH
from tests.support.api_requests import NODES as NODES_PATH
from tests.support.mig_manager_node import CLUSTER_POLICY_CRD, DEPLOYED, wanted_gpu
from tests.support.nvml_driver import nvml_state

ROOT = Path(__file__).resolve().parents[2]
NODE, OPERATOR, OURS = "node-a", "gpu-operator", "tangram-mig-config"
CUT, OTHER = ["4g.40gb@0", "3g.40gb@4"], ["3g.40gb@0", "3g.40gb@4"]
CONFIG, PLUGIN = "nvidia.com/mig.config", "nvidia.com/gpu.deploy.device-plugin"
NODE_PATH, GPU_NODE_PATH = f"{NODES_PATH}/{NODE}", f"{GPU_NODES_PATH}/{NODE}"
POLICY_PATH = f"{CLUSTER_POLICIES}/cluster-policy"
CONFIG_MAP_PATH = f"/api/v1/namespaces/{OPERATOR}/configmaps/{OURS}"
TIMES = MIGManagerTimes(
    config_sync_s=3, apply_s=4, confirm_s=8, reboot_s=20, retry_s=3, back_off_s=1, settled_s=3600
)
pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(180)]


class ManagedCluster:
    """A node of a real API server, its driver, and mig-manager's process; the test is the operator."""

    def __init__(self, kubeconfig, nvml, folder, api):
        self.kubeconfig, self.nvml, self.folder, self.api = kubeconfig, nvml, folder, api
        self.client = ApiClient(load_kubeconfig(str(kubeconfig)))
        self.requests = ApiRequests(kubeconfig)
        self.process = None
        self.layouts = self.operator()

    def operator(self, **more):
        return ManagedLayouts(
            *(self.client, UNGUARDED, time.monotonic, lambda: datetime.now(UTC), OPERATOR, "0.1"),
            times=TIMES,
            **more,
        )

    def kubectl(self, *args, stdin=None):
        command = [str(binaries.need("kubectl")), "--kubeconfig", str(self.kubeconfig), *args]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def gpu_node(self):
        return self.requests.get(GPU_NODE_PATH)

    def want(self, *gpus):
        patch = {"spec": {"gpus": [wanted_gpu(index, placements) for index, placements in gpus]}}
        self.requests.patch(GPU_NODE_PATH, patch)

    def name_in_policy(self, name):
        patch = {"spec": {"migManager": {"config": {"name": name}}}}
        self.requests.patch(POLICY_PATH, patch)

    def start(self, **faults):
        command = [sys.executable, "-P", "-m", "e2e.silicon.mig_manager", "--node", NODE, "--api", self.api]
        command += ["--nvml", str(self.nvml), "--config-map", f"{OPERATOR}/{OURS}", "--lag-s", "0.5"]
        command += ["--step-s", "0.05", "--faults", json.dumps(faults)]
        log = (self.folder / "mig-manager.log").open("ab")
        self.process = subprocess.Popen(
            command, env={"PYTHONPATH": str(ROOT)}, cwd=self.folder, stdout=log, stderr=log
        )
        log.close()

    def stop(self):
        if self.process is not None:
            self.process.terminate()
            self.process.wait(20)

    async def listed(self, kind):
        return (await self.client.list(kind)).items

    async def round(self, layouts=None, pods=None):
        gpu_nodes, nodes = await self.listed(GPU_NODES), await self.listed(NODES)
        there = await self.listed(PODS) if pods is None else pods
        await (layouts or self.layouts).round(gpu_nodes, nodes, there, {NODE})

    async def until(self, reason, layouts=None):
        limit = time.monotonic() + 60
        while True:
            await self.round(layouts)
            if self.condition().get("reason") == reason:
                return
            log = (self.folder / "mig-manager.log").read_text()[-2000:]
            assert time.monotonic() < limit, (reason, self.gpu_node().get("status"), log)
            await asyncio.sleep(0.2)

    def condition(self, name="Applied"):
        conditions = self.gpu_node().get("status", {}).get("conditions", ())
        return next((each for each in conditions if each["type"] == name), {})

    def labels(self):
        return self.requests.get(NODE_PATH)["metadata"]["labels"]

    def layout(self, index=0):
        with Admin(self.nvml) as admin:
            gpu = admin.state()["gpus"][index]
        return sorted(one["profile"] for one in gpu["instances"]) if gpu["mig_mode"] else None


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with ControlPlane(tmp_path_factory.mktemp("plane")) as running:
        kubectl = [str(binaries.need("kubectl")), "--kubeconfig", str(running.kubeconfig)]
        gpu_nodes = (ROOT / "crds" / "tangram.dev_gpunodes.yaml").read_text()
        for crd in (gpu_nodes, json.dumps(CLUSTER_POLICY_CRD)):
            subprocess.run([*kubectl, "create", "-f", "-"], input=crd, text=True, check=True)
            name = yaml.safe_load(crd)["metadata"]["name"]
            subprocess.run([*kubectl, "wait", "--for=condition=Established", f"crd/{name}"], check=True)
        subprocess.run([*kubectl, "create", "namespace", OPERATOR], check=True)
        account = {"apiVersion": "v1", "kind": "ServiceAccount"}
        account |= {"metadata": {"name": "default", "namespace": "default"}}
        subprocess.run([*kubectl, "create", "-f", "-"], input=json.dumps(account), text=True, check=True)
        yield running


@pytest.fixture(scope="module")
def api(plane):
    """The API server without TLS, for the stand-in."""
    port = free_port()
    command = [
        str(binaries.need("kubectl")),
        "--kubeconfig",
        str(plane.kubeconfig),
        "proxy",
        f"--port={port}",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def short_folder():
    path = Path(tempfile.mkdtemp(prefix="mig"))  # a Unix socket's path must stay below 108 characters
    try:
        yield path
    finally:
        shutil.rmtree(path)


@pytest.fixture
async def cluster(plane, api):
    labels = {f"nvidia.com/gpu.deploy.{name}": "true" for name in DEPLOYED}
    labels |= {CONFIG: "all-disabled", "nvidia.com/mig.config.state": "success"}
    with short_folder() as folder, serving(nvml_state("H100-80GB-SXM", {}, {}), folder) as nvml:
        made = ManagedCluster(plane.kubeconfig, nvml, folder, api)
        requests, meta = made.requests, {"metadata": {"name": NODE}}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": labels}}
        requests.create(NODES_PATH, node)
        info = {"status": {"nodeInfo": {"bootID": "boot-1"}}}
        requests.patch(f"{NODE_PATH}/status", info, how=STRATEGIC)
        gpu_node = {"apiVersion": "tangram.dev/v1alpha1", "kind": "GPUNode", "spec": {}}
        requests.create(GPU_NODES_PATH, gpu_node | meta)
        policy = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "spec": {}}
        requests.create(CLUSTER_POLICIES, policy | {"metadata": {"name": "cluster-policy"}})
        made.name_in_policy(OURS)
        try:
            yield made
        finally:
            made.stop()
            await made.client.close()
            for path in (GPU_NODE_PATH, NODE_PATH, POLICY_PATH, CONFIG_MAP_PATH, pods("default")):
                requests.delete(path)
            requests.close()


async def test_the_first_cut_and_then_nothing_is_written(cluster):
    cluster.start()
    await cluster.until("AsWanted")
    cluster.want((0, CUT))
    await cluster.until("Applying")
    await cluster.until("AsWanted")

    assert (cluster.layout(0), cluster.layout(1)) == (["3g.40gb", "4g.40gb"], None)
    gpu_node, labels = cluster.gpu_node(), cluster.labels()
    assert gpu_node["status"]["migConfig"] == labels[CONFIG]
    assert gpu_node["status"]["bootID"] == "boot-1"
    assert gpu_node["status"]["observedGeneration"] == 2
    entries = yaml.safe_load(cluster.requests.get(CONFIG_MAP_PATH)["data"]["config.yaml"])
    assert set(entries["mig-configs"]) == {"all-disabled", labels[CONFIG]}
    fields = gpu_node["metadata"]["managedFields"]
    managers = {each["manager"] for each in fields}
    assert "tangram-mig-manager" in managers

    before = cluster.gpu_node(), cluster.requests.get(NODE_PATH)
    for _ in range(3):
        await cluster.round(cluster.operator())
    after = cluster.gpu_node(), cluster.requests.get(NODE_PATH)
    versions = [[obj["metadata"]["resourceVersion"] for obj in part] for part in (before, after)]
    assert versions[0] == versions[1]


async def test_a_hanging_pending_is_healed(cluster):
    cluster.start(stuck=1)
    await cluster.until("AsWanted")
    cluster.want((0, CUT))

    await cluster.until("BackOff")
    assert cluster.labels()[PLUGIN] == "paused-for-mig-change"
    (gpu, _) = cluster.gpu_node()["status"]["gpus"]
    assert gpu["attempts"]["error"] == "STUCK_PENDING"

    await cluster.until("AsWanted")
    assert cluster.layout(0) == ["3g.40gb", "4g.40gb"]
    assert {cluster.labels()[f"nvidia.com/gpu.deploy.{name}"] for name in DEPLOYED} == {"true"}


async def test_a_failure_is_tried_again_after_a_back_off(cluster):
    cluster.start(fails=2)
    await cluster.until("AsWanted")
    cluster.want((0, CUT))

    await cluster.until("BackOff")
    assert cluster.layout(0) == []
    await cluster.until("AsWanted")

    assert cluster.layout(0) == ["3g.40gb", "4g.40gb"]


async def test_a_label_that_is_changed_from_outside_is_set_again_after_a_back_off(cluster):
    cluster.start()
    await cluster.until("AsWanted")
    cluster.want((0, CUT))
    await cluster.until("Applying")
    await cluster.until("AsWanted")

    cluster.kubectl("label", "node", NODE, f"{CONFIG}=all-disabled", "--overwrite")
    await cluster.until("BackOff")
    assert "was set to all-disabled from outside" in cluster.condition()["message"]
    await cluster.until("AsWanted")

    assert cluster.layout(0) == ["3g.40gb", "4g.40gb"]
    assert cluster.gpu_node()["status"]["gpus"][0]["attempts"]["count"] == 1


async def test_cluster_policy_is_edited_by_the_command_of_the_condition_or_by_a_setting(cluster):
    cluster.start()
    cluster.name_in_policy("default-mig-parted-config")
    cluster.want((0, CUT))
    await cluster.until("ConfigMapNotNamed")
    command = cluster.condition()["message"].rpartition(": kubectl ")[2]
    cluster.kubectl(*shlex.split(command))
    await cluster.until("AsWanted")
    assert cluster.layout(0) == ["3g.40gb", "4g.40gb"]

    cluster.name_in_policy("default-mig-parted-config")
    editing = cluster.operator(edits_cluster_policy=True)
    cluster.want((0, OTHER))
    await cluster.until("Applying", editing)
    await cluster.until("AsWanted", editing)

    policy = cluster.requests.get(POLICY_PATH)
    assert policy["spec"]["migManager"]["config"]["name"] == OURS
    assert cluster.layout(0) == ["3g.40gb", "3g.40gb"]


async def test_a_pod_that_the_mirror_does_not_show_yet_is_seen_before_a_label_is_set(cluster):
    cluster.start()
    await cluster.until("AsWanted")
    resources = {"limits": {"nvidia.com/gpu": "1"}}
    container = {"name": "main", "image": "engine", "resources": resources}
    meta = {"name": "chat-0", "namespace": "default"}
    spec = {"nodeName": NODE, "containers": [container], "terminationGracePeriodSeconds": 0}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
    cluster.requests.create(pods("default"), pod)
    cluster.want((0, CUT))

    for _ in range(15):
        await cluster.round(pods=())
        await asyncio.sleep(0.2)
    assert cluster.labels()[CONFIG] == "all-disabled"

    await cluster.until("InUse")
    assert cluster.condition()["waitsFor"] == "Pod default/chat-0"
    cluster.requests.delete(f"{pods('default')}/chat-0")
    await cluster.until("AsWanted")
    assert cluster.layout(0) == ["3g.40gb", "4g.40gb"]


async def test_a_status_of_an_older_version_and_an_entry_of_an_older_config_map_are_not_written(cluster):
    cluster.want((0, CUT))
    cluster.start()
    await cluster.until("ConfigSyncing")
    gpu_nodes, nodes = await cluster.listed(GPU_NODES), await cluster.listed(NODES)
    cluster.want((0, OTHER))
    written = cluster.gpu_node()
    written_map = await cluster.client.get(CONFIG_MAPS, OPERATOR, OURS)

    await asyncio.sleep(4)  # the file has followed by now
    await cluster.layouts.round(gpu_nodes, nodes, (), {NODE})

    assert cluster.gpu_node()["metadata"]["resourceVersion"] == written["metadata"]["resourceVersion"]
    assert cluster.labels()[CONFIG] == "all-disabled"
    assert await cluster.client.get(CONFIG_MAPS, OPERATOR, OURS) == written_map


async def test_without_the_rights_a_condition_says_what_was_refused_and_it_is_logged_once(
    cluster, plane, caplog
):
    cluster.start()
    await cluster.until("AsWanted")
    readable = "configmaps,nodes,pods,gpunodes,clusterpolicies"
    cluster.kubectl("create", "clusterrole", "reader", "--verb=get,list", f"--resource={readable}")
    cluster.kubectl("create", "clusterrole", "status", "--verb=patch", "--resource=gpunodes/status")
    for role in ("reader", "status"):
        cluster.kubectl("create", "clusterrolebinding", role, f"--clusterrole={role}", "--user=limited")
    client = ApiClient(load_kubeconfig(str(plane.kubeconfig_for("limited"))))
    limited = ManagedLayouts(
        *(client, UNGUARDED, time.monotonic, lambda: datetime.now(UTC), OPERATOR, "0.1"), times=TIMES
    )
    cluster.want((0, CUT))
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            await cluster.round(limited)
    await client.close()

    assert cluster.condition()["reason"] == "WriteRefused"
    assert "configmaps" in cluster.condition()["message"]
    assert len([record for record in caplog.records if "configmaps" in record.message]) == 1
