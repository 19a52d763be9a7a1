"""Each GPU of a plan as a strip of blocks over its memory slices, which the table and the picture draw."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tangram.fleet import WHOLE_GPU
from tangram.packing import board

_UNITS = 8  # width of a GPU without MIG


@dataclass(frozen=True, slots=True)
class StripBlock:
    """One slice, or memory slices without a GPU instance."""

    start: int  # in memory slices
    size: int
    profile: str  # "": no GPU instance
    owner: str | None
    moved: bool = False


@dataclass(frozen=True, slots=True)
class GPUStrip:
    """One GPU."""

    id: str
    node: str
    sku: str
    units: int
    blocks: tuple[StripBlock, ...]
    inferred: bool

    @property
    def layout_key(self) -> tuple[Any, ...]:
        """Equal for GPUs with equal layouts."""
        return self.sku, self.blocks, self.inferred


def strips(plan: Mapping[str, Any]) -> list[GPUStrip]:
    """Return the GPUs of a plan document by node and id, numbers in numeric order: g9 before g10."""
    moved = {(m["to"]["gpu"], m["to"]["start"]) for m in plan["moves"]}
    return sorted(
        (_strip(gpu, moved) for gpu in plan["gpus"]),
        key=lambda s: (_natural_order(s.node), _natural_order(s.id)),
    )


def _natural_order(name: str) -> tuple[tuple[int, str], ...]:
    parts = re.findall(r"\d+|\D+", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)


def _strip(gpu: Mapping[str, Any], moved: set[tuple[str, int]]) -> GPUStrip:
    cut = board(gpu["sku"])
    units = cut.memory_slices if cut else _UNITS
    blocks = []
    for instance in (*gpu["instances"], *gpu["free"]):
        option = cut.option(instance["profile"], instance["start"]) if cut else None
        size = units if instance["profile"] == WHOLE_GPU or option is None else option.mask.bit_count()
        start, owner = instance["start"], instance.get("owner")
        blocks.append(StripBlock(start, size, instance["profile"], owner, (gpu["id"], start) in moved))
    return GPUStrip(gpu["id"], gpu["node"], gpu["sku"], units, tuple(_filled(blocks, units)), gpu["inferred"])


def _filled(blocks: list[StripBlock], units: int) -> list[StripBlock]:
    """Add blocks for the memory slices without a GPU instance."""
    filled, reached = [], 0
    for block in sorted(blocks, key=lambda b: b.start):
        if block.start > reached:
            filled.append(StripBlock(reached, block.start - reached, "", None))
        filled.append(block)
        reached = block.start + block.size
    return filled if reached >= units else [*filled, StripBlock(reached, units - reached, "", None)]


def owners(plan: Mapping[str, Any]) -> list[str]:
    """Return the owners of slices, sorted; the order of colours."""
    return sorted({i["owner"] for gpu in plan["gpus"] for i in gpu["instances"]})
