"""The ConfigMap that mig-manager reads: what it holds, and what is written into it.

Entries of ours are named by their hash and never edited. Those that others wrote stay as they are.
Source: NVIDIA/mig-parted, api/spec/v1; ClusterPolicy, spec.migManager.config.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import yaml

from tangram.catalog.reading import yaml_text
from tangram.partition.mig_manager.node_counts import ENTRY_PREFIX, NodeCounts, entry, entry_name, is_same

CONFIG_KEY = "config.yaml"
ALL_DISABLED = "all-disabled"  # what the GPU Operator sets on nodes without a label, by default
MAX_TEXT_BYTES = 900_000  # the API server takes 1 MiB for the whole ConfigMap
UNUSED_KEPT = 20  # entries of ours that no node's label and no GPUNode names
_MIG_CONFIGS = "mig-configs"
_BASE: Mapping[str, Any] = {ALL_DISABLED: [{"devices": "all", "mig-enabled": False}]}


class ConfigTooLarge(Exception):
    """The entries in use do not fit into a ConfigMap."""


@dataclass(frozen=True, slots=True)
class MIGConfig:
    """Our ConfigMap and the ClusterPolicy that is to name it, as read in one round."""

    name: str  # of our ConfigMap
    policy: str | None = None  # name of the ClusterPolicy; None: there is none
    named: str | None = None  # the ConfigMap that it names
    entries: Mapping[str, Any] = field(default_factory=dict)
    written_at: datetime | None = None  # when the ConfigMap was last written
    problem: str = ""  # why its content cannot be used
    missing: tuple[str, ...] = ()  # entries that labels of nodes name and it lacks

    @property
    def is_named(self) -> bool:
        """Whether mig-manager reads our ConfigMap."""
        return self.policy is not None and self.named == self.name

    def has(self, counts: NodeCounts) -> bool:
        """Whether the entry of a layout is there, as it was written."""
        return is_same(self.entries.get(entry_name(counts)), entry(counts))


def parse_entries(data: Any) -> Mapping[str, Any] | str:
    """Return the entries in the data of a ConfigMap by their names, or why they cannot be read."""
    text = data.get(CONFIG_KEY) if isinstance(data, Mapping) else None
    if text is None:
        return {}
    if not isinstance(text, str):
        return f"{CONFIG_KEY} is no text"
    try:
        document = yaml_text.load(text)
    except yaml_text.ERRORS as error:
        line, problem = yaml_text.line_and_problem(error)
        return f"{CONFIG_KEY}{line}: not YAML: {problem}"
    if document is None:
        return {}
    entries = document.get(_MIG_CONFIGS) if isinstance(document, dict) else None
    if not isinstance(entries, dict) or not all(isinstance(name, str) for name in entries):
        return f"{CONFIG_KEY} has no mapping {_MIG_CONFIGS} of entries by name"
    return entries


def with_entry(entries: Mapping[str, Any], counts: NodeCounts, used: Iterable[str]) -> str:
    """Return the text of the ConfigMap with the entry of a layout, without old entries that nothing names.

    `used`: the names that labels of nodes have, and those of layouts that GPUNodes want. Entries are in the
    order in which they were added. Raises `ConfigTooLarge`.
    """
    name, kept = entry_name(counts), set(used)
    added = {**_BASE, **entries, name: entry(counts)}
    unused = [each for each in added if each.startswith(ENTRY_PREFIX) and each not in kept | {name}]
    for most in (UNUSED_KEPT, 0):
        pruned = set(unused[: max(0, len(unused) - most)])
        text = _text({each: added[each] for each in added if each not in pruned})
        if len(text.encode()) <= MAX_TEXT_BYTES:
            return text
    raise ConfigTooLarge(f"{len(added) - len(unused)} entries in use take more than {MAX_TEXT_BYTES} bytes")


def first_text() -> str:
    """Return the text of the ConfigMap before any layout is wanted: what nodes without a layout have."""
    return _text(_BASE)


def _text(entries: Mapping[str, Any]) -> str:
    document = {"version": "v1", _MIG_CONFIGS: dict(entries)}
    return yaml.dump(document, Dumper=_EntryDumper, sort_keys=False, default_flow_style=None)


class _EntryDumper(yaml.SafeDumper):
    """Writes equal parts out instead of as aliases, which mig-parted need not know."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
