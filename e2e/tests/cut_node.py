"""The one node of the local cluster with GPUs of a simulated driver, which Tangram may cut.

Real are the kubelet, the scheduler, the chart with operator and node agent, and the engines. The driver is
a thread of this process behind a socket, and takes as long for each call as real GPUs do. The device plugin
sees new slices only after a restart: the node agent deletes its pod; mig-manager, of which a stand-in runs on
the node, ends it and starts it again by a label.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from e2e.cluster.local import Local
from e2e.demo import install
from e2e.demo.stage import Stage
from e2e.kube import Kube, instant, wait_until
from e2e.silicon.board import parse_machine
from e2e.silicon.mig_manager import CONFIG, DEPLOY, DEPLOYED, STATE
from e2e.silicon.nvml.connection import Admin
from e2e.silicon.nvml.daemon import serving
from e2e.silicon.nvml.state import SILICON_LATENCIES, GpuInstance, NvmlState, from_json, node_state
from e2e.tests.conftest import clear
from e2e.tests.support import PRINT_DEVICES

HERE, MANIFESTS = Path(__file__).parent, install.ROOT / "e2e/silicon/manifests"
AGENT = "agent-of-simulated-driver"
SILICON = ("-n", "tangram-silicon", "daemonset/silicon")
HOLD = "hold.tangram.dev/"


@dataclass(frozen=True, slots=True)
class Backend:
    """What cuts the GPUs, and the node that it is shown on."""

    name: str  # spec.backend of the GPUPool
    gpus: int  # H100s of the node, none of them cut
    mig_enabled: bool  # MIG is switched on before the first model comes
    values: str  # file of chart values, over values-cut.yaml
    manifests: tuple[str, ...]  # components of the GPU Operator, in order of their installation
    labels: Mapping[str, str] = field(default_factory=dict)  # of the node
    images: tuple[str, ...] = ()  # that the demo does without
    never_calls: frozenset[str] = frozenset()  # while a pod of the node uses a slice


NVML = Backend(
    name="NVML",
    gpus=1,
    mig_enabled=False,
    values="values-cut-nvml.yaml",
    manifests=("device_plugin.yaml",),
    labels={f"{DEPLOY}device-plugin": "true"},
    images=("agent", AGENT),
    never_calls=frozenset({"nvmlDeviceSetMigMode", "nvmlGpuInstanceDestroy", "nvmlComputeInstanceDestroy"}),
)
MIG_MANAGER = Backend(
    name="MIGManager",
    gpus=2,  # it clears the GPU that it cuts: a model serves on another one meanwhile
    mig_enabled=True,  # it changes MIG modes only on a node where no pod has a GPU
    values="values-cut-mig-manager.yaml",
    manifests=("device_plugin.yaml", "cluster_policy_crd.yaml", "mig_manager.yaml"),
    labels={CONFIG: "all-disabled", STATE: "success"} | {f"{DEPLOY}{name}": "true" for name in DEPLOYED},
    never_calls=frozenset({"nvmlDeviceSetMigMode"}),
)


@dataclass(frozen=True, slots=True)
class CutNode:
    """The node, seen through the API and through its driver."""

    backend: Backend
    kube: Kube
    name: str
    nvml: Path
    initial: NvmlState

    def state(self) -> NvmlState:
        """The state of the driver."""
        with Admin(self.nvml) as admin:
            raw = admin.state()
        raw.pop("holders")
        return from_json(raw, self.initial.board)

    def layouts(self) -> list[list[str]]:
        """The instances of each GPU as PROFILE@START; `gpu` alone where it is not cut."""
        return [
            sorted(f"{one.profile}@{one.start}" for one in gpu.instances) if gpu.mig_mode else ["gpu"]
            for gpu in self.state().gpus
        ]

    def instance(self, device: str) -> tuple[int, GpuInstance]:
        """The index of the GPU, and the GPU instance, of a MIG device."""
        state = self.state()
        (found,) = [
            (index, instance)
            for index, gpu in enumerate(state.gpus)
            for uuid, instance, _ in state.mig_devices(gpu)
            if uuid == device
        ]
        return found

    def calls(self) -> Counter[str]:
        """How often each NVML function was called that real GPUs take a while for, by its name."""
        with Admin(self.nvml) as admin:
            counts = admin.call_counts()
        return Counter({name: count for name, count in counts.items() if name in SILICON_LATENCIES})

    def labels(self) -> dict[str, str]:
        """The labels of the node."""
        labels: dict[str, str] = self.kube.get("node", self.name)["metadata"]["labels"]
        return labels

    def holds(self) -> list[str]:
        """The keys of the holds on the node."""
        taints = self.kube.get("node", self.name)["spec"].get("taints", [])
        return [taint["key"] for taint in taints if taint["key"].startswith(HOLD)]

    def pod(self, model: str) -> dict[str, Any]:
        """The one pod of a model; empty where there is none."""
        pods = self.kube.get("pods", "-n", "default", "-l", f"tangram.dev/llmdeployment={model}")["items"]
        engines = [p for p in pods if p["metadata"]["labels"].get("app.kubernetes.io/component") == "engine"]
        return engines[0] if len(engines) == 1 else {}

    def device(self, pod: dict[str, Any]) -> str:
        """The UUID of the device that the kubelet gave a pod."""
        return self.kube.kubectl("exec", pod["metadata"]["name"], "--", *PRINT_DEVICES).strip()

    def plans_of_changes(self) -> list[dict[str, Any]]:
        """The FleetPlans that change layouts, the oldest first."""
        plans = [plan for plan in self.kube.get("fleetplans")["items"] if plan["spec"].get("changes")]
        return sorted(plans, key=lambda plan: plan["metadata"]["creationTimestamp"])

    def are_done(self) -> bool:
        """Whether all FleetPlans that change layouts are Done."""
        return all(plan.get("status", {}).get("state") == "Done" for plan in self.plans_of_changes())


def ready_since(pod: dict[str, Any]) -> datetime:
    """When a pod became Ready."""
    (ready,) = [one for one in pod["status"]["conditions"] if one["type"] == "Ready"]
    assert ready["status"] == "True", ready
    return instant(ready["lastTransitionTime"])


@contextmanager
def cut_node(stage: Stage, provider: Local, backend: Backend) -> Iterator[CutNode]:
    """Dress the node anew, install Tangram with a partition backend; afterwards all is as it was."""
    kube = stage.cluster()
    for target in backend.images:
        stage.add_image(target)
    (name,) = [node["metadata"]["name"] for node in kube.get("nodes")["items"]]
    board = {"sku": "H100-80GB-SXM", "gpus": [{}] * backend.gpus}
    initial = node_state(parse_machine(board, name), name)
    clear(kube)
    with serving(initial, provider.folder_of_node("/var/lib/kubelet/pod-resources")) as nvml:
        with Admin(nvml) as admin:
            admin.set_latencies(SILICON_LATENCIES)
        try:
            _pause_board_file(kube, paused=True)
            kube.kubectl("label", "node", name, "--overwrite", *_pairs(backend.labels))
            _deploy(kube, backend, stage.references["silicon"])
            whole = {"nvidia.com/gpu": backend.gpus}
            wait_until(lambda: install.gpu_resources(kube) == whole, 60, "the whole GPUs")
            references = dict(stage.references)
            if AGENT in backend.images:
                references["agent"] = references[AGENT]
            values = (*stage.values, HERE / "values-cut.yaml", HERE / backend.values)
            install.tangram(kube, references, values=values)
            wait_until(lambda: _reported(kube, name), 60, "the backend to report the GPUs")
            made = CutNode(backend, kube, name, nvml, initial)
            if backend.mig_enabled:
                _switch_mig_on(made)
            yield made
        finally:
            stage.install_tangram()
            clear(kube)
            kube.kubectl("delete", "gpunode,fleetplan", "--all", "--wait", "--timeout=60s")
            for manifest in reversed(backend.manifests):
                file = str(MANIFESTS / manifest)
                kube.kubectl("delete", "-f", file, "--ignore-not-found", "--wait", "--timeout=60s")
            kube.kubectl("label", "node", name, *(f"{label}-" for label in backend.labels))
            _pause_board_file(kube, paused=False)
            wait_until(lambda: len(install.gpu_resources(kube)) == 2, 60, "the GPUs of the board file")


def _pairs(labels: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in labels.items()]


def _deploy(kube: Kube, backend: Backend, image: str) -> None:
    """Install the components of the GPU Operator."""
    for manifest in backend.manifests:
        text = (MANIFESTS / manifest).read_text()
        kube.apply(text.replace("tangram.local/tangram-silicon:dev", image))
        if manifest == "cluster_policy_crd.yaml":
            crd = "crd/clusterpolicies.nvidia.com"
            kube.kubectl("wait", "--for=condition=Established", crd, "--timeout=30s")


def _switch_mig_on(node: CutNode) -> None:
    """Write by hand that every GPU is to be in MIG mode, and wait until the node offers no whole GPU."""
    gpus = [{"id": f"index-{index}", "migEnabled": True} for index in range(node.backend.gpus)]
    patch = json.dumps({"spec": {"gpus": gpus}})
    node.kube.kubectl("patch", "gpunode", node.name, "--type=merge", "-p", patch)
    arguments = ("gpunode", node.name, "--for=jsonpath={.status.appliedDisplay}=2/2", "--timeout=120s")
    node.kube.kubectl("wait", *arguments, timeout=130)


def _pause_board_file(kube: Kube, *, paused: bool) -> None:
    """End the stand-in that follows a board file, or start it again."""
    selector = {"paused": "true"} if paused else None
    patch = {"spec": {"template": {"spec": {"nodeSelector": selector}}}}
    kube.kubectl("patch", *SILICON, "--type=merge", "-p", json.dumps(patch))
    if paused:
        kube.kubectl("wait", "--for=delete", "pod", "--all", *SILICON[:2], "--timeout=60s")


def _reported(kube: Kube, name: str) -> bool:
    return bool(kube.get("gpunode", name).get("status", {}).get("gpus"))
