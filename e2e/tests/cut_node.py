"""The one node of the local cluster with a GPU of a simulated driver, which Tangram may cut.

Real are the kubelet, the scheduler, the chart with operator and node agent, and the engines. The driver is
a thread of this process behind a socket, and takes as long for each call as real GPUs do.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from e2e.cluster.local import Local
from e2e.demo import install
from e2e.demo.stage import Stage
from e2e.kube import Kube, wait_until
from e2e.silicon.board import parse_machine
from e2e.silicon.nvml.connection import Admin
from e2e.silicon.nvml.daemon import serving
from e2e.silicon.nvml.state import SILICON_LATENCIES, NvmlState, from_json, node_state
from e2e.tests.conftest import clear

MANIFEST = install.ROOT / "e2e/silicon/manifests/device_plugin.yaml"
VALUES = Path(__file__).with_name("values-cut.yaml")
BOARD = {"sku": "H100-80GB-SXM", "gpus": [{}]}
OPERANDS, AGENT = "gpu-operator", "agent-of-simulated-driver"
SILICON = ("-n", "tangram-silicon", "daemonset/silicon")
HOLD = "hold.tangram.dev/"


@dataclass(frozen=True, slots=True)
class CutNode:
    """The node, seen through the API and through its driver."""

    kube: Kube
    name: str
    nvml: Path
    initial: NvmlState

    def layout(self) -> list[str]:
        """The instances of the GPU as PROFILE@START; `gpu` alone where it is not cut."""
        with Admin(self.nvml) as admin:
            (gpu,) = from_json(_without_holders(admin.state()), self.initial.board).gpus
        return sorted(f"{one.profile}@{one.start}" for one in gpu.instances) if gpu.mig_mode else ["gpu"]

    def calls(self) -> Counter[str]:
        """How often each NVML function was called that real GPUs take a while for, by its name."""
        with Admin(self.nvml) as admin:
            return Counter(call["name"] for call in admin.calls() if call["name"] in SILICON_LATENCIES)

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
        command = ("printenv", "NVIDIA_VISIBLE_DEVICES")
        return self.kube.kubectl("exec", pod["metadata"]["name"], "--", *command).strip()

    def plan_of_changes(self, state: str) -> dict[str, Any]:
        """The newest FleetPlan that changes layouts, if it is in this state."""
        plans = [plan for plan in self.kube.get("fleetplans")["items"] if plan["spec"].get("changes")]
        newest = max(plans, key=lambda plan: plan["metadata"]["creationTimestamp"], default={})
        return newest if newest.get("status", {}).get("state") == state else {}


def _without_holders(raw: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key != "holders"}


def instant(text: str) -> datetime:
    """Parse a time of the API, which are in whole seconds."""
    return datetime.fromisoformat(text)


def ready_since(pod: dict[str, Any]) -> datetime:
    """When a pod became Ready."""
    (ready,) = [one for one in pod["status"]["conditions"] if one["type"] == "Ready"]
    assert ready["status"] == "True", ready
    return instant(ready["lastTransitionTime"])


@contextmanager
def cut_node(stage: Stage, provider: Local) -> Iterator[CutNode]:
    """Dress the node anew, install Tangram with its node agent; afterwards all is as it was."""
    kube = stage.cluster()
    for target in ("agent", AGENT):
        stage.add_image(target)
    (name,) = [node["metadata"]["name"] for node in kube.get("nodes")["items"]]
    initial = node_state(parse_machine(BOARD, name), name)
    clear(kube)
    with serving(initial, provider.folder_of_node("/var/lib/kubelet/pod-resources")) as nvml:
        with Admin(nvml) as admin:
            admin.set_latencies(SILICON_LATENCIES)
        try:
            _pause_board_file(kube, paused=True)
            text = MANIFEST.read_text().replace(
                "tangram.local/tangram-silicon:dev", stage.references["silicon"]
            )
            kube.apply(text)
            wait_until(lambda: install.gpu_resources(kube) == {"nvidia.com/gpu": 1}, 60, "one whole GPU")
            references = {**stage.references, "agent": stage.references[AGENT]}
            install.tangram(kube, references, values=(*stage.values, VALUES))
            wait_until(lambda: _reported(kube, name), 60, "the agent to report the GPU")
            yield CutNode(kube, name, nvml, initial)
        finally:
            stage.install_tangram()
            clear(kube)
            kube.kubectl("delete", "gpunode,fleetplan", "--all", "--wait", "--timeout=60s")
            kube.kubectl("delete", "-f", str(MANIFEST), "--ignore-not-found", "--wait", "--timeout=60s")
            _pause_board_file(kube, paused=False)
            wait_until(lambda: len(install.gpu_resources(kube)) == 2, 60, "the GPUs of the board file")


def _pause_board_file(kube: Kube, *, paused: bool) -> None:
    """End the stand-in that follows a board file, or start it again."""
    selector = {"paused": "true"} if paused else None
    patch = {"spec": {"template": {"spec": {"nodeSelector": selector}}}}
    kube.kubectl("patch", *SILICON, "--type=merge", "-p", json.dumps(patch))
    if paused:
        kube.kubectl("wait", "--for=delete", "pod", "--all", *SILICON[:2], "--timeout=60s")


def _reported(kube: Kube, name: str) -> bool:
    return bool(kube.get("gpunode", name).get("status", {}).get("gpus"))
