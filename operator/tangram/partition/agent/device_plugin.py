"""Whether the device plugin offers the devices that there are. It sees a change only after a restart."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tangram.api.gpu_node import GPUNodeCondition
from tangram.api.llm_deployment.status import MAX_SHORT_TEXT
from tangram.fleet import WHOLE_GPU
from tangram.fleet.shape import resource_name
from tangram.partition.layouts import ObservedLayout
from tangram.partition.status.conditions import NodeConditionState

APPLYING, RESTARTING = "Applying", "DevicePluginRestarting"  # reasons of Applied
RESTART_S = 180.0  # until the node offers the devices; seconds, where the image is on the node
_WHOLE, _SLICES = resource_name(WHOLE_GPU), resource_name("")


@dataclass(frozen=True, slots=True)
class DevicePluginPod:
    """A pod of the device plugin on this node."""

    namespace: str
    name: str
    uid: str
    is_ready: bool = False
    is_ending: bool = False

    def __str__(self) -> str:
        return f"Pod {self.namespace}/{self.name} {self.uid}"[:MAX_SHORT_TEXT]


def offers(layouts: Iterable[ObservedLayout], allocatable: Mapping[str, Any]) -> bool:
    """Whether a node offers what its GPUs hold: whole GPUs, and instances with a device by profile."""
    expected: Counter[str] = Counter()
    for layout in layouts:
        if layout.mig_enabled:
            expected.update(resource_name(i.placement.profile) for i in layout.instances if i.devices)
        else:
            expected[_WHOLE] += 1
    offered = {
        name: str(count)
        for name, count in allocatable.items()
        if (name == _WHOLE or name.startswith(_SLICES)) and str(count) != "0"
    }
    return offered == {name: str(count) for name, count in expected.items()}


def restart(
    former: GPUNodeCondition | None,
    pods: Iterable[DevicePluginPod],
    *,
    offers_all: bool,
    is_cut: bool,
    has_changed: bool = False,
) -> NodeConditionState | None:
    """Return what is waited for, once there is no operation left; None where no restart is due.

    `former`: the condition Applied before; `is_cut`: layouts are wanted of this node; `has_changed`: this
    process knows of operations without a restart after them. A restart is due after operations, and where
    nothing is recorded and the node does not offer its devices. It has happened once
    the pod that was there is gone, another one is ready and the node offers the devices: counts alone may be
    right before it.
    """
    pods = sorted(pods, key=str)
    if former is not None and former.reason == RESTARTING:
        is_back = any(pod.is_ready and not pod.is_ending and str(pod) != former.waits_for for pod in pods)
        if is_back and offers_all and not outdated(former, pods):
            return None
        return _waiting(former.waits_for or "")
    is_due_anew = has_changed or (is_cut and not offers_all)
    if not (is_due_anew if former is None else former.reason == APPLYING):
        return None
    return _waiting(str(pods[0]) if pods else "a Pod of the device plugin on this node")


def outdated(current: GPUNodeCondition | None, pods: Iterable[DevicePluginPod]) -> list[DevicePluginPod]:
    """Return the pods to delete while a restart is waited for, in this order.

    The pod that the condition names comes last: once it is gone, the others are, too.
    """
    if current is None or current.reason != RESTARTING:
        return []
    pods = sorted(pods, key=str)
    if all(str(pod) != current.waits_for for pod in pods):
        return []
    return sorted(pods, key=lambda pod: str(pod) == current.waits_for)


def _waiting(pod: str) -> NodeConditionState:
    message = "the device plugin is restarted, until the node offers the devices of the new layout"
    return NodeConditionState("False", RESTARTING, message, pod, RESTART_S)
