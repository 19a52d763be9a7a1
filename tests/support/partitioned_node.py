"""A node of a real API server whose GPUs are simulated behind NVML: agent, device plugin and kubelet of it.

The agent is a real process that calls the real pynvml. The device plugin offers what the driver had when its
pod started, holds all GPUs open, and does not start on a node that is held. The kubelet keeps what it offered
in the capacity, gives a pod free devices of what is offered, tells them by pod-resources, and starts a
process on each; a pod for which there is no device any more fails, as in a real kubelet.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.silicon.nvml.connection import Admin, Connection
from e2e.silicon.nvml.daemon import serving
from e2e.silicon.nvml.library import environment
from e2e.silicon.nvml.state import NvmlState, from_json
from tangram.eligibility.devices.tolerations import HOLD_PREFIX
from tangram.fleet.pod_requests import gpu_requests
from tangram.fleet.shape import resource_name
from tangram.kube.client import ApiError
from tangram.kube.kinds import GPU_NODES, NODES, PODS
from tests.support.apiserver import NAMESPACES, UNGUARDED, LiveCluster, add_node, gpu_node
from tests.support.node_agent import Kubelet

OPERANDS = "gpu-operator"
PLUGIN_LABELS = {"app": "nvidia-device-plugin-daemonset"}
POLL_S = 0.2
PLUGIN_START_S = 2.0  # from the end of the device plugin's pod until the next one has begun


@dataclass
class PartitionedNode:
    """One node."""

    cluster: LiveCluster
    name: str
    nvml: Path  # socket of the simulated driver
    board: NvmlState
    kubelet: Kubelet
    folder: Path
    offered: dict[str, list[str]] = field(default_factory=dict)  # device ids by resource, as last scanned
    allocated: dict[str, tuple[str, str, list[str], list[int]]] = field(default_factory=dict)  # by pod UID
    errors: list[str] = field(default_factory=list)  # pods for which there was no device
    capacity: dict[str, int] = field(default_factory=dict)  # of the node, by resource
    starts: int = 0  # of the device plugin
    plugin: Connection | None = None  # the device plugin as a client of the driver: it holds all GPUs
    plugin_ended: float = -math.inf  # on the monotonic clock
    tolerates_holds: bool = False  # the device plugin; NVIDIA's does not
    agent: subprocess.Popen[bytes] | None = None
    managed: bool = False  # by mig-manager, which has no agent; it offers the devices itself

    def state(self) -> NvmlState:
        """Return the state of the driver."""
        with Admin(self.nvml) as admin:
            return from_json(admin.state(), self.board.board)

    def layouts(self) -> list[list[str]]:
        """Return the instances of each GPU as PROFILE@START; `gpu` for one that is not cut."""
        return [
            sorted(f"{one.profile}@{one.start}" for one in gpu.instances) if gpu.mig_mode else ["gpu"]
            for gpu in self.state().gpus
        ]

    def devices(self) -> dict[str, list[str]]:
        """Return the ids of the devices that the driver has, by resource."""
        state, found = self.state(), dict[str, list[str]]()
        for gpu in state.gpus:
            if not gpu.mig_mode:
                found.setdefault(resource_name("gpu"), []).append(gpu.uuid)
            for uuid, instance, _ in state.mig_devices(gpu):
                found.setdefault(resource_name(instance.profile), []).append(uuid)
        return found

    def start_agent(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the agent's process (again)."""
        command = [sys.executable, "-P", "-m", "tangram.partition.agent", "--node-name", self.name]
        command += ["--kubeconfig", str(self.cluster.kubeconfig), "--interval-s", "1"]
        command += ["--pod-resources-socket", str(self.kubelet.socket), *arguments]
        env = {**os.environ, **environment(self.nvml)}
        with (self.folder / "agent.log").open("ab") as log:
            self.agent = subprocess.Popen(command, env=env, cwd=self.folder, stdout=log, stderr=log)
        return self.agent

    def start_mig_manager(self, api: str, config_map: str, **faults: int) -> None:
        """Start the stand-in of mig-manager. `api`: address of the API server, without TLS."""
        command = [sys.executable, "-P", "-m", "e2e.silicon.mig_manager", "--node", self.name, "--api", api]
        command += ["--nvml", str(self.nvml), "--config-map", config_map, "--lag-s", "0.5"]
        command += ["--step-s", "0.05", "--faults", json.dumps(faults)]
        env = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        with (self.folder / "agent.log").open("ab") as log:
            self.agent = subprocess.Popen(command, env=env, cwd=self.folder, stdout=log, stderr=log)

    def stop_agent(self) -> None:
        """Kill the agent, or mig-manager."""
        if self.agent is not None and self.agent.poll() is None:
            self.agent.kill()
            self.agent.wait(20)

    async def reboot(self) -> None:
        """Reboot the node: its slices and processes are gone, the kubelet starts its pods again."""
        with Admin(self.nvml) as admin:
            admin.reboot()
        self.allocated.clear()
        self.kubelet.held.clear()
        self.capacity.clear()
        await self.restart_plugin()

    async def restart_plugin(self) -> None:
        """End the device plugin's pod; another one follows."""
        for pod in (await self.cluster.client.list(PODS, OPERANDS)).items:
            if pod["spec"].get("nodeName") == self.name:
                meta = pod["metadata"]
                uid = meta["uid"]
                await self.cluster.client.delete(PODS, OPERANDS, meta["name"], uid=uid, guard=UNGUARDED)

    async def gpu_node(self) -> dict[str, Any]:
        """Return the GPUNode, empty where there is none."""
        return await self.cluster.client.get(GPU_NODES, "", self.name) or {}

    async def play(self, over: asyncio.Event) -> None:
        """Be kubelet and DaemonSet of the device plugin until `over`."""
        while not over.is_set():
            with contextlib.suppress(ApiError, OSError):
                if self.managed:
                    self.offered = self.devices()
                else:
                    await self._play_plugin()
                self._play_pods()
            await asyncio.sleep(POLL_S)

    async def _play_plugin(self) -> None:
        if any(self._is_plugin(pod) for pod in self.cluster.kubelet.pods.by_uid.values()):
            return
        if self.plugin is not None:  # it has ended: its handles are closed, and the kubelet offers nothing
            self.plugin.close()
            self.plugin, self.offered, self.plugin_ended = None, {}, time.monotonic()
            await self._offer()
        if time.monotonic() - self.plugin_ended < PLUGIN_START_S:
            return
        node = await self.cluster.client.get(NODES, "", self.name) or {}
        taints = node.get("spec", {}).get("taints") or ()
        if not self.tolerates_holds and any(taint["key"].startswith(HOLD_PREFIX) for taint in taints):
            return
        self.starts += 1
        self.offered, self.plugin = self.devices(), Connection(self.nvml)
        for index in range(len(self.board.gpus)):
            self.plugin.request(verb="call", name="nvmlDeviceGetHandleByIndex", arguments=[index])
        await self._offer()
        meta = {"name": f"plugin-{self.name}-{self.starts}", "namespace": OPERANDS, "labels": PLUGIN_LABELS}
        spec = {
            "nodeName": self.name,
            "containers": [{"name": "plugin", "image": "plugin"}],
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        }
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        pod = await self.cluster.client.create(PODS, body, manager="plugin", guard=UNGUARDED)
        # The watch may show it a little later.
        self.cluster.kubelet.pods.by_uid.setdefault(pod["metadata"]["uid"], pod)
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await self._status(PODS, {"name": meta["name"], "namespace": OPERANDS}, "v1", "Pod", ready)

    def _is_plugin(self, pod: dict[str, Any]) -> bool:
        return pod["metadata"]["namespace"] == OPERANDS and pod["spec"].get("nodeName") == self.name

    async def _offer(self) -> None:
        """Report the devices on offer; the capacity keeps those of former layouts, as a kubelet's does."""
        counts = {resource: len(ids) for resource, ids in self.offered.items()}
        self.capacity |= counts
        allocatable = dict.fromkeys(self.capacity, 0) | counts
        status = {"allocatable": _texts(allocatable), "capacity": _texts(self.capacity)}
        await self._status(NODES, {"name": self.name}, "v1", "Node", status)

    async def _status(self, kind: Any, meta: dict[str, Any], version: str, name: str, status: Any) -> None:
        body = {"apiVersion": version, "kind": name, "metadata": meta, "status": status}
        await self.cluster.client.apply(
            kind, body, manager="plugin", force=True, subresource="status", guard=UNGUARDED
        )

    def _play_pods(self) -> None:
        pods = {
            uid: pod
            for uid, pod in self.cluster.kubelet.pods.by_uid.items()
            if pod["spec"].get("nodeName") == self.name
            and gpu_requests(pod["spec"])
            and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
        }
        with Admin(self.nvml) as admin:
            for uid in self.allocated.keys() - pods.keys():
                namespace, name, _, processes = self.allocated.pop(uid)
                for process in processes:
                    admin.stop_process(process)
                self.kubelet.held.pop((namespace, name), None)
            for uid, pod in pods.items():
                if uid not in self.allocated:
                    self._allocate(uid, pod, admin)

    def _allocate(self, uid: str, pod: dict[str, Any], admin: Admin) -> None:
        """Give a new pod its devices."""
        meta, existing = pod["metadata"], {each for ids in self.devices().values() for each in ids}
        used = {device for _, _, devices, _ in self.allocated.values() for device in devices}
        for resource, count in gpu_requests(pod["spec"]).items():
            free = [each for each in self.offered.get(resource, ()) if each not in used][: int(count)]
            if len(free) < int(count) or not existing.issuperset(free):
                self.errors.append(f"{meta['name']}: no {resource}: {free}")
                continue
            processes = [admin.start_process(device) for device in free]
            self.allocated[uid] = (meta["namespace"], meta["name"], free, processes)
            self.kubelet.held[meta["namespace"], meta["name"]] = free


def _texts(counts: dict[str, int]) -> dict[str, str]:
    return {resource: str(count) for resource, count in counts.items()}


@contextlib.asynccontextmanager
async def partitioned_node(
    cluster: LiveCluster,
    name: str,
    state: NvmlState,
    labels: dict[str, str],
    taints: list[dict[str, str]] | None = None,
    *,
    managed: bool = False,
) -> AsyncIterator[PartitionedNode]:
    """Add a node to the cluster; remove it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="node"))  # a Unix socket's path must stay below 108 characters
    over = asyncio.Event()
    client = cluster.client
    with (
        contextlib.ExitStack() as stack,
        serving(state, folder) as nvml,
        Kubelet(folder / "kubelet.sock").serving() as kubelet,
    ):
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        with contextlib.suppress(ApiError):  # it exists
            operands = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPERANDS}}
            await client.create(NAMESPACES, operands, manager="plugin", guard=UNGUARDED)
        node = gpu_node(name, gpus=len(state.gpus))
        node["metadata"]["labels"] |= {"nvidia.com/gpu.count": str(len(state.gpus))} | labels
        node["spec"] = {"taints": taints or []}
        await add_node(client, node, len(taints or ()))
        made = PartitionedNode(cluster, name, nvml, state, kubelet, folder, managed=managed)
        made.capacity[resource_name("gpu")] = 0  # the node was added with whole GPUs, cut or not
        made.tolerates_holds = bool(taints)  # without, nothing would ever start on a node that is held first
        stack.callback(made.stop_agent)
        task = asyncio.create_task(made.play(over))
        if not managed:
            made.start_agent()
        try:
            yield made
        finally:
            file = folder / "agent.log"
            log = file.read_text()[-4000:] if file.exists() else ""
            print(f"--- agent of {name}\n{log}\n{json.dumps(await made.gpu_node(), indent=1)[-6000:]}")  # noqa: T201
            await cluster.empty()
            over.set()
            await task
            for kind in (NODES, GPU_NODES):
                live = await client.get(kind, "", name)
                if live is not None:
                    await client.delete(kind, "", name, uid=live["metadata"]["uid"], guard=UNGUARDED)
