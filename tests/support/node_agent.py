"""A node for tests of the node agent: a simulated driver, a kubelet's pod-resources, and a recording API."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pynvml

from e2e.silicon.nvml import state as simulated
from e2e.silicon.nvml.in_process import StateLink
from e2e.silicon.nvml.state import Fault
from e2e.silicon.rpc import podresources_v1_pb2 as messages
from tangram.api.gpu_node import GPUNodeStatus
from tangram.fleet.shape import resource_name
from tangram.kube.client import ApiError
from tangram.packing.geometry.layouts import Placement
from tangram.partition.agent.device_plugin import DevicePluginPod
from tangram.partition.agent.driver_thread import DriverThread
from tangram.partition.agent.loop import NodeAgent
from tangram.partition.agent.pod_resources import PodResources
from tangram.partition.nvml import NVMLDriver
from tests.support.nvml_driver import nvml_state

CHANGING = ("Create", "Destroy", "Set")  # in the names of calls that change something on a GPU
START = datetime(2030, 1, 1, tzinfo=UTC)


class Kubelet:
    """The pod-resources API v1: the devices that pods hold, by (namespace, pod)."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.held: dict[tuple[str, str], list[str]] = {}
        # Devices of claims, by pod: the DRA driver, and the CDI names of one device.
        self.claimed: dict[tuple[str, str], list[tuple[str, list[str]]]] = {}
        self.fails = False
        self.delay_s = 0.0
        self.over = threading.Event()
        self.calls = 0

    def list(self, _request: Any, context: Any) -> Any:
        """Answer List."""
        self.calls += 1
        self.over.wait(self.delay_s)
        if self.fails:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the kubelet starts")
        return messages.ListPodResourcesResponse(
            pod_resources=[
                messages.PodResources(
                    name=name,
                    namespace=namespace,
                    containers=[
                        messages.ContainerResources(
                            name="main",
                            devices=[
                                messages.ContainerDevices(resource_name="nvidia.com/x", device_ids=[device])
                                for device in self.held.get((namespace, name), ())
                            ],
                            dynamic_resources=[
                                messages.DynamicResource(
                                    claim_name="claim",
                                    claim_namespace=namespace,
                                    claim_resources=[_claim_resource(*device)],
                                )
                                for device in self.claimed.get((namespace, name), ())
                            ],
                        )
                    ],
                )
                for namespace, name in {**self.held, **self.claimed}
            ]
        )

    @contextmanager
    def serving(self) -> Iterator[Kubelet]:
        """Serve within a block."""
        server = grpc.server(ThreadPoolExecutor(2))
        method = grpc.unary_unary_rpc_method_handler(
            self.list,
            request_deserializer=messages.ListPodResourcesRequest.FromString,
            response_serializer=messages.ListPodResourcesResponse.SerializeToString,
        )
        handler = grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": method})
        server.add_generic_rpc_handlers((handler,))
        assert server.add_insecure_port(f"unix://{self.socket}")
        server.start()
        try:
            yield self
        finally:
            self.over.set()
            server.stop(None).wait()


def _claim_resource(driver: str, cdi_names: list[str]) -> messages.ClaimResource:
    devices = [messages.CDIDevice(name=name) for name in cdi_names]
    return messages.ClaimResource(
        driver_name=driver, pool_name="node-a", device_name="gpu-0", cdi_devices=devices
    )


class RecordedObjects:
    """The objects of a node as an API server keeps them; `log` holds writes and NVML changes, in order."""

    def __init__(self, link: StateLink) -> None:
        self.link = link
        self.log: list[Any] = []
        self.obj: dict[str, Any] | None = {
            "metadata": {"name": "node-a", "uid": "uid-1", "generation": 1, "resourceVersion": "1"},
            "spec": {"gpus": []},
        }
        self.node_obj: dict[str, Any] | None = {
            "metadata": {"name": "node-a", "uid": "node-uid", "labels": {}},
            "status": {"nodeInfo": {"bootID": "boot-1"}, "allocatable": {"cpu": "8"}},
        }
        self.pods = [DevicePluginPod("gpu-operator", "plugin-0", "p-0", is_ready=True)]
        self.plugin_returns = True
        self.api_fails = False
        self.scan()

    def scan(self) -> None:
        """Offer the devices that there are, as a device plugin does when it starts."""
        assert self.node_obj is not None
        found: Counter[str] = Counter()
        for gpu in self.link.state.gpus:
            if gpu.mig_mode:
                found.update(resource_name(one.profile) for one in gpu.instances if one.compute_instances)
            elif not gpu.is_lost:
                found["nvidia.com/gpu"] += 1
        self.node_obj["status"]["allocatable"] = {"cpu": "8"} | {k: str(v) for k, v in found.items()}

    def gpu_node(self) -> dict[str, Any] | None:
        """Return the GPUNode."""
        if self.api_fails:
            raise ApiError(0, "Unreachable", "no API server")
        return json.loads(json.dumps(self.obj))

    def node(self) -> dict[str, Any] | None:
        """Return the Node."""
        return self.node_obj

    def apply_status(self, version: str, status: dict[str, Any]) -> None:
        """Keep a status, which has to be a valid one of the newest version."""
        assert self.obj is not None
        if version != self.obj["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        GPUNodeStatus.model_validate(status)
        self.obj["status"] = json.loads(json.dumps(status))
        self._next_version()
        self.log.append(("status", self.reason))

    def write_spec(self, spec: dict[str, Any]) -> None:
        """Write the spec, as the operator does."""
        assert self.obj is not None
        self.obj["spec"] = spec
        self.obj["metadata"]["generation"] += 1
        self._next_version()

    def _next_version(self) -> None:
        assert self.obj is not None
        self.obj["metadata"]["resourceVersion"] = str(int(self.obj["metadata"]["resourceVersion"]) + 1)

    def device_plugin_pods(self) -> list[DevicePluginPod]:
        """Return the pods of the device plugin."""
        return list(self.pods)

    def delete_pod(self, pod: DevicePluginPod) -> None:
        """Delete the pod; its DaemonSet makes another one."""
        self.log.append(("deleted", pod.name))
        self.pods.remove(pod)
        if self.plugin_returns:
            number = len(self.log)
            self.pods.append(
                DevicePluginPod("gpu-operator", f"plugin-{number}", f"p-{number}", is_ready=True)
            )
            self.scan()

    def condition(self, name: str = "Applied") -> dict[str, Any]:
        """Return a condition of the status."""
        conditions = ((self.obj or {}).get("status") or {}).get("conditions", ())
        return next((each for each in conditions if each["type"] == name), {})

    @property
    def reason(self) -> str:
        """The reason of Applied."""
        return str(self.condition().get("reason"))

    @property
    def status(self) -> dict[str, Any]:
        """The stored status."""
        return dict((self.obj or {}).get("status") or {})


class Killed(BaseException):
    """The process ended."""


class KillableBindings:
    """The module pynvml; the process is killed before a call that changes something once `left` are made."""

    def __init__(self, objects: RecordedObjects) -> None:
        self.left: int | None = None  # None: it lives on
        self._objects = objects

    def __getattr__(self, name: str) -> Any:
        if any(verb in name for verb in CHANGING):
            if self.left == 0:
                raise Killed
            if self.left is not None:
                self.left -= 1
            self._objects.log.append(("nvml", name))
        return getattr(pynvml, name)


class AgentNode:
    """A node on which agents run one after the other; the status and the driver are what stays."""

    def __init__(self, folder: Path, sku: str, *gpus: dict[str, Any]) -> None:
        self.link = StateLink(nvml_state(sku, *gpus))
        self.kubelet = Kubelet(folder / "kubelet.sock")
        self.objects = RecordedObjects(self.link)
        self.bindings = KillableBindings(self.objects)
        self.now = START
        self.gpus = [gpu.uuid for gpu in self.link.state.gpus]
        self.driver_deadline_s = 30.0

    def agent(self) -> NodeAgent:
        """Start an agent: it knows nothing."""
        driver = DriverThread(lambda: NVMLDriver(self.bindings), self.driver_deadline_s)
        pods = PodResources(self.kubelet.socket)
        return NodeAgent(self.objects, driver, pods, lambda: self.now, pause=self.sleep)

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)

    def settle(self, rounds: int = 40) -> None:
        """Let a new agent do rounds until it waits and writes nothing more; a second passes between them."""
        agent = self.agent()
        for _ in range(rounds):
            written = len(self.objects.log)
            if not agent.round() and len(self.objects.log) == written:
                return
            self.now += timedelta(seconds=1)
        raise AssertionError(f"still writing after {rounds} rounds: {self.objects.log[-10:]}")

    def want(self, *placements: Placement, gpu: int = 0, mig: bool = True) -> None:
        """Write a layout of one GPU into the spec."""
        assert self.objects.obj is not None
        wanted = [{"profile": each.profile, "start": each.start} for each in placements]
        others = [each for each in self.objects.obj["spec"]["gpus"] if each["id"] != self.gpus[gpu]]
        mine = {"id": self.gpus[gpu], "migEnabled": mig, "instances": wanted}
        self.objects.write_spec({"gpus": [*others, mine]})

    def layout(self, gpu: int = 0) -> list[str]:
        """Return the instances of a GPU as PROFILE@START; those without a device have a question mark."""
        instances = sorted(self.link.state.gpus[gpu].instances, key=lambda one: one.start)
        return [f"{one.profile}@{one.start}" + ("" if one.compute_instances else "?") for one in instances]

    def device(self, placement: Placement, gpu: int = 0) -> str:
        """Return the UUID of the device of an instance."""
        state = self.link.state
        return next(
            uuid
            for uuid, instance, _ in state.mig_devices(state.gpus[gpu])
            if (instance.start, instance.profile) == (placement.start, placement.profile)
        )

    def fail(self, call: str, code: str | None = None, **more: Any) -> None:
        """Let a call fail, or hang."""
        self.link.change(simulated.add_fault, Fault(call, code=code, **more))

    def changes(self) -> list[str]:
        """Calls that changed something, or tried to."""
        return [entry[1].removeprefix("nvml") for entry in self.objects.log if entry[0] == "nvml"]
