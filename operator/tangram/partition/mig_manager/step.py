"""One step of one node: read what is there, decide, and make the status."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from tangram import catalog
from tangram.api.gpu_node import GPUStatus, InstanceStatus
from tangram.packing.geometry.board import board
from tangram.packing.geometry.layouts import multiset
from tangram.partition.gpu_node import display_of
from tangram.partition.layouts import WantedLayout
from tangram.partition.mig_manager.config_entries import MIGConfig
from tangram.partition.mig_manager.decision import (
    AS_WANTED,
    LayoutDecision,
    MIGManagerAction,
    MIGManagerTimes,
    NodeChange,
    SetLabels,
    decide,
)
from tangram.partition.mig_manager.managed_node import GPUPod, ManagedNode
from tangram.partition.mig_manager.node_counts import RETRY, GPUCounts, entry_name
from tangram.partition.mig_manager.observed_counts import (
    ObservedCounts,
    gpu_id,
    observed_counts,
    requested_counts,
)
from tangram.partition.mig_manager.readiness import NOT_NAMED, readiness
from tangram.partition.mig_manager.wanted_counts import wanted_counts
from tangram.partition.status.attempts import GPURecord
from tangram.partition.status.conditions import NodeConditionState, named
from tangram.partition.status.node_record import (
    FormerStatus,
    NodeDisplays,
    NodeIdentity,
    NodeStates,
    former_status,
    parse_wanted,
    status_document,
)
from tangram.partition.status.operator_labels import PAUSED_FOR_MIG, paused_components

BACKEND: Literal["MIGManager"] = "MIGManager"


@dataclass(frozen=True, slots=True)
class MIGManagerStep:
    """The action of a step, and the status that holds once it is done. `target`: the entry that is wanted."""

    status: dict[str, Any]
    action: MIGManagerAction | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True)
class _Reading:
    """What a step reads of a node before it decides."""

    former: FormerStatus
    ready: NodeConditionState
    parsed: tuple[WantedLayout, ...] | NodeConditionState
    gpu_count: int  # 0: not known
    sku: str | None
    observed: ObservedCounts = ()


def step(
    gpu_node: Mapping[str, Any],
    node: ManagedNode,
    pods: tuple[GPUPod, ...],
    config: MIGConfig,
    now: datetime,
    version: str,
    times: MIGManagerTimes | None = None,
    refused: str = "",
) -> MIGManagerStep | None:
    """Return what is due on a node; None where another backend writes the status of its GPUNode.

    `pods`: those of the node that hold GPU resources; `refused`: why the last action was refused, while it is
    not tried again; `version`: of this program.
    """
    former = former_status(_mapping(gpu_node.get("status")))
    if former.backend not in (None, BACKEND):
        return None
    reading = _read(gpu_node, former, node, config)
    decision, target = _decided(reading, node, pods, config, now, times or MIGManagerTimes())
    if refused and decision.action is not None:
        state = NodeConditionState("False", "WriteRefused", refused)
        decision = replace(decision, state=state, action=None, requests=False)
    mig_config = target if decision.requests else former.mig_config
    meta = _mapping(gpu_node.get("metadata"))
    identity = NodeIdentity(
        int(meta.get("generation", 0)), node.uid, node.boot_id, version, _driver_version(node)
    )
    status = _status(reading, decision, node, identity, mig_config, now)
    return MIGManagerStep(status, decision.action, target)


def _read(
    gpu_node: Mapping[str, Any], former: FormerStatus, node: ManagedNode, config: MIGConfig
) -> _Reading:
    is_paused = PAUSED_FOR_MIG in paused_components(node.labels).values()
    under_way = node.is_changing or is_paused or node.config in (RETRY, former.mig_config)
    is_known = former.node_uid == node.uid
    count = node.gpu_count or (len(former.gpus) if is_known else 0)
    ready = readiness(node, config, under_way=under_way)
    if count == 0 and ready.status == "True":
        text = "the label nvidia.com/gpu.count has no number of GPUs: deploy GPU feature discovery"
        ready = NodeConditionState("False", "GPUsUnknown", text)
    sku = catalog.match_product(node.product) if node.product else None
    if sku is None and is_known:
        sku = next((gpu.sku for gpu in former.gpus.values()), None)
    observed: ObservedCounts = ()
    if count:
        observed = observed_counts(node, former, requested_counts(node, config, former, count), count)
    return _Reading(former, ready, parse_wanted(gpu_node.get("spec")), count, sku, observed)


def _decided(
    reading: _Reading,
    node: ManagedNode,
    pods: tuple[GPUPod, ...],
    config: MIGConfig,
    now: datetime,
    times: MIGManagerTimes,
) -> tuple[LayoutDecision, str | None]:
    """Return the decision, and the entry that is wanted; None where no layout is."""
    kept = _attempts(reading.former)
    ready, parsed = reading.ready, reading.parsed
    if ready.status != "True" and ready.reason != NOT_NAMED:
        return LayoutDecision(replace(ready, status="Unknown", reason="NotReady"), attempts=kept), None
    if not isinstance(parsed, tuple):
        return LayoutDecision(parsed, attempts=kept), None
    if not parsed:
        return LayoutDecision(NodeConditionState("True", AS_WANTED, "the spec wants no layout")), None
    requested = requested_counts(node, config, reading.former, reading.gpu_count)
    wanted = wanted_counts(parsed, reading.observed, requested, board(reading.sku or ""))
    if isinstance(wanted, NodeConditionState):
        return LayoutDecision(wanted, attempts=kept), None
    former = reading.former
    last = named(former.conditions, "Applied")
    change = NodeChange(
        *(node, pods, config, reading.observed, wanted, last, former.mig_config, kept, now, times)
    )
    decision = decide(change)
    if ready.reason == NOT_NAMED and isinstance(decision.action, SetLabels):
        decision = LayoutDecision(replace(ready, status="False"), attempts=kept)
    return decision, entry_name(wanted)


def _attempts(former: FormerStatus) -> Any:
    """Return the failed attempts of a node: those of its GPUs are the same."""
    return next((record.attempts for _, record in sorted(former.records.items())), None)


def _status(
    reading: _Reading,
    decision: LayoutDecision,
    node: ManagedNode,
    identity: NodeIdentity,
    mig_config: str | None,
    now: datetime,
) -> dict[str, Any]:
    gpus = [
        _gpu_status(index, counts, node.product or None, reading.sku)
        for index, counts in enumerate(reading.observed)
    ] or list(reading.former.gpus.values())
    parsed = reading.parsed if isinstance(reading.parsed, tuple) else ()
    listed = {layout.gpu for layout in parsed} & {gpu.id for gpu in gpus}
    records = {gpu.id: GPURecord(decision.attempts) for gpu in gpus if not listed or gpu.id in listed}
    states = NodeStates(reading.ready, decision.state)
    displays = _displays(parsed, reading.observed)
    return status_document(
        BACKEND, identity, gpus, records, states, reading.former, displays, now, mig_config
    )


def _displays(wanted: tuple[WantedLayout, ...], observed: ObservedCounts) -> NodeDisplays:
    """Return the observed layouts as text, and how many of the wanted ones are there."""
    if not observed:
        return NodeDisplays()
    applied = [_is_applied(layout, observed) for layout in wanted]
    return NodeDisplays(display_of(map(_text_of, observed)), f"{sum(applied)}/{len(applied)}")


def _gpu_status(index: int, counts: GPUCounts | None, product: str | None, sku: str | None) -> GPUStatus:
    if counts is None:
        return GPUStatus(id=gpu_id(index), index=index, product=product, sku=sku, mig_mode="Unknown")
    return GPUStatus(
        id=gpu_id(index),
        index=index,
        product=product,
        sku=sku,
        mig_mode="Enabled" if counts.mig_enabled else "Disabled",
        instances=tuple(
            InstanceStatus(profile=profile, usage="Unknown")
            for profile, count in counts.instances
            for _ in range(count)
        ),
        usage=None if counts.mig_enabled else "Unknown",
    )


def _is_applied(layout: WantedLayout, observed: ObservedCounts) -> bool:
    counts = GPUCounts(layout.mig_enabled, multiset(layout.placements))
    return any(gpu_id(index) == layout.gpu and found == counts for index, found in enumerate(observed))


def _text_of(counts: GPUCounts | None) -> str:
    if counts is None:
        return "unknown"
    if not counts.mig_enabled:
        return "gpu"
    return "+".join(profile for profile, count in reversed(counts.instances) for _ in range(count)) or "empty"


def _driver_version(node: ManagedNode) -> str | None:
    return node.labels.get("nvidia.com/cuda.driver-version.full") or None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
