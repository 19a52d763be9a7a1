"""The status of a GPUNode as a node agent writes it."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from tangram import __version__
from tangram.partition.gpu_node import Holders, applied_display, gpu_status, layout_display
from tangram.partition.layouts import ObservedLayout, WantedLayout
from tangram.partition.status.attempts import GPURecord
from tangram.partition.status.node_record import (
    FormerStatus,
    NodeDisplays,
    NodeIdentity,
    NodeStates,
    status_document,
)


def node_identity(
    obj: Mapping[str, Any], node: Mapping[str, Any], driver_version: str | None
) -> NodeIdentity:
    """Return what the status of a GPUNode `obj` says of its node."""
    node_info = (node.get("status") or {}).get("nodeInfo") or {}
    return NodeIdentity(
        generation=int(obj["metadata"].get("generation", 0)),
        node_uid=str(node["metadata"].get("uid", "")),
        boot_id=str(node_info.get("bootID", "")),
        backend_version=__version__,
        driver_version=driver_version,
    )


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
    displays = NodeDisplays()
    if layouts:
        displays = NodeDisplays(layout_display(layouts), applied_display(wanted, layouts))
    gpus = {**kept, **observed}.values()
    return status_document("NVML", facts, gpus, records, states, former, displays, now)
