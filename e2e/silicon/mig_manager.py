"""A stand-in for NVIDIA's mig-manager: what the labels of a node do to a simulated driver, with its defects.

    python -m e2e.silicon.mig_manager --node N --nvml SOCKET --config-map gpu-operator/tangram-mig-config

Source: NVIDIA/mig-parted (cmd/nvidia-mig-manager, pkg/mig): the order of its actions, which failures leave
which labels, GPUs with equal counts skipped, others cleared and created at default positions in any order
that works, all GPUs in MIG mode cleared where a mode changes, no pod evicted.

The components that it pauses are `Components`: the device plugin and GPU feature discovery. Where no kubelet
runs, `OfferedByStatus` writes what both would bring about; else they are pods of a DaemonSet, `DeployedPods`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

import yaml

from e2e.silicon.catalog import load_board
from e2e.silicon.device_sources import machine_of
from e2e.silicon.labels import gfd_labels
from e2e.silicon.node import Api, set_labels
from e2e.silicon.nvml.codes import CallFailed, ReturnCode
from e2e.silicon.nvml.connection import Admin
from e2e.silicon.nvml.library import DaemonLink
from e2e.silicon.nvml.state import COMPUTE_PROFILE_SIZES, NvmlState, from_json

CONFIG, STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
DEPLOY, PAUSED = "nvidia.com/gpu.deploy.", "paused-for-mig-change"
PAUSED_COMPONENTS = ("device-plugin", "gpu-feature-discovery", "dcgm-exporter", "dcgm", "nvsm")
DEPLOYED = ("mig-manager", *PAUSED_COMPONENTS)
Labels = Mapping[str, str | None]


class Link(Protocol):
    """Calls of NVML: `nvml.library.DaemonLink`, or `nvml.in_process.StateLink`."""

    def call(self, name: str, arguments: Sequence[Any], *, initialized: bool) -> tuple[ReturnCode, Any]:
        """Make one call."""


class NodeLabels(Protocol):
    """The labels of the node."""

    def read(self) -> dict[str, str]:
        """Return all labels."""

    def write(self, labels: Labels) -> None:
        """Set labels; None removes one."""


class Components(Protocol):
    """What runs on the node unless it is paused."""

    def stop(self) -> None:
        """End the device plugin and GPU feature discovery."""

    def start(self) -> None:
        """Start them: they see the devices that there are now."""


@dataclass(slots=True)
class Faults:
    """What goes wrong, how often from now on."""

    stuck: int = 0  # a component does not end in time: pending stays, components stay paused (mig-parted#485)
    fails: int = 0  # a profile is refused after the GPU was cleared
    needs_reboot: int = 0  # the MIG mode changes with a reboot only (WITH_REBOOT=true)

    def take(self, name: str) -> bool:
        """Whether this goes wrong now."""
        left = getattr(self, name)
        setattr(self, name, max(0, left - 1))
        return bool(left)


@dataclass(slots=True)
class MIGManager:
    """mig-manager as a sequence of steps. `file` returns the entries of the mounted file at this moment.

    Each `next` of `run` does what is visible as one change from outside, so that tests can stop in between.
    """

    labels: NodeLabels
    link: Link
    components: Components
    file: Callable[[], Mapping[str, Any]]
    reboot: Callable[[], None] = lambda: None
    faults: Faults = field(default_factory=Faults)

    def run(self) -> Iterator[str]:
        """Follow the label for ever; yields what was done. A new process begins with the label as it is."""
        seen: str | None = None
        while True:
            value = self.labels.read().get(CONFIG)
            if value is None or value == seen:  # the same value again does nothing
                yield "idle"
                continue
            seen = value
            yield from self._reconfigure(value)

    def _reconfigure(self, value: str) -> Iterator[str]:
        self._paused_here = []  # what another attempt left paused counts as what it was
        wanted = _counts(self.file().get(value), self._call("nvmlDeviceGetCount"))
        if wanted is None:  # the file lags behind, or there is no such entry
            self.labels.write({STATE: "failed"})
            yield "refused"
            return
        rebooted = self.labels.read().get(STATE) == "rebooting"
        if self._observed() == wanted:
            self.labels.write({STATE: "success"})
            yield "unchanged"
            return
        self.labels.write({STATE: "pending"})
        yield "pending"
        self.labels.write(self._pauses())
        self.components.stop()
        yield "paused"
        if self.faults.take("stuck"):
            yield "stuck"
            return
        try:
            needs_reboot = self._set_modes(wanted, rebooted=rebooted)
            if needs_reboot:
                self.labels.write({STATE: "rebooting"})
                yield "rebooting"
                self.reboot()
                yield from self._reconfigure(value)  # the next process
                return
            yield "modes"
            self._set_geometry(wanted)
        except CallFailed:
            state = "failed"
        else:
            state = "success"
        yield "geometry"
        self._restart()
        self.labels.write({STATE: state})
        yield state

    def _pauses(self) -> Labels:
        """Pause what runs. What is paused already stays so, and is not restarted later."""
        present = self.labels.read()
        names = [DEPLOY + name for name in PAUSED_COMPONENTS]
        self._paused_here = [name for name in names if present.get(name, "true") == "true"]
        return dict.fromkeys(self._paused_here, PAUSED)

    _paused_here: list[str] = field(default_factory=list)

    def _restart(self) -> None:
        if self._paused_here:
            self.labels.write(dict.fromkeys(self._paused_here, "true"))
            self._paused_here = []
            self.components.start()

    def _set_modes(self, wanted: Sequence[GPUWanted], *, rebooted: bool) -> bool:
        """Change MIG modes; whether the node has to reboot for it. One change clears all GPUs in MIG mode."""
        if all(self._mode(index) == gpu.mig for index, gpu in enumerate(wanted)):
            return False
        for index in range(len(wanted)):
            if self._mode(index):
                self._clear(index)
        if not rebooted and self.faults.take("needs_reboot"):
            return True
        for index, gpu in enumerate(wanted):
            if self._mode(index) != gpu.mig:
                activation = self._call("nvmlDeviceSetMigMode", self._device(index), int(gpu.mig))
                if activation != ReturnCode.SUCCESS:
                    raise CallFailed(ReturnCode(activation), "the mode is pending")
        return False

    def _set_geometry(self, wanted: Sequence[GPUWanted]) -> None:
        for index, (gpu, found) in enumerate(zip(wanted, self._observed(), strict=True)):
            if gpu == found or not gpu.mig:
                continue
            self._clear(index)
            if self.faults.take("fails"):
                raise CallFailed(ReturnCode.INSUFFICIENT_RESOURCES, "a profile is refused")
            self._create_all(index, gpu.counts)

    def _create_all(self, index: int, counts: Counter[str]) -> None:
        names = sorted(counts.elements(), key=lambda name: -self._profiles(index)[name]["sliceCount"])
        for order in _orders(names):
            try:
                for name in order:
                    self._create(index, name)
            except CallFailed:
                self._clear(index)
            else:
                return
        raise CallFailed(ReturnCode.INSUFFICIENT_RESOURCES, "no order of creation works")

    def _create(self, index: int, name: str) -> None:
        info = self._profiles(index)[name]
        instance = self._call("nvmlDeviceCreateGpuInstance", self._device(index), info["id"])
        whole = next(n for n, size in COMPUTE_PROFILE_SIZES.items() if size == info["sliceCount"])
        self._call("nvmlGpuInstanceCreateComputeInstance", instance, whole)

    def _clear(self, index: int) -> None:
        """Destroy all instances; IN_USE where a process runs on one: no pod is evicted."""
        for instance in self._instances(index):
            for profile in COMPUTE_PROFILE_SIZES:
                with suppress(_Absent):
                    for compute in self._call("nvmlGpuInstanceGetComputeInstances", instance, profile):
                        self._call("nvmlComputeInstanceDestroy", compute)
            self._call("nvmlGpuInstanceDestroy", instance)

    def _observed(self) -> list[GPUWanted]:
        return [self._observe(index) for index in range(self._call("nvmlDeviceGetCount"))]

    def _observe(self, index: int) -> GPUWanted:
        if not self._mode(index):
            return GPUWanted(mig=False)
        names = {info["id"]: name for name, info in self._profiles(index).items()}
        infos = [self._call("nvmlGpuInstanceGetInfo", instance) for instance in self._instances(index)]
        return GPUWanted(True, Counter(names[info["profileId"]] for info in infos))

    def _instances(self, index: int) -> list[int]:
        device = self._device(index)
        found = []
        for info in self._profiles(index).values():
            found += self._call("nvmlDeviceGetGpuInstances", device, info["id"])
        return found

    def _profiles(self, index: int) -> dict[str, dict[str, Any]]:
        found = {}
        for value in range(20):
            with suppress(_Absent):
                info = self._call("nvmlDeviceGetGpuInstanceProfileInfo", self._device(index), value)
                found[info["name"].removeprefix("MIG ")] = info
        return found

    def _mode(self, index: int) -> bool:
        return bool(self._call("nvmlDeviceGetMigMode", self._device(index))[0])

    def _device(self, index: int) -> int:
        return int(self._call("nvmlDeviceGetHandleByIndex", index))

    def _call(self, name: str, *arguments: Any) -> Any:
        code, value = self.link.call(name, arguments, initialized=True)
        if code in (ReturnCode.NOT_SUPPORTED, ReturnCode.INVALID_ARGUMENT):
            raise _Absent(code, name)
        if code is not ReturnCode.SUCCESS:
            raise CallFailed(code, name)
        return value


class _Absent(CallFailed):
    """The board has no such profile."""


@dataclass(frozen=True, slots=True)
class GPUWanted:
    """What an entry says of one GPU."""

    mig: bool
    counts: Counter[str] = field(default_factory=Counter)


def _counts(entry: Any, gpus: int) -> list[GPUWanted] | None:
    """Return what an entry says of each GPU of the node; None: there is no such entry."""
    if not isinstance(entry, list):
        return None
    found: dict[int, GPUWanted] = {}
    for part in entry:
        indexes = range(gpus) if part["devices"] == "all" else part["devices"]
        one = GPUWanted(part["mig-enabled"], Counter(part.get("mig-devices") or {}))
        found |= dict.fromkeys(indexes, one)
    return [found[index] for index in range(gpus)] if found.keys() >= set(range(gpus)) else None


def _orders(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield each order once, the largest profiles first. Equal names are not told apart."""
    seen = set()
    for order in itertools.islice(itertools.permutations(names), 50_000):
        if order not in seen:
            seen.add(order)
            yield order


@dataclass(slots=True)
class LaggingFile:
    """A ConfigMap as a mounted file: what it held `lag_s` seconds ago."""

    read: Callable[[], str]
    clock: Callable[[], float]
    lag_s: float
    _texts: list[tuple[float, str]] = field(default_factory=list)

    def poll(self) -> None:
        """Look at the ConfigMap."""
        text = self.read()
        if not self._texts or self._texts[-1][1] != text:
            self._texts.append((self.clock(), text))

    def entries(self) -> Mapping[str, Any]:
        """Return the entries that the file holds now."""
        self.poll()
        visible = [text for at, text in self._texts if at + self.lag_s <= self.clock()]
        document = yaml.safe_load(visible[-1]) if visible and visible[-1] else None
        return (document or {}).get("mig-configs") or {}


def offers(state: NvmlState) -> tuple[dict[str, str], dict[str, str]]:
    """Return the devices and the labels that a node has once device plugin and GFD have started."""
    machine = machine_of(state)
    devices = {resource: str(len(ids)) for resource, ids in machine.devices().items()}
    return devices, gfd_labels(machine, started=0)


# The process


@dataclass(slots=True)
class ApiLabels:
    """The labels of a Node behind an API server."""

    api: Api
    node: str

    def read(self) -> dict[str, str]:
        """Return all labels."""
        meta = self.api.request("GET", f"/api/v1/nodes/{self.node}")["metadata"]
        return dict(meta.get("labels") or {})

    def write(self, labels: Labels) -> None:
        """Set labels."""
        if labels:
            body = {"metadata": {"labels": dict(labels)}}
            self.api.request("PATCH", f"/api/v1/nodes/{self.node}", body, "application/merge-patch+json")


@dataclass(slots=True)
class OfferedByStatus:
    """Device plugin, kubelet and GFD of a node that has none of them: its status and labels are written."""

    api: Api
    node: str
    nvml: Path

    def stop(self) -> None:
        """Offer nothing."""
        status = self.api.request("GET", f"/api/v1/nodes/{self.node}")["status"]
        gone = {name: "0" for name in status.get("allocatable") or {} if name.startswith("nvidia.com/")}
        self._write(gone)

    def start(self) -> None:
        """Offer what the driver has."""
        with Admin(self.nvml) as admin:
            raw = admin.state()
        raw.pop("holders")
        devices, labels = offers(from_json(raw, load_board(raw["board"]["sku"], raw["board"]["name"])))
        status = self.api.request("GET", f"/api/v1/nodes/{self.node}")["status"]
        gone = {name: "0" for name in status.get("allocatable") or {} if name.startswith("nvidia.com/")}
        self._write(gone | devices)
        set_labels(self.api, self.node, labels)

    def _write(self, devices: dict[str, str]) -> None:
        body = {"status": {"allocatable": devices, "capacity": devices}}
        path = f"/api/v1/nodes/{self.node}/status"
        self.api.request("PATCH", path, body, "application/strategic-merge-patch+json")


@dataclass(slots=True)
class DeployedPods:
    """Device plugin and GPU feature discovery as pods of a DaemonSet, whose node selector is the label."""

    api: Api
    node: str
    namespace: str
    app: str  # value of the label `app` of the pods
    timeout_s: float = 300.0  # mig-manager's, for each component

    def stop(self) -> None:
        """Wait until no pod is left. Raises TimeoutError: mig-manager ends, and leaves all as it is."""
        deadline = time.monotonic() + self.timeout_s
        selectors = {"labelSelector": f"app={self.app}", "fieldSelector": f"spec.nodeName={self.node}"}
        path = f"/api/v1/namespaces/{self.namespace}/pods?{urlencode(selectors)}"
        while self.api.request("GET", path)["items"]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"pods of {self.app} have not ended within {self.timeout_s:.0f} s")
            time.sleep(0.2)

    def start(self) -> None:
        """Do nothing: the DaemonSet follows the label."""


def follow_deploy_label(labels: NodeLabels, components: Components, *, running: bool) -> bool:
    """Where there is no DaemonSet, run the device plugin if its label says so. Returns whether it runs."""
    wanted = labels.read().get(f"{DEPLOY}device-plugin", "true") == "true"
    if wanted != running:
        (components.start if wanted else components.stop)()
    return wanted


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = argparse.ArgumentParser(prog="mig_manager", description="A stand-in for mig-manager.")
    add = arguments.add_argument
    add("--node", required=True)
    add("--nvml", type=Path, required=True, help="socket of the driver")
    add("--api", help="address of the API server, without TLS: of kubectl proxy; default: that of a pod")
    add("--config-map", required=True, help="NAMESPACE/NAME of the ConfigMap that is mounted")
    add("--lag-s", type=float, default=60.0, help="seconds until the mounted file follows")
    add("--step-s", type=float, default=0.2, help="seconds between two changes")
    add("--faults", type=json.loads, default={}, help='JSON: {"stuck": 1, "fails": 2, "needs_reboot": 1}')
    add("--device-plugin", help="NAMESPACE/APP of its pods, which a DaemonSet runs; else status is written")
    return arguments


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM."""
    args = parser().parse_args(argv)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    api = Api(args.api) if args.api else Api.in_cluster(dict(os.environ))
    namespace, _, name = args.config_map.partition("/")

    def read() -> str:
        try:
            found = api.request("GET", f"/api/v1/namespaces/{namespace}/configmaps/{name}")
        except OSError:
            return ""
        return str((found.get("data") or {}).get("config.yaml") or "")

    components: Components = OfferedByStatus(api, args.node, args.nvml)
    if args.device_plugin:
        components = DeployedPods(api, args.node, *args.device_plugin.split("/"))
    file = LaggingFile(read, time.monotonic, args.lag_s)
    labels = ApiLabels(api, args.node)

    def reboot() -> None:
        with Admin(args.nvml) as admin:
            admin.reboot()

    default = {"all-disabled": [{"devices": "all", "mig-enabled": False}]}  # while no ConfigMap is mounted
    manager = MIGManager(
        *(labels, DaemonLink(args.nvml), components, lambda: default | dict(file.entries()), reboot),
        Faults(**args.faults),
    )
    running, steps = False, manager.run()
    while not stopping.wait(args.step_s):
        try:
            file.poll()
            if not args.device_plugin:
                running = follow_deploy_label(labels, components, running=running)
            done = next(steps)
        except OSError as error:
            print(f"mig-manager: {error}", file=sys.stderr)
            steps = manager.run()  # as a new process
            continue
        if done != "idle":
            print(f"mig-manager: {done}", flush=True)
            running = labels.read().get(f"{DEPLOY}device-plugin", "true") == "true"
    return 0


if __name__ == "__main__":
    sys.exit(main())
