"""The status of a GPUNode as a node agent writes it."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

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
