"""The layout of a node by counts: the GPUs in MIG mode, and how many instances of each profile they hold."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tangram.fleet import WHOLE_GPU, resource_name
from tangram.packing.geometry.layouts import Multiset

ENTRY_PREFIX = "tangram-"
RETRY = f"{ENTRY_PREFIX}retry"
"""A value of the label that is never an entry. mig-manager refuses it and changes nothing; the value that it
had before is a change after it, and so another attempt.
"""
_HASH_LENGTH = 16


@dataclass(frozen=True, slots=True)
class GPUCounts:
    """The layout of one GPU by counts."""

    mig_enabled: bool
    instances: Multiset = ()


NodeCounts = tuple[GPUCounts, ...]  # by index of the GPU
WHOLE = GPUCounts(mig_enabled=False)


def offered(gpus: Iterable[GPUCounts]) -> Counter[str]:
    """Return the devices that GPUs offer in the mixed strategy, by extended resource."""
    found: Counter[str] = Counter()
    for gpu in gpus:
        if not gpu.mig_enabled:
            found[resource_name(WHOLE_GPU)] += 1
        for profile, count in gpu.instances:
            found[resource_name(profile)] += count
    return found


def entry_name(counts: NodeCounts) -> str:
    """Return the name of the entry for a layout: its hash, so that no entry ever has another content."""
    text = json.dumps([[gpu.mig_enabled, gpu.instances] for gpu in counts], separators=(",", ":"))
    return ENTRY_PREFIX + hashlib.sha256(text.encode()).hexdigest()[:_HASH_LENGTH]


def entry(counts: NodeCounts) -> list[dict[str, Any]]:
    """Return the entry for a layout: every GPU of the node, equal ones together."""
    devices: dict[GPUCounts, list[int]] = {}
    for index, gpu in enumerate(counts):
        devices.setdefault(gpu, []).append(index)
    return [
        {"devices": indexes, "mig-enabled": gpu.mig_enabled}
        | ({"mig-devices": dict(gpu.instances)} if gpu.mig_enabled else {})
        for gpu, indexes in devices.items()
    ]


def parse_entry(raw: Any, name: str) -> NodeCounts | None:
    """Return the layout of the entry with this name; None: it is none of ours, or was edited."""
    try:
        gpus = {
            int(index): GPUCounts(
                part["mig-enabled"] is True, tuple(sorted(part.get("mig-devices", {}).items()))
            )
            for part in raw
            for index in part["devices"]
        }
        counts = tuple(gpus[index] for index in range(len(gpus)))
        is_ours = entry_name(counts) == name and is_same(raw, entry(counts))
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
        return None
    return counts if is_ours else None


def is_same(raw: Any, expected: Any) -> bool:
    """Whether an entry is as it is written here, types included: in Python 1 equals True."""
    try:
        return json.dumps(raw, sort_keys=True) == json.dumps(expected, sort_keys=True)
    except (TypeError, ValueError):
        return False
