"""Each GPU of a plan as a row of blocks over its memory slices: what terminal and pictures draw."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tangram.fleet import WHOLE_GPU
from tangram.packing import board

_UNITS = 8  # that a board which MIG cannot cut is drawn with


@dataclass(frozen=True, slots=True)
class Block:
    """One slice, or a stretch that is not cut."""

    start: int  # in memory slices
    size: int
    profile: str  # "": not cut
    owner: str | None
    moved: bool = False


@dataclass(frozen=True, slots=True)
class Strip:
    """One GPU."""

    id: str
    node: str
    sku: str
    units: int
    blocks: tuple[Block, ...]
    inferred: bool

    @property
    def alike(self) -> tuple[Any, ...]:
        """Equal for GPUs that look the same."""
        return self.sku, self.blocks, self.inferred


def strips(plan: Mapping[str, Any]) -> list[Strip]:
    """Return the GPUs of a plan document, by node, as people count: g9 before g10."""
    moved = {(m["to"]["gpu"], m["to"]["start"]) for m in plan["moves"]}
    return sorted(
        (_strip(gpu, moved) for gpu in plan["gpus"]), key=lambda s: (_counted(s.node), _counted(s.id))
    )


def _counted(name: str) -> tuple[tuple[int, str], ...]:
    parts = re.findall(r"\d+|\D+", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)


def _strip(gpu: Mapping[str, Any], moved: set[tuple[str, int]]) -> Strip:
    cut = board(gpu["sku"])
    units = cut.memory_slices if cut else _UNITS
    blocks = []
    for each in (*gpu["instances"], *gpu["free"]):
        option = cut.option(each["profile"], each["start"]) if cut else None
        size = units if each["profile"] == WHOLE_GPU or option is None else option.mask.bit_count()
        start, owner = each["start"], each.get("owner")
        blocks.append(Block(start, size, each["profile"], owner, (gpu["id"], start) in moved))
    return Strip(gpu["id"], gpu["node"], gpu["sku"], units, tuple(_filled(blocks, units)), gpu["inferred"])


def _filled(blocks: list[Block], units: int) -> list[Block]:
    """Add what lies between slices."""
    found, reached = [], 0
    for block in sorted(blocks, key=lambda b: b.start):
        if block.start > reached:
            found.append(Block(reached, block.start - reached, "", None))
        found.append(block)
        reached = block.start + block.size
    return found if reached >= units else [*found, Block(reached, units - reached, "", None)]


def owners(plan: Mapping[str, Any]) -> list[str]:
    """Return everybody who holds something, sorted: the order of colours."""
    return sorted({i["owner"] for gpu in plan["gpus"] for i in gpu["instances"]})
