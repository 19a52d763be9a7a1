"""A real API server for tests of the operator, with the CRDs, GPU nodes and a simulated kubelet.

etcd, kube-apiserver, kube-controller-manager and kube-scheduler are the real programs. `Kubelet` watches the
pods that the scheduler has bound and patches their status as a kubelet would: Running and Ready; inspect pods
end with their report in the termination message; deleted pods are removed. It also renews the node leases.
"""

import asyncio
import contextlib
import json
import re
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tangram.kube.client import UNGUARDED, ApiClient, ApiError
from tangram.kube.kinds import (
    DEPLOYMENTS,
    FLEET_PLANS,
    GPU_POOLS,
    JOBS,
    LEASES,
    LLM_DEPLOYMENTS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    REPLICA_SETS,
    SERVICES,
    Kind,
)
from tangram.kube.kubeconfig import load_kubeconfig
from tangram.shell.write.stalled_rollouts import DESIRED_ANNOTATION
from tests.support.observed_pods import ObservedPods
from tests.support.operator_forks import OperatorFork, operator_forks

CRDS = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
NAMESPACES = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
CRD_FOLDER = Path(__file__).parents[2] / "crds"
MANAGER = "tests"

FACTS = {
    "architecture": "LlamaForCausalLM",
    "digest": "sha256:" + "0" * 64,
    "dtype": "bf16",
    "layers": 16,
    "hiddenSize": 2048,
    "heads": 32,
    "kvHeads": 8,
    "headDim": 64,
    "vocabSize": 128256,
    "maxPositionEmbeddings": 8192,
    "parameters": 1235814400,
    "weightBytes": 2471645608,
    "embeddingBytes": 525336576,
    "tiedEmbeddings": True,
    "attentionBias": False,
    "qkNorm": False,
}


def report(**changes: Any) -> str:
    """The report of a successful inspection."""
    return json.dumps({"schema": 1, "facts": FACTS | changes})


def refusal(reason: str, message: str) -> str:
    """The report of a checkpoint that cannot be served."""
    return json.dumps({"schema": 1, "error": {"reason": reason, "message": message}})


def evaluation_report(**changes: Any) -> str:
    """The report of a successful evaluation of int4, within the default tolerance."""
    figures = {
        "digest": FACTS["digest"],
        "format": "int4",
        "groupSize": 128,
        "tokens": 4000,
        "perplexity": 6.0,
        "quantisedPerplexity": 6.06,
        "perplexityIncrease": 0.01,
        "standardError": 0.001,
        "top1Agreement": 0.97,
        "klMean": 0.02,
        "klP99": 0.3,
        "text": "built-in",
        "dtype": "bfloat16",
        "device": "NVIDIA H100 80GB HBM3",
        "versions": {"tangram": "0", "torch": "2"},
        "seconds": 12.5,
    }
    return json.dumps({"schema": 1, "evaluation": figures | changes})


def llm(name: str, namespace: str, **spec: Any) -> dict[str, Any]:
    """An LLMDeployment; `model` is filled in."""
    return {
        "apiVersion": LLM_DEPLOYMENTS.api_version,
        "kind": LLM_DEPLOYMENTS.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"model": {"uri": "image:///models/tangram-tiny"}} | spec,
    }


def priority_class(name: str, value: int, **changes: Any) -> dict[str, Any]:
    """A PriorityClass that LLMDeployments may name."""
    return {
        "apiVersion": PRIORITY_CLASSES.api_version,
        "kind": PRIORITY_CLASSES.kind,
        "metadata": {"name": name, "labels": {"tangram.dev/priority-class": "true"}},
        "value": value,
        "preemptionPolicy": "Never",
    } | changes


def gpu_node(name: str, gpus: int = 64, product: str = "NVIDIA-H100-80GB-HBM3") -> dict[str, Any]:
    """A node with the labels and resources of NVIDIA's GFD and device plugin."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"nvidia.com/gpu.product": product, "kubernetes.io/hostname": name},
        },
        "status": {
            "allocatable": _capacity(gpus),
            "capacity": _capacity(gpus),
            "conditions": [_ready("KubeletReady")],
        },
    }


def _capacity(gpus: int) -> dict[str, str]:
    return {
        "cpu": "4096",
        "memory": "16Ti",
        "pods": "1000",
        "ephemeral-storage": "1Ti",
        "nvidia.com/gpu": str(gpus),
    }


def _ready(reason: str) -> dict[str, str]:
    return {"type": "Ready", "status": "True", "reason": reason, "message": "", "lastHeartbeatTime": now()}


def now() -> str:
    """The current time in the format of the API."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def misnote_the_replica_set(cluster: "LiveCluster") -> None:
    """Annotate the only ReplicaSet as kubernetes/kubernetes#102551 does: its rollout stalls."""
    (replica_set,) = await cluster.all(REPLICA_SETS)
    note = {"metadata": {"annotations": {DESIRED_ANNOTATION: "9"}}}
    await cluster.client.merge(
        REPLICA_SETS, cluster.namespace, replica_set["metadata"]["name"], note, guard=UNGUARDED
    )


PATIENCE = 3.0
"""By how much the machine of these tests may be slower than an idle one of two cores."""

POLL_S = 0.2
"""Between two looks at the API server: a look costs it and the test some hundredths of a processor second."""


async def eventually(check: Callable[[], Awaitable[Any]], within_s: float = 20.0, what: str = "") -> Any:
    """Poll until `check` returns a true value; fail with its last value.

    `within_s`: for an idle machine. Tests assert durations on their own.
    """
    within_s *= PATIENCE
    deadline, last = time.monotonic() + within_s, None
    while time.monotonic() < deadline:
        try:
            last = await check()
        except (ApiError, OSError) as error:
            last = error
        if last and not isinstance(last, Exception):
            return last
        await asyncio.sleep(POLL_S)
    raise AssertionError(
        f"{what or getattr(check, '__name__', 'it')} not within {within_s:g} s; last: {last!r}"
    )


@dataclass
class Kubelet:
    """Simulates every kubelet. `reports` maps a model URI to the termination message and exit code of its
    inspection.
    """

    client: ApiClient
    reports: dict[str, tuple[str, int]] = field(default_factory=dict)
    evaluations: dict[str, tuple[str, int]] = field(
        default_factory=dict
    )  # likewise; without an entry it goes on
    fetches: dict[str, tuple[str, int]] = field(default_factory=dict)  # likewise, of `fetch` in inspections
    ready: Callable[[dict[str, Any]], bool] = lambda _pod: True
    hold: bool = False  # True: pods stay as they are
    pods: ObservedPods = field(init=False)
    _handled: dict[str, str] = field(default_factory=dict)  # the version of a pod that was acted on, by UID

    def __post_init__(self) -> None:
        self.pods = ObservedPods(self.client)

    @contextlib.asynccontextmanager
    async def playing(self) -> AsyncIterator[None]:
        """Run during the block; it is never cancelled inside a write, and its errors are raised."""
        over = asyncio.Event()
        async with self.pods.followed():
            task = asyncio.create_task(self._run(over))
            try:
                yield
            finally:
                over.set()
                await task

    async def _run(self, over: asyncio.Event) -> None:
        beat = 0.0
        while not over.is_set():
            try:
                if time.monotonic() - beat > 8:
                    await self._heartbeat()
                    beat = time.monotonic()
                if not self.hold:
                    await self._play_all()
            except (ApiError, aiohttp.ClientError, TimeoutError):
                pass  # the API server is down on purpose, or another writer was faster
            await asyncio.sleep(POLL_S)

    async def _heartbeat(self) -> None:
        for node in (await self.client.list(NODES)).items:
            conditions = node.get("status", {}).get("conditions", ())
            if not any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
                # After an outage the node controller marks nodes unready; a kubelet reports them ready.
                alive = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node["metadata"]["name"]}}
                status = {"conditions": [_ready("KubeletReady")]}
                await self.client.apply(
                    NODES,
                    alive | {"status": status},
                    manager="heartbeat",
                    force=True,
                    subresource="status",
                    guard=UNGUARDED,
                )
            lease = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": {"name": node["metadata"]["name"], "namespace": "kube-node-lease"},
                "spec": {
                    "holderIdentity": node["metadata"]["name"],
                    "leaseDurationSeconds": 40,
                    "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                },
            }
            await self.client.apply(LEASES, lease, manager="kubelet", force=True, guard=UNGUARDED)

    async def _play_all(self) -> None:
        """Act on each pod whose last version was not acted on: the watch may show a write a little later."""
        for uid, pod in list(self.pods.by_uid.items()):
            version = pod["metadata"]["resourceVersion"]
            if self._handled.get(uid) != version and await self._play(pod):
                self._handled[uid] = version

    async def _play(self, pod: dict[str, Any]) -> bool:
        """Do what is due for a pod; return whether something was done."""
        meta, status = pod["metadata"], pod.get("status", {})
        if meta.get("deletionTimestamp"):
            return await self._remove(pod)
        if pod["spec"].get("nodeName") and status.get("phase") == "Pending":
            component = meta.get("labels", {}).get("app.kubernetes.io/component")
            uri = meta.get("annotations", {}).get("tangram.dev/model-uri", "")
            if component == "inspect" and self.fetches.get(uri, ("", 0))[1]:
                waits = {"waiting": {"reason": "PodInitializing"}}
                await self._patch(pod, "Failed", waits, ready=False)
                return True
            if component == "inspect":
                await self._ended(pod, *self.reports.get(uri, (report(), 0)))
                return True
            if component == "evaluate":
                if uri in self.evaluations:
                    await self._ended(pod, *self.evaluations[uri])
                return uri in self.evaluations
            if self.ready(pod):
                await self._patch(pod, "Running", {"running": {"startedAt": now()}}, ready=True)
                return True
        return False

    async def _ended(self, pod: dict[str, Any], message: str, code: int) -> None:
        ended = {
            "exitCode": code,
            "message": message,
            "reason": "Completed",
            "startedAt": now(),
            "finishedAt": now(),
        }
        await self._patch(pod, "Failed" if code else "Succeeded", {"terminated": ended}, ready=False)

    async def _patch(self, pod: dict[str, Any], phase: str, state: dict[str, Any], *, ready: bool) -> None:
        meta, name = pod["metadata"], pod["spec"]["containers"][0]["name"]
        container = {
            "name": name,
            "state": state,
            "ready": ready,
            "restartCount": 0,
            "image": "x",
            "imageID": "x",
        }
        conditions = [
            {"type": kind, "status": str(ready), "lastTransitionTime": now()}
            for kind in ("Ready", "ContainersReady")
        ]
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
            "status": {
                "phase": phase,
                "conditions": conditions,
                "containerStatuses": [container],
                "initContainerStatuses": self._fetched(pod),
                "startTime": now(),
            },
        }
        await self.client.apply(
            PODS, body, manager="kubelet", force=True, subresource="status", guard=UNGUARDED
        )

    def _fetched(self, pod: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the state of the container that fetches, of pods with one."""
        uri = pod["metadata"].get("annotations", {}).get("tangram.dev/model-uri", "")
        message, code = self.fetches.get(uri, ("", 0))
        ended = {"exitCode": code, "message": message, "startedAt": now(), "finishedAt": now()}
        return [
            {
                "name": container["name"],
                "state": {"terminated": ended},
                "ready": not code,
                "restartCount": 0,
                "image": "x",
                "imageID": "x",
            }
            for container in pod["spec"].get("initContainers") or ()
        ]

    async def _remove(self, pod: dict[str, Any]) -> bool:
        """Delete a pod that ends; return whether the API server accepted that."""
        meta = pod["metadata"]
        finalizers = meta.get("finalizers") or []
        phase = pod.get("status", {}).get("phase")
        if finalizers and phase not in ("Succeeded", "Failed"):  # the Job controller waits for a final phase
            await self._patch(pod, "Failed", {"terminated": {"exitCode": 137}}, ready=False)
        path = PODS.path(meta["namespace"], meta["name"])
        session, base = self.client._session, self.client.credentials.server
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
        async with session.delete(base + path, json=options) as response:
            await response.read()
            return response.status in (200, 202, 404)


@dataclass
class LiveCluster:
    """A real API server for one test: an admin client, a namespace of its own, and the simulated kubelet."""

    client: ApiClient
    kubeconfig: Path
    namespace: str
    kubelet: Kubelet
    folder: Path

    async def apply(
        self, obj: dict[str, Any], kind: Kind = LLM_DEPLOYMENTS, manager: str = MANAGER
    ) -> dict[str, Any]:
        """Apply an object as a user."""
        return await self.client.apply(kind, obj, manager=manager, force=True, guard=UNGUARDED)

    async def get(self, kind: Kind, name: str) -> dict[str, Any] | None:
        """One object of this namespace."""
        return await self.client.get(kind, self.namespace, name)

    async def all(self, kind: Kind) -> list[dict[str, Any]]:
        """All objects of a kind in this namespace."""
        return (await self.client.list(kind, self.namespace)).items

    async def delete(self, kind: Kind, name: str) -> None:
        """Delete an object of this namespace."""
        obj = await self.get(kind, name)
        if obj is not None:
            await self.client.delete(kind, self.namespace, name, uid=obj["metadata"]["uid"], guard=UNGUARDED)

    async def condition(self, name: str, kind: str) -> dict[str, Any]:
        """One condition of an LLMDeployment, empty where it has none."""
        return _condition(await self.get(LLM_DEPLOYMENTS, name), kind)

    async def until(
        self, name: str, kind: str, status: str, reason: str = "", within_s: float = 30.0
    ) -> dict[str, Any]:
        """Wait for a condition; return it."""

        async def check() -> dict[str, Any] | None:
            obj = await self.get(LLM_DEPLOYMENTS, name)
            found = _condition(obj, kind)
            current = obj is not None and found.get("observedGeneration") == obj["metadata"]["generation"]
            right = found.get("status") == status and reason in ("", found.get("reason"))
            return found if current and right else None

        async def status_text() -> str:
            obj = await self.get(LLM_DEPLOYMENTS, name)
            return json.dumps((obj or {}).get("status"), indent=1)

        try:
            return await eventually(check, within_s, f"{kind}={status} {reason} of {name}")
        except AssertionError as error:
            raise AssertionError(f"{error}\nstatus: {await status_text()}") from None

    async def empty(self) -> None:
        """Delete all that holds GPUs: tests share the nodes."""
        self.kubelet.hold = False
        for kind in (LLM_DEPLOYMENTS, DEPLOYMENTS, JOBS, SERVICES, GPU_POOLS, FLEET_PLANS):
            with contextlib.suppress(ApiError):
                for obj in await self.all(kind):
                    await self.delete(kind, obj["metadata"]["name"])
        with contextlib.suppress(ApiError):
            for pod in await self.all(PODS):
                if not pod["metadata"].get("ownerReferences"):  # the others end with their owners
                    await self.delete(PODS, pod["metadata"]["name"])

        async def gone() -> bool:
            return not [obj for kind in (PODS, DEPLOYMENTS, JOBS, SERVICES) for obj in await self.all(kind)]

        with contextlib.suppress(AssertionError):
            await eventually(gone, 10)

    async def final_state(self) -> dict[str, Any]:
        """What a person would call the result: children and conditions, without names of pods, versions
        and times.
        """
        return {
            "deployments": {
                d["metadata"]["name"]: (
                    d["spec"],
                    d["metadata"].get("labels"),
                    d.get("status", {}).get("readyReplicas"),
                )
                for d in await self.all(DEPLOYMENTS)
            },
            "services": {
                s["metadata"]["name"]: (s["spec"]["selector"], s["spec"]["ports"])
                for s in await self.all(SERVICES)
            },
            "jobs": sorted(j["metadata"]["name"] for j in await self.all(JOBS)),
            "statuses": {
                o["metadata"]["name"]: _timeless(o.get("status")) for o in await self.all(LLM_DEPLOYMENTS)
            },
        }


def _condition(obj: dict[str, Any] | None, kind: str) -> dict[str, Any]:
    conditions = ((obj or {}).get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == kind), {})


def _timeless(part: Any) -> Any:
    if isinstance(part, dict):
        return {k: _timeless(v) for k, v in part.items() if k not in ("lastTransitionTime", "time")}
    if isinstance(part, str):
        return re.sub(r" \(since [^)]*\)", "", part)
    return [_timeless(item) for item in part] if isinstance(part, list) else part


async def prepare(kubeconfig: Path) -> None:
    """Install the CRDs and create two GPU nodes."""
    client = ApiClient(load_kubeconfig(str(kubeconfig)))
    try:
        for file in sorted(CRD_FOLDER.glob("*.yaml")):
            await client.apply(
                CRDS, yaml.safe_load(file.read_text()), manager=MANAGER, force=True, guard=UNGUARDED
            )
        for kind in (LLM_DEPLOYMENTS, GPU_POOLS, FLEET_PLANS):
            await eventually(lambda kind=kind: client.served(kind), what=f"{kind.plural} served")  # type: ignore[misc]
        await add_node(client, gpu_node("gpu-1"))
        await add_node(client, gpu_node("gpu-2", product="NVIDIA-A100-SXM4-80GB"))
    finally:
        await client.close()


async def add_node(client: ApiClient, node: dict[str, Any], taints: int = 0) -> None:
    """Create a node with its status; `taints`: how many it has of its own."""
    bare = {key: value for key, value in node.items() if key != "status"}
    await client.apply(NODES, bare, manager=MANAGER, force=True, guard=UNGUARDED)
    await client.apply(NODES, node, manager="kubelet", force=True, subresource="status", guard=UNGUARDED)

    async def untainted() -> bool:
        found = await client.get(NODES, "", node["metadata"]["name"])
        return found is not None and len(found["spec"].get("taints") or ()) <= taints

    await eventually(untainted, what="the node controller sees the node ready")


@contextlib.asynccontextmanager
async def live_cluster(kubeconfig: Path, folder: Path) -> AsyncIterator[LiveCluster]:
    """Create a namespace for one test; delete it at the end."""
    client = ApiClient(load_kubeconfig(str(kubeconfig)))
    namespace = f"t-{secrets.token_hex(4)}"
    await client.apply(
        NAMESPACES,
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        manager=MANAGER,
        force=True,
        guard=UNGUARDED,
    )
    kubelet = Kubelet(client)
    this = LiveCluster(client, kubeconfig, namespace, kubelet, folder)
    try:
        async with kubelet.playing():
            try:
                await eventually(
                    lambda: client.get(
                        Kind("", "v1", "serviceaccounts", "ServiceAccount"), namespace, "default"
                    )
                )
                yield this
            finally:
                await this.empty()
    finally:
        await client.close()


@dataclass
class OperatorProcess:
    """`python -m tangram` as a process of its own; a restart has another seed of hashes."""

    config: Path
    kubeconfig: Path
    log: Path
    process: subprocess.Popen[bytes] | OperatorFork | None = None
    starts: int = 0

    def start(self, *, new_interpreter: bool = False) -> "OperatorProcess":
        """Start it (again), as a fork unless `new_interpreter`."""
        self.starts += 1
        arguments = ["--config", str(self.config), "--kubeconfig", str(self.kubeconfig)]
        folder = self.config.parent
        if not new_interpreter:
            self.process = operator_forks(self.starts % 2).start(arguments, folder, self.log)
            return self
        command = [sys.executable, "-P", "-m", "tangram", *arguments]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        return self

    @property
    def pid(self) -> int:
        """Process id."""
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """Send SIGKILL."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)

    async def stop(self) -> int:
        """Send SIGTERM and wait (in a thread: the proxy must continue); return the exit code."""
        assert self.process is not None
        self.process.terminate()
        return await asyncio.to_thread(self.process.wait, 30)

    def alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.poll() is None

    def logs(self) -> str:
        """Its whole output."""
        return self.log.read_text() if self.log.exists() else ""
