"""What a Node says of its GPUs: labels of GPU feature discovery and mig-manager, devices on offer, pods."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tangram.api.gpu_node import MAX_GPUS, MAX_INSTANCES
from tangram.fleet import WHOLE_GPU, resource_name
from tangram.fleet.labels import COUNT_LABEL, PRODUCT_LABEL
from tangram.fleet.pod_requests import FINISHED_PHASES, gpu_requests
from tangram.partition.mig_manager.node_counts import GPUCounts, offered
from tangram.partition.status.operator_labels import MIG_CONFIG_LABEL, MIG_STATE_LABEL

GPU_RESOURCE = resource_name(WHOLE_GPU)
MIG_PREFIX = resource_name("")
COUNT_SUFFIX = ".count"
_MOST_DEVICES = MAX_GPUS * MAX_INSTANCES


@dataclass(frozen=True, slots=True)
class GPUPod:
    """A pod on the node that holds GPUs or slices."""

    namespace: str
    name: str
    requests: Mapping[str, int]  # by extended resource

    def __str__(self) -> str:
        return f"Pod {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ManagedNode:
    """A Node, checked for types and bounds. Counts of zero are left out."""

    name: str
    uid: str
    boot_id: str
    version: str  # resourceVersion
    labels: Mapping[str, str]
    allocatable: Counter[str] = field(default_factory=Counter)
    capacity: Counter[str] = field(default_factory=Counter)  # with unhealthy devices

    @property
    def config(self) -> str:
        """The entry that the label names; empty: none."""
        return self.labels.get(MIG_CONFIG_LABEL, "")

    @property
    def state(self) -> str:
        """The state that mig-manager reports."""
        return self.labels.get(MIG_STATE_LABEL, "")

    @property
    def is_changing(self) -> bool:
        """Whether mig-manager says that it is at work."""
        return self.state in ("pending", "rebooting")

    @property
    def product(self) -> str:
        """The GPU model, as GPU feature discovery labels it."""
        return self.labels.get(PRODUCT_LABEL, "")

    @property
    def gpu_count(self) -> int | None:
        """Number of GPUs; None: the label is missing, or no such number."""
        count = _number(self.labels.get(COUNT_LABEL))
        return count if 0 < count <= MAX_GPUS else None

    @property
    def discovered(self) -> Counter[str]:
        """Slices that GPU feature discovery counts, by extended resource."""
        counts = {
            name.removesuffix(COUNT_SUFFIX): _number(value)
            for name, value in self.labels.items()
            if name.startswith(MIG_PREFIX) and name.endswith(COUNT_SUFFIX)
        }
        return +Counter(counts)

    @property
    def most(self) -> Counter[str]:
        """Devices that may exist: on offer, unhealthy, or gone for less than the kubelet's five minutes."""
        return self.allocatable | self.capacity

    def offers(self, gpus: Iterable[GPUCounts], devices: Counter[str] | None = None) -> bool:
        """Whether the devices on offer (or `devices`), and those discovered, are those of a layout."""
        expected = offered(gpus)
        slices = Counter({name: n for name, n in expected.items() if name != GPU_RESOURCE})
        return (self.allocatable if devices is None else devices) == expected and self.discovered == slices


def managed_node(obj: Mapping[str, Any]) -> ManagedNode:
    """Return what a Node says, whether as the API server returns it or as the mirrors keep it."""
    meta, status = _mapping(obj.get("metadata")), _mapping(obj.get("status") or obj)
    boot_id = _mapping(status.get("nodeInfo")).get("bootID") or status.get("bootID")
    labels = _mapping(meta.get("labels")).items()
    return ManagedNode(
        name=_text(meta.get("name")),
        uid=_text(meta.get("uid")),
        boot_id=_text(boot_id),
        version=_text(meta.get("resourceVersion")),
        labels={name: value for name, value in labels if isinstance(name, str) and isinstance(value, str)},
        allocatable=_devices(status.get("allocatable")),
        capacity=_devices(status.get("capacity")),
    )


def gpu_pods(pods: Iterable[Mapping[str, Any]], node: str) -> tuple[GPUPod, ...]:
    """Return the pods on a node that hold NVIDIA resources, by name; raw, or as the mirrors keep them."""
    found = []
    for pod in pods:
        spec, status = _mapping(pod.get("spec")), _mapping(pod.get("status"))
        if (spec.get("nodeName") or pod.get("nodeName")) != node:
            continue
        if (status.get("phase") or pod.get("phase")) in FINISHED_PHASES:
            continue
        requests = pod["requests"] if "requests" in pod else gpu_requests(spec)
        meta = _mapping(pod.get("metadata"))
        if requests:
            found.append(GPUPod(_text(meta.get("namespace")), _text(meta.get("name")), dict(requests)))
    return tuple(sorted(found, key=str))


def _devices(amounts: Any) -> Counter[str]:
    names = [name for name in _mapping(amounts) if isinstance(name, str)]
    return +Counter(
        {
            name: _number(amounts[name])
            for name in names
            if name == GPU_RESOURCE or name.startswith(MIG_PREFIX)
        }
    )


def _number(value: Any) -> int:
    """Return a whole number; one that no node can have is cut to one that no layout offers."""
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if not text.isascii() or not text.isdecimal():
        return 0
    return int(text) if len(text) < len(str(_MOST_DEVICES)) + 1 else _MOST_DEVICES + 1


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
