"""The agent as a process of its own: real API server, real pynvml, simulated driver, kubelet's socket."""

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from e2e.cluster import binaries
from e2e.cluster.apiserver import ControlPlane
from e2e.silicon.nvml.connection import Admin
from e2e.silicon.nvml.daemon import serving
from e2e.silicon.nvml.library import environment
from e2e.silicon.nvml.state import Fault
from tangram.api.gpu_node import DEFAULT_STATUS
from tangram.kube import credentials
from tangram.kube.client import ApiError
from tangram.kube.kubeconfig import find_credentials, load_kubeconfig
from tangram.partition.agent.api_thread import ApiThread
from tangram.partition.agent.cluster import Cluster
from tests.support.api_requests import GPU_NODES, NODES, STRATEGIC, ApiRequests, pods
from tests.support.node_agent import Kubelet
from tests.support.nvml_driver import nvml_state

ROOT = Path(__file__).resolve().parents[2]
NODE, OPERANDS = "node-a", "gpu-operator"
PLUGIN = {"app": "nvidia-device-plugin-daemonset"}
FOUR, THREE = {"profile": "4g.40gb", "start": 0}, {"profile": "3g.40gb", "start": 4}
CHANGING = ("Create", "Destroy", "Set")
pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(180)]


class ControlledNode:
    """A node of a real API server, on which an agent's process runs; the test is its device plugin."""

    def __init__(self, kubeconfig, kubelet, nvml, folder):
        self.kubeconfig, self.kubelet, self.nvml = kubeconfig, kubelet, nvml
        self.folder, self.api = folder, ApiRequests(kubeconfig)
        with Admin(nvml) as admin:
            self.gpu = admin.state()["gpus"][0]["uuid"]
        self.processes = []

    def kubectl(self, *args, stdin=None):
        command = [str(binaries.need("kubectl")), "--kubeconfig", str(self.kubeconfig), *args]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def make_gpu_node(self):
        kind = {"apiVersion": "tangram.dev/v1alpha1", "kind": "GPUNode"}
        self.api.create(GPU_NODES, kind | {"metadata": {"name": NODE}, "spec": {}})

    def make_pod(self, name, labels, spec):
        meta = {"name": name, "namespace": OPERANDS, "labels": labels}
        spec = {"containers": [{"name": "plugin", "image": "plugin"}]} | spec
        self.api.create(pods(OPERANDS), {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    def gpu_node(self):
        return self.api.get(f"{GPU_NODES}/{NODE}")

    def condition(self, name="Applied"):
        conditions = self.gpu_node().get("status", {}).get("conditions", ())
        return next((each for each in conditions if each["type"] == name), {})

    def want(self, *instances):
        wanted = {"id": self.gpu, "migEnabled": True, "instances": list(instances)}
        self.api.patch(f"{GPU_NODES}/{NODE}", {"spec": {"gpus": [wanted]}})

    def make_plugin(self, name):
        """Start a pod of the device plugin, which offers what the driver has now."""
        self.make_pod(name, PLUGIN, {"nodeName": NODE, "terminationGracePeriodSeconds": 0})
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        self.api.patch(f"{pods(OPERANDS)}/{name}/status", ready, how=STRATEGIC)
        self.api.patch(f"{NODES}/{NODE}/status", self.offered(), how=STRATEGIC)

    def offered(self):
        with Admin(self.nvml) as admin:
            (gpu,) = admin.state()["gpus"]
        counts = {"nvidia.com/gpu": "0", "nvidia.com/mig-4g.40gb": "0", "nvidia.com/mig-3g.40gb": "0"}
        if not gpu["mig_mode"]:
            counts["nvidia.com/gpu"] = "1"
        for instance in gpu["instances"]:
            counts[f"nvidia.com/mig-{instance['profile']}"] = "1"
        return {"status": {"capacity": counts, "allocatable": counts}}

    def plugin_pods(self):
        return [pod["metadata"]["name"] for pod in self.api.get(pods(OPERANDS))["items"]]

    def layout(self):
        with Admin(self.nvml) as admin:
            (gpu,) = admin.state()["gpus"]
        return sorted(f"{one['profile']}@{one['start']}" for one in gpu["instances"])

    def changes(self):
        with Admin(self.nvml) as admin:
            return [call for call in admin.calls() if any(verb in call["name"] for verb in CHANGING)]

    def start(self, *arguments, interval_s=0.2, metrics_port=0, has_full_disk=False):
        command = [sys.executable, "-P", "-m", "tangram.partition.agent", "--node-name", NODE]
        command += ["--kubeconfig", str(self.kubeconfig), "--interval-s", str(interval_s)]
        command += ["--metrics-port", str(metrics_port)]
        command += ["--pod-resources-socket", str(self.kubelet.socket), *arguments]
        if has_full_disk:  # no file takes a byte, nor does what takes the log
            command = ["bash", "-c", 'ulimit -f 0; exec "$@" > /dev/full 2>&1', "bash", *command]
        env = {**os.environ, **environment(self.nvml)}
        log = (self.folder / "agent.log").open("ab")
        self.processes.append(subprocess.Popen(command, env=env, cwd=self.folder, stdout=log, stderr=log))
        log.close()
        return self.processes[-1]

    def use_token(self):
        """Give the next agents the token and the authority of a ServiceAccount, as a pod has them."""
        role, account = "--clusterrole=cluster-admin", f"--serviceaccount={OPERANDS}:default"
        self.kubectl("create", "clusterrolebinding", NODE, role, account)
        config = yaml.safe_load(self.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": self.kubectl("create", "token", "default", "-n", OPERANDS)}
        where = config["clusters"][0]["cluster"]
        authority = self.folder / "ca.crt"
        authority.write_bytes(base64.b64decode(where.pop("certificate-authority-data")))
        where["certificate-authority"] = str(authority)
        self.kubeconfig = self.folder / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def stop(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(20)

    def until(self, holds, what):
        limit = time.monotonic() + 60
        while not holds():
            log = (self.folder / "agent.log").read_text()[-3000:]
            assert time.monotonic() < limit, (what, self.gpu_node().get("status"), log)
            time.sleep(0.1)

    def follow_restart(self, name):
        """Be the DaemonSet: once the plugin's pod was deleted, start another one."""
        self.until(lambda: not self.plugin_pods(), "the device plugin's pod is deleted")
        assert self.condition()["reason"] == "DevicePluginRestarting"
        self.make_plugin(name)
        self.until(lambda: self.condition().get("reason") == "AsWanted", "as wanted")


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with ControlPlane(tmp_path_factory.mktemp("plane")) as running:
        crd = (ROOT / "crds" / "tangram.dev_gpunodes.yaml").read_text()
        kubectl = [str(binaries.need("kubectl")), "--kubeconfig", str(running.kubeconfig)]
        subprocess.run([*kubectl, "create", "-f", "-"], input=crd, text=True, check=True)
        name = yaml.safe_load(crd)["metadata"]["name"]
        subprocess.run([*kubectl, "wait", "--for=condition=Established", f"crd/{name}"], check=True)
        subprocess.run([*kubectl, "create", "namespace", OPERANDS], check=True)
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": OPERANDS},
        }
        subprocess.run([*kubectl, "create", "-f", "-"], input=json.dumps(account), text=True, check=True)
        yield running


@contextmanager
def short_folder():
    path = Path(tempfile.mkdtemp(prefix="agent"))  # a Unix socket's path must stay below 108 characters
    try:
        yield path
    finally:
        shutil.rmtree(path)


@pytest.fixture
def node(plane):
    with (
        short_folder() as folder,
        serving(nvml_state("H100-80GB-SXM", {}), folder) as nvml,
        Kubelet(folder / "kubelet.sock").serving() as kubelet,
    ):
        made = ControlledNode(plane.kubeconfig, kubelet, nvml, folder)
        api = made.api
        with api:
            api.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
            made.make_plugin("plugin-0")
            made.make_gpu_node()
            try:
                yield made
            finally:
                made.stop()
                for path in (f"{GPU_NODES}/{NODE}", f"{NODES}/{NODE}", pods(OPERANDS)):
                    api.delete(path)


def test_the_first_cut_of_an_uncut_gpu_and_a_second_process_that_writes_nothing(node):
    process = node.start()
    node.until(lambda: node.condition("Ready").get("status") == "True", "ready")
    assert node.condition()["status"] == "True"
    node.want(FOUR, THREE)
    node.follow_restart("plugin-1")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0

    assert node.layout() == ["3g.40gb@4", "4g.40gb@0"]
    status = node.gpu_node()["status"]
    assert status["observedGeneration"] == 2
    assert [i["profile"] for i in status["gpus"][0]["instances"]] == ["4g.40gb", "3g.40gb"]
    written, changes = node.gpu_node()["metadata"]["resourceVersion"], len(node.changes())
    kubelet_calls = node.kubelet.calls

    node.start()
    node.until(lambda: node.kubelet.calls >= kubelet_calls + 3, "three more rounds")

    assert node.gpu_node()["metadata"]["resourceVersion"] == written
    assert len(node.changes()) == changes


def test_by_watches_alone_a_spec_is_carried_out_and_the_devices_on_offer_are_noticed(node):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    node.start(interval_s=3600, metrics_port=port)
    node.until(lambda: node.condition("Ready").get("status") == "True", "ready")
    began = time.monotonic()
    node.want(FOUR, THREE)
    node.until(lambda: node.layout() == ["3g.40gb@4", "4g.40gb@0"], "cut")
    node.follow_restart("plugin-1")

    assert time.monotonic() - began < 60
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        shown = response.read().decode()
    assert f'tangram_gpu_mig_enabled{{gpu="{node.gpu}",node="{NODE}"}} 1.0' in shown
    assert 'kind="create-instance",result="done"' in shown
    label = {"metadata": {"labels": {"nvidia.com/gpu.deploy.dcgm": "paused-for-mig-change"}}}
    node.api.patch(f"{NODES}/{NODE}", label)
    node.until(lambda: node.condition().get("reason") == "ComponentsPaused", "a label of the Node is noticed")


def test_a_pod_that_holds_a_slice_blocks_its_destruction_until_it_is_gone(node):
    node.start()
    node.want(FOUR, THREE)
    node.follow_restart("plugin-1")
    instances = node.gpu_node()["status"]["gpus"][0]["instances"]
    held = next(i["uuid"] for i in instances if i["profile"] == "3g.40gb")
    node.kubelet.held = {("ml", "chat-0"): [held]}
    node.want(FOUR)

    node.until(lambda: node.condition().get("reason") == "InUse", "in use")
    assert node.condition()["waitsFor"] == "Pod ml/chat-0"
    assert node.layout() == ["3g.40gb@4", "4g.40gb@0"]

    node.kubelet.held = {}
    node.follow_restart("plugin-2")
    assert node.layout() == ["4g.40gb@0"]


CALLS = [
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
]


@pytest.mark.parametrize("call", CALLS)
def test_killed_while_a_call_is_under_way_the_next_process_reaches_the_wanted_layout(node, call):
    with Admin(node.nvml) as admin:
        admin.add_fault(Fault(call, hangs=True, takes_effect=True))
    process = node.start()
    node.until(lambda: node.condition("Ready").get("status") == "True", "ready")
    node.want(FOUR)
    node.until(lambda: any(each["name"] == call for each in node.changes()), call)
    process.kill()
    process.wait(20)
    with Admin(node.nvml) as admin:
        admin.release_hangs()

    node.start()
    node.follow_restart("plugin-1")

    assert node.layout() == ["4g.40gb@0"]


def test_on_a_node_with_a_full_disk_the_agent_cuts_all_the_same(node):
    admin = node.kubeconfig
    node.use_token()
    try:
        process = node.start(has_full_disk=True)
        node.want(FOUR, THREE)
        node.follow_restart("plugin-1")

        assert process.poll() is None
        assert node.layout() == ["3g.40gb@4", "4g.40gb@0"]
        assert (node.folder / "agent.log").read_text() == ""
    finally:
        node.kubeconfig = admin
        node.kubectl("delete", "clusterrolebinding", NODE)


def test_a_call_that_hangs_ends_the_process_with_its_condition_and_the_next_one_goes_on(node):
    process = node.start("--driver-deadline-s", "1")
    node.until(lambda: node.condition("Ready").get("status") == "True", "ready")
    with Admin(node.nvml) as admin:
        admin.add_fault(Fault("nvmlDeviceGetMigMode", hangs=True, times=1))

    assert process.wait(30) == 4
    assert node.condition("Ready")["reason"] == "DriverHangs"

    node.start()  # as the kubelet does
    node.until(lambda: node.condition("Ready")["status"] == "True", "ready again")


def test_a_gpu_node_deleted_in_mid_cut_and_made_anew_leaves_a_node_that_offers_what_it_has(node):
    with Admin(node.nvml) as admin:
        admin.add_fault(Fault("nvmlGpuInstanceCreateComputeInstance", delay_s=2.0, times=1))
    node.start()
    node.until(lambda: node.condition("Ready").get("status") == "True", "ready")
    node.want(FOUR, THREE)
    node.until(node.layout, "the first instance")
    node.api.delete(f"{GPU_NODES}/{NODE}")
    node.make_gpu_node()

    node.until(lambda: node.condition().get("reason") == "DevicePluginRestarting", "the restart is due")
    node.follow_restart("plugin-1")

    assert node.layout() == ["4g.40gb@0"]
    assert node.offered()["status"]["allocatable"]["nvidia.com/mig-4g.40gb"] == "1"


@pytest.fixture
def cluster(node):
    selector = ",".join(f"{name}={value}" for name, value in PLUGIN.items())
    api = ApiThread(load_kubeconfig(str(node.kubeconfig)))
    yield Cluster(api, NODE, plugin_namespace=OPERANDS, plugin_selector=selector)
    api.close()


def test_only_pods_of_the_device_plugin_on_this_node_are_found(node, cluster):
    node.make_pod("other-node", PLUGIN, {"nodeName": "node-b"})
    node.make_pod("other-app", {"app": "dcgm"}, {"nodeName": NODE})

    (pod,) = cluster.device_plugin_pods()

    assert (pod.name, pod.is_ready, pod.is_ending) == ("plugin-0", True, False)


def test_another_pod_of_the_same_name_is_not_deleted(node, cluster):
    (pod,) = cluster.device_plugin_pods()

    with pytest.raises(ApiError, match="409"):
        cluster.delete_pod(replace(pod, uid="another"))

    assert node.plugin_pods() == ["plugin-0"]


def test_the_status_of_a_gpu_node_that_has_changed_since_is_not_written(node, cluster):
    version = node.gpu_node()["metadata"]["resourceVersion"]
    node.want(FOUR)

    with pytest.raises(ApiError, match="409"):
        cluster.apply_status(version, {"gpuCount": 1})

    assert node.gpu_node()["status"] == DEFAULT_STATUS


def test_a_pod_has_access_by_its_service_account_and_reads_a_rotated_token_again(
    plane, tmp_path, monkeypatch
):
    (tmp_path / "ca.crt").write_text((plane.folder / "pki" / "ca.crt").read_text())
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    (tmp_path / "token").write_text("first\n")

    of_pod = find_credentials()

    assert (of_pod.server, of_pod.token()) == ("https://[fd00::1]:6443", "first")
    (tmp_path / "token").write_text("second\n")
    assert of_pod.token(fresh=True) == "second"
