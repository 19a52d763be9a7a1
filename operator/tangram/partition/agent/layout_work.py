"""What is to be done next on the GPUs of a node, and what the rest waits for."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from tangram.api.gpu_node import QuarantineStatus
from tangram.packing.geometry.layouts import IllegalLayout
from tangram.partition.difference import LayoutDifference, LayoutOperation, difference
from tangram.partition.gpu_node import Holders
from tangram.partition.layouts import ObservedLayout, WantedLayout
from tangram.partition.status.attempts import LONGEST_BACK_OFF_S, GPURecord
from tangram.partition.status.conditions import NodeConditionState

IN_USE_S = 600.0  # for how long a holder is waited for; whether it is drained is decided elsewhere
# The first of these that holds is the reason of the condition.
_ORDER = ("IllegalLayout", "GPUMissing", "Quarantined", "BackOff", "InUse", "Postponed")


@dataclass(frozen=True, slots=True)
class LayoutWork:
    """The next operation, and why the node is not as wanted where there is none."""

    operation: LayoutOperation | None = None
    waits: tuple[NodeConditionState, ...] = ()

    def state(self) -> NodeConditionState:
        """Return the condition Applied, by the operation, else by the gravest wait, else as wanted."""
        if self.operation is not None:
            return NodeConditionState("False", "Applying", f"next operation: {self.operation}")
        if not self.waits:
            return NodeConditionState("True", "AsWanted", "every GPU has the layout that the spec wants")
        first = min(self.waits, key=lambda wait: _ORDER.index(wait.reason))
        messages = [wait.message for wait in self.waits if wait.reason == first.reason]
        return NodeConditionState("False", first.reason, "; ".join(messages), first.waits_for, first.wait_s)


def layout_work(
    wanted: Iterable[WantedLayout],
    observed: Mapping[str, ObservedLayout],
    holders: Holders,
    records: Mapping[str, GPURecord],
    now: datetime,
) -> LayoutWork:
    """Return the next operation: the first one of the first GPU that has one and may be changed now."""
    waits: list[NodeConditionState] = []
    for layout in wanted:
        record = records.get(layout.gpu, GPURecord())
        found = observed.get(layout.gpu)
        if found is None:
            waits.append(_missing(layout.gpu, record))
            continue
        try:
            left = difference(found, layout, holders.keys())
        except IllegalLayout as error:
            waits.append(NodeConditionState("False", "IllegalLayout", str(error)))
            continue
        if left.operations and record.may_be_changed(now):
            return LayoutWork(left.operations[0])
        waits.extend(_waits(found, left, holders, record))
    return LayoutWork(waits=tuple(waits))


def _missing(gpu: str, record: GPURecord) -> NodeConditionState:
    if record.quarantine is not None:
        return _quarantined(record.quarantine)
    return NodeConditionState("False", "GPUMissing", f"{gpu} is not among the GPUs that the driver reports")


def _quarantined(quarantine: QuarantineStatus) -> NodeConditionState:
    message = f"{quarantine.uuid} is quarantined: {quarantine.message}"
    return NodeConditionState("False", "Quarantined", message)


def _waits(
    observed: ObservedLayout, left: LayoutDifference, holders: Holders, record: GPURecord
) -> Iterator[NodeConditionState]:
    if left.is_empty:
        return
    if record.quarantine is not None:
        yield _quarantined(record.quarantine)
    elif left.operations and record.attempts is not None:
        message = f"{record.attempts.message}; tried again at {record.attempts.next_try}"
        yield NodeConditionState("False", "BackOff", message, f"GPU {observed.gpu}", LONGEST_BACK_OFF_S)
    elif left.in_use or left.gpu_in_use:
        yield _in_use(observed, left, holders)
    else:
        message = f"the remaining operations on {observed.gpu} cannot begin yet"
        yield NodeConditionState("False", "Postponed", message)


def _in_use(observed: ObservedLayout, left: LayoutDifference, holders: Holders) -> NodeConditionState:
    """Return what waits for the pod or the process that uses the first of the instances, or the GPU."""
    users = [(i.placement, i.devices, i.processes) for i in observed.instances if i.placement in left.in_use]
    placement, devices, processes = users[0] if users else (None, (observed.gpu,), observed.processes)
    what = observed.gpu if placement is None else f"{placement} of {observed.gpu}"
    pods = (holders[device] for device in devices if device in holders)
    pod = next((pod for pod in pods if pod is not None), None)
    if pod is not None:
        user = f"Pod {pod.namespace}/{pod.name}"
    elif processes:
        user = f"process {processes[0]} on {what}"
    else:
        user = f"a pod on {what}"
    message = f"waits until {user} ends: it uses {what}, which is in the way of the wanted layout"
    return NodeConditionState("False", "InUse", message, user, IN_USE_S)
