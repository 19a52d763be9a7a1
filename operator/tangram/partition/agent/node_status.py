"""The status of a GPUNode: what of the former one is kept, and the one that is written."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from tangram.api.common.base import APIModel
from tangram.api.gpu_node import (
    GPUNodeCondition,
    GPUNodeSpec,
    GPUNodeStatus,
    GPUStatus,
    QuarantineStatus,
)
from tangram.api.llm_deployment.parse import explain
from tangram.partition.agent.attempts import GPURecord
from tangram.partition.agent.conditions import ConditionName, NodeConditionState, condition, named
from tangram.partition.gpu_node import (
    Holders,
    applied_display,
    gpu_status,
    layout_display,
    wanted_layouts,
)
from tangram.partition.layouts import ObservedLayout, WantedLayout

_Item = TypeVar("_Item", bound=APIModel)


@dataclass(frozen=True, slots=True)
class FormerStatus:
    """What an agent goes on from: the items of the stored status that are valid, each by itself.

    So a field that was edited, or that another version wrote, costs neither a quarantine nor a wait.
    """

    gpus: Mapping[str, GPUStatus]
    records: Mapping[str, GPURecord]
    conditions: tuple[GPUNodeCondition, ...]
    backend: str | None = None


def former_status(stored: Mapping[str, Any]) -> FormerStatus:
    """Return what is kept of a stored status."""
    gpus = {gpu.id: gpu for gpu in _valid(GPUStatus, stored.get("gpus"))}
    records = {gpu.id: GPURecord(gpu.attempts) for gpu in gpus.values() if gpu.attempts is not None}
    for quarantine in _valid(QuarantineStatus, stored.get("quarantine")):
        records[quarantine.uuid] = replace(records.get(quarantine.uuid, GPURecord()), quarantine=quarantine)
    conditions = tuple(_valid(GPUNodeCondition, stored.get("conditions")))
    backend = stored.get("backend")
    return FormerStatus(gpus, records, conditions, backend if isinstance(backend, str) else None)


def parse_wanted(spec: Any) -> tuple[WantedLayout, ...] | NodeConditionState:
    """Return the layouts that a spec wants, or why it cannot be read."""
    try:
        return wanted_layouts(GPUNodeSpec.model_validate(spec))
    except ValidationError as error:
        return NodeConditionState("False", "InvalidSpec", explain(error))


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """What the status says of the node itself."""

    generation: int  # of the GPUNode
    node_uid: str
    boot_id: str
    backend_version: str
    driver_version: str | None = None


class NodeStates(NamedTuple):
    """The conditions of a round, without times."""

    ready: NodeConditionState
    applied: NodeConditionState


def node_status(
    facts: NodeIdentity,
    layouts: Iterable[ObservedLayout],
    holders: Holders,
    wanted: Iterable[WantedLayout],
    former: FormerStatus,
    records: Mapping[str, GPURecord],
    states: NodeStates,
    unobserved: Iterable[str],
    now: datetime,
) -> dict[str, Any]:
    """Return the status as it is written. GPUs that could not be observed stay as they were.

    `unobserved`: their UUIDs. Without a layout, the texts about layouts are absent.
    """
    layouts = tuple(layouts)
    observed = {layout.gpu: gpu_status(layout, holders) for layout in layouts}
    kept = {gpu: former.gpus[gpu] for gpu in unobserved if gpu in former.gpus}
    gpus = {**kept, **observed}
    recorded = (
        gpu.model_copy(update={"attempts": records.get(gpu.id, GPURecord()).attempts})
        for gpu in sorted(gpus.values(), key=lambda gpu: (gpu.index, gpu.id))
    )
    pairs: tuple[tuple[ConditionName, NodeConditionState], ...]
    pairs = (("Ready", states.ready), ("Applied", states.applied))
    conditions = (
        condition(name, state, named(former.conditions, name), facts.generation, now) for name, state in pairs
    )
    status = GPUNodeStatus(
        observed_generation=facts.generation,
        conditions=tuple(conditions),
        node_uid=facts.node_uid or None,
        boot_id=facts.boot_id or None,
        backend="NVML",
        backend_version=facts.backend_version,
        driver_version=facts.driver_version,
        gpu_count=len(gpus),
        layout_display=layout_display(layouts) if layouts else None,
        applied_display=applied_display(wanted, layouts) if layouts else None,
        gpus=tuple(recorded),
        quarantine=tuple(record.quarantine for _, record in sorted(records.items()) if record.quarantine),
    )
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def _valid(model: type[_Item], items: Any) -> Iterable[_Item]:
    for item in items if isinstance(items, list) else ():
        try:
            yield model.model_validate(item)
        except ValidationError:
            continue
