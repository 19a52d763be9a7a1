"""The status of a GPUNode: what of the former one is kept, and the one that is written."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from tangram.api.common.base import APIModel
from tangram.api.gpu_node import (
    BackendName,
    GPUNodeCondition,
    GPUNodeSpec,
    GPUNodeStatus,
    GPUStatus,
    QuarantineStatus,
)
from tangram.api.llm_deployment.parse import explain
from tangram.partition.gpu_node import wanted_layouts
from tangram.partition.layouts import WantedLayout
from tangram.partition.status.attempts import GPURecord
from tangram.partition.status.conditions import ConditionName, NodeConditionState, condition, named

_Item = TypeVar("_Item", bound=APIModel)
_LONGEST_VALUE = 64  # of a field of the former status that is a short text


@dataclass(frozen=True, slots=True)
class FormerStatus:
    """What a backend goes on from: the items of the stored status that are valid, each by itself.

    So a field that was edited, or that another version wrote, costs neither a quarantine nor a wait.
    """

    gpus: Mapping[str, GPUStatus]
    records: Mapping[str, GPURecord]
    conditions: tuple[GPUNodeCondition, ...]
    backend: str | None = None
    node_uid: str | None = None
    boot_id: str | None = None
    mig_config: str | None = None


def former_status(stored: Mapping[str, Any]) -> FormerStatus:
    """Return what is kept of a stored status."""
    gpus = {gpu.id: gpu for gpu in _valid(GPUStatus, stored.get("gpus"))}
    records = {gpu.id: GPURecord(gpu.attempts) for gpu in gpus.values() if gpu.attempts is not None}
    for quarantine in _valid(QuarantineStatus, stored.get("quarantine")):
        records[quarantine.uuid] = replace(records.get(quarantine.uuid, GPURecord()), quarantine=quarantine)
    return FormerStatus(
        gpus,
        records,
        tuple(_valid(GPUNodeCondition, stored.get("conditions"))),
        _short_text(stored.get("backend")),
        _short_text(stored.get("nodeUID")),
        _short_text(stored.get("bootID")),
        _short_text(stored.get("migConfig")),
    )


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


class NodeDisplays(NamedTuple):
    """The layouts of a node as text; absent where they are not known."""

    layouts: str | None = None
    applied: str | None = None


def status_document(
    backend: BackendName,
    facts: NodeIdentity,
    gpus: Iterable[GPUStatus],
    records: Mapping[str, GPURecord],
    states: NodeStates,
    former: FormerStatus,
    displays: NodeDisplays,
    now: datetime,
    mig_config: str | None = None,
) -> dict[str, Any]:
    """Return the status as it is written, with the attempts of `records`."""
    recorded = _with_attempts(gpus, records)
    status = GPUNodeStatus(
        observed_generation=facts.generation,
        conditions=_conditions(states, former, facts.generation, now),
        node_uid=facts.node_uid or None,
        boot_id=facts.boot_id or None,
        backend=backend,
        backend_version=facts.backend_version,
        driver_version=facts.driver_version,
        mig_config=mig_config,
        gpu_count=len(recorded),
        layout_display=displays.layouts,
        applied_display=displays.applied,
        gpus=recorded,
        quarantine=tuple(record.quarantine for _, record in sorted(records.items()) if record.quarantine),
    )
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def _with_attempts(gpus: Iterable[GPUStatus], records: Mapping[str, GPURecord]) -> tuple[GPUStatus, ...]:
    """Return the GPUs with the attempts of their records, by index."""
    return tuple(
        gpu.model_copy(update={"attempts": records.get(gpu.id, GPURecord()).attempts})
        for gpu in sorted(gpus, key=lambda gpu: (gpu.index, gpu.id))
    )


def _conditions(
    states: NodeStates, former: FormerStatus, generation: int, now: datetime
) -> tuple[GPUNodeCondition, ...]:
    """Return the conditions with their times: those before, where a state is the same."""
    pairs: tuple[tuple[ConditionName, NodeConditionState], ...]
    pairs = (("Ready", states.ready), ("Applied", states.applied))
    return tuple(
        condition(name, state, named(former.conditions, name), generation, now) for name, state in pairs
    )


def _short_text(value: Any) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= _LONGEST_VALUE else None


def _valid(model: type[_Item], items: Any) -> Iterable[_Item]:
    for item in items if isinstance(items, list) else ():
        try:
            yield model.model_validate(item)
        except ValidationError:
            continue
