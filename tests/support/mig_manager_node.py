"""A node in memory for tests of the mig-manager backend: the stand-in on a simulated driver, and its objects.

Each round is a new process of the operator: only the objects outlive it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from e2e.silicon.mig_manager import CONFIG, DEPLOYED, STATE, Faults, LaggingFile, MIGManager, offers
from e2e.silicon.nvml import state as simulated
from e2e.silicon.nvml.in_process import StateLink
from tangram.api.gpu_node import GPUNodeStatus
from tangram.partition.mig_manager.config_entries import CONFIG_KEY, MIGConfig, parse_entries, with_entry
from tangram.partition.mig_manager.decision import MIGManagerAction, SetLabels, WriteEntry
from tangram.partition.mig_manager.managed_node import gpu_pods, managed_node
from tangram.partition.mig_manager.step import MIGManagerStep, step
from tests.support.nvml_driver import nvml_state

ROOT = Path(__file__).resolve().parents[2]
START = datetime(2030, 1, 1, tzinfo=UTC)
OURS, NODE = "tangram-mig-config", "node-a"
CLUSTER_POLICY_CRD = yaml.safe_load((ROOT / "e2e/silicon/manifests/cluster_policy_crd.yaml").read_text())


class Killed(BaseException):
    """The operator's process ended."""


class MemoryNode:
    """A node, its GPUNode, its pods and the ConfigMap; `log` holds what was written, in order."""

    def __init__(self, sku: str, *gpus: dict[str, Any], lag_s: float = 60.0) -> None:
        self.link = StateLink(nvml_state(sku, *gpus))
        self.now, self.log = START, list[str]()
        self.wrong = timedelta()  # the operator's clock beside that of the API server
        self.labels: dict[str, str] = {f"nvidia.com/gpu.deploy.{name}": "true" for name in DEPLOYED}
        self.labels |= {CONFIG: "all-disabled", STATE: "success"}
        self.allocatable: dict[str, str] = {}
        self.version, self.boot = 1, 1
        self.pods: list[dict[str, Any]] = []
        self.spec: dict[str, Any] = {}
        self.generation = 1
        self.stored: dict[str, Any] = {}
        self.data: dict[str, str] = {}
        self.written_at: datetime | None = None
        self.named: str | None = OURS
        self.refused = ""
        self.lives: int | None = None  # writes before the process is killed; None: it lives on
        self.faults = Faults()
        self.unhealthy: dict[str, int] = {}
        self.file = LaggingFile(self._text, self._seconds, lag_s)
        self.start()
        self.manager = MIGManager(self, self.link, self, self._entries, self.reboot_node, self.faults)
        self.steps = self.manager.run()
        next(self.steps)  # it applied all-disabled before
        self.labels[STATE] = "success"

    def _text(self) -> str:
        return self.data.get(CONFIG_KEY, "")

    def _seconds(self) -> float:
        return (self.now - START).total_seconds()

    def _entries(self) -> Mapping[str, Any]:
        base = {"all-disabled": [{"devices": "all", "mig-enabled": False}]}
        return base | dict(self.file.entries())

    # The node, as the stand-in uses it

    def read(self) -> dict[str, str]:
        """Return the labels."""
        return dict(self.labels)

    def write(self, labels: Mapping[str, str | None]) -> None:
        """Set labels."""
        for name, value in labels.items():
            if value is None:
                self.labels.pop(name, None)
            else:
                self.labels[name] = value
        self.version += 1

    def stop(self) -> None:
        """Stop the device plugin: nothing is on offer."""
        self.allocatable = dict.fromkeys(self.allocatable, "0")
        self.version += 1

    def start(self) -> None:
        """Start device plugin and GPU feature discovery."""
        devices, labels = offers(self.link.state)
        self.allocatable = dict.fromkeys(self.allocatable, "0") | devices
        gone = [name for name in self.labels if name.startswith("nvidia.com/mig-") and name not in labels]
        for name in gone:
            del self.labels[name]
        self.write(labels)

    def reboot_node(self) -> None:
        """Start the node again."""
        self.link.change(simulated.reboot)
        self.boot += 1

    def deploys(self) -> None:
        """Be the DaemonSet of the device plugin."""
        runs = any(value != "0" for value in self.allocatable.values())
        if self.labels["nvidia.com/gpu.deploy.device-plugin"] == "true" and not runs:
            self.start()

    # Objects

    @property
    def node(self) -> dict[str, Any]:
        """The Node."""
        healthy = {name: str(int(n) - self.unhealthy.get(name, 0)) for name, n in self.allocatable.items()}
        return {
            "metadata": {
                "name": NODE,
                "uid": "node-uid",
                "labels": dict(self.labels),
                "resourceVersion": str(self.version),
            },
            "status": {
                "nodeInfo": {"bootID": f"boot-{self.boot}"},
                "allocatable": {"cpu": "8", **healthy},
                "capacity": {"cpu": "8", **self.allocatable},
            },
        }

    @property
    def config(self) -> MIGConfig:
        """The ConfigMap and the ClusterPolicy, as the operator reads them."""
        entries = parse_entries(self.data)
        problem = entries if isinstance(entries, str) else ""
        read = {} if isinstance(entries, str) else entries
        return MIGConfig(OURS, "cluster-policy", self.named, read, self.written_at, problem)

    def want(self, *gpus: tuple[int, list[str] | None]) -> None:
        """Write a spec: by index, PROFILE@START, None for a whole GPU."""
        self.generation += 1
        self.spec = {"gpus": [wanted_gpu(index, placements) for index, placements in gpus]}

    def pod(self, name: str, resource: str, phase: str = "Running") -> None:
        """Start a pod that holds one device."""
        resources = {"limits": {resource: "1"}}
        self.pods.append(
            {
                "metadata": {"namespace": "ml", "name": name},
                "spec": {"nodeName": NODE, "containers": [{"name": "main", "resources": resources}]},
                "status": {"phase": phase},
            }
        )

    # The operator

    def decide(self) -> MIGManagerStep | None:
        """Make one step, and do nothing."""
        gpu_node = {
            "metadata": {"name": NODE, "generation": self.generation},
            "spec": self.spec,
            "status": json.loads(json.dumps(self.stored)),
        }
        pods = gpu_pods(self.pods, NODE)
        node, config = managed_node(self.node), self.config
        return step(gpu_node, node, pods, config, self.now + self.wrong, "0.1", refused=self.refused)

    def round(self) -> bool:
        """Do one round; whether anything was written."""
        done = self.decide()
        assert done is not None
        if done.action is not None:
            self._before_write()
            self._perform(done.action)
        if done.status != self.stored:
            self._before_write()
            GPUNodeStatus.model_validate(done.status)
            self.stored = json.loads(json.dumps(done.status))
            self.log.append(f"status {self.reason}")
            return True
        return done.action is not None

    def _before_write(self) -> None:
        if self.lives == 0:
            raise Killed
        if self.lives is not None:
            self.lives -= 1

    def _perform(self, action: MIGManagerAction) -> None:
        if isinstance(action, WriteEntry):
            used = {self.labels.get(CONFIG, "")}
            self.data = {CONFIG_KEY: with_entry(self.config.entries, action.counts, used)}
            self.written_at = self.now
            self.log.append("entry")
        else:
            assert isinstance(action, SetLabels)
            self.write(dict(action.labels))
            self.log.append(action.purpose)

    def settle(self, limit: int = 400, every_s: float = 10.0) -> None:
        """Let both work until neither does anything for ten rounds and nothing has a deadline left."""
        quiet = 0
        for _ in range(limit):
            self.file.poll()
            self.deploys()
            idle = next(self.steps) == "idle"
            wrote = self.round()
            quiet = quiet + 1 if idle and not wrote else 0
            if quiet >= 10 and self.reason not in WAITS:
                return
            self.now += timedelta(seconds=every_s)
        raise AssertionError(f"not settled: {self.stored.get('conditions')}, {self.log[-20:]}")

    def work(self) -> None:
        """Let both work once."""
        self.file.poll()
        self.deploys()
        next(self.steps)
        self.round()

    def turn(self, rounds: int) -> None:
        """Let both work for some rounds, of ten seconds each."""
        for _ in range(rounds):
            self.work()
            self.now += timedelta(seconds=10)

    def until(self, reason: str, limit: int = 400) -> None:
        """Let both work until Applied has this reason."""
        for _ in range(limit):
            self.work()
            if self.reason == reason:
                return
            self.now += timedelta(seconds=10)
        raise AssertionError(f"not {reason}: {self.stored.get('conditions')}, {self.log[-20:]}")

    # What there is

    def condition(self, name: str = "Applied") -> dict[str, Any]:
        """Return a condition of the status."""
        found = self.stored.get("conditions", ())
        return next((each for each in found if each["type"] == name), {})

    @property
    def reason(self) -> str:
        """The reason of Applied."""
        return str(self.condition().get("reason"))

    def layout(self, index: int = 0) -> list[str] | None:
        """Return the profiles on a GPU, None where it is whole."""
        gpu = self.link.state.gpus[index]
        return sorted(one.profile for one in gpu.instances) if gpu.mig_mode else None

    def attempts(self, index: int = 0) -> dict[str, Any]:
        """Return the failed attempts of a GPU."""
        return dict(self.stored["gpus"][index].get("attempts") or {})


WAITS = (
    *("Applying", "BackOff", "Confirming", "ConfigSyncing", "MIGManagerBusy", "Rebooting", "Retrying"),
    *("Restoring", "WritingEntry"),
)


def wanted_gpu(index: int, placements: list[str] | None) -> dict[str, Any]:
    """Return one GPU of a spec."""
    pairs = (placement.split("@") for placement in placements or ())
    instances = [{"profile": profile, "start": int(start)} for profile, start in pairs]
    return {"id": f"index-{index}", "migEnabled": placements is not None, "instances": instances}
