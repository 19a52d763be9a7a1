"""Our ConfigMap for mig-manager, and the ClusterPolicy that is to name it.

Both are read from the API server each round: a node is changed rarely, and a mirror of all ConfigMaps of a
namespace would hold what others wrote. Every write has the version that was read.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tangram.fleet.labels import MANAGED_BY, MANAGED_BY_LABEL
from tangram.kube.client import ApiClient, Guard
from tangram.kube.kinds import CLUSTER_POLICIES, CONFIG_MAPS, Object, labels_of
from tangram.partition.mig_manager.config_entries import (
    ALL_DISABLED,
    CONFIG_KEY,
    MIGConfig,
    first_text,
    parse_entries,
    with_entry,
)
from tangram.partition.mig_manager.node_counts import RETRY, NodeCounts
from tangram.partition.status.operator_labels import MIG_CONFIG_LABEL, MIG_MANAGER_LABEL
from tangram.partition.status.times import parse_api_time

MANAGER = "tangram-mig-manager"  # field manager


@dataclass(slots=True)
class MIGConfigMap:
    """The ConfigMap `name` in the namespace of the GPU Operator. Methods raise ApiError and NotLeader."""

    client: ApiClient
    guard: Guard
    namespace: str
    name: str
    policy_name: str  # of the ClusterPolicy that is to name it
    _live: Object | None = None  # as read last
    _policy: Object | None = None
    config: MIGConfig = field(default_factory=lambda: MIGConfig(""))

    async def read(self, nodes: Iterable[Object]) -> MIGConfig:
        """Read both. `nodes`: all of the cluster, whose labels may name entries that the ConfigMap lacks."""
        self._policy = await self.client.get(CLUSTER_POLICIES, "", self.policy_name)
        self._live = await self.client.get(CONFIG_MAPS, self.namespace, self.name)
        entries = parse_entries((self._live or {}).get("data"))
        problem, read = (entries, {}) if isinstance(entries, str) else ("", entries)
        known = {*read, ALL_DISABLED, RETRY, ""}
        named = {
            labels_of(node).get(MIG_CONFIG_LABEL, "")
            for node in nodes
            if labels_of(node).get(MIG_MANAGER_LABEL) == "true"
        }
        self.config = MIGConfig(
            name=self.name,
            policy=None if self._policy is None else str(self._policy["metadata"]["name"]),
            named=_named(self._policy),
            entries=read,
            written_at=_written_at(self._live),
            problem=problem,
            missing=tuple(sorted(named - known)),
        )
        return self.config

    async def create(self) -> bool:
        """Create the ConfigMap where there is none, so that ClusterPolicy may name it; whether it was."""
        if self._live is not None or self._policy is None:
            return False
        await self.client.create(CONFIG_MAPS, self._object(first_text()), manager=MANAGER, guard=self.guard)
        return True

    def _object(self, text: str) -> Object:
        labels = {MANAGED_BY_LABEL: MANAGED_BY}
        return {
            "apiVersion": CONFIG_MAPS.api_version,
            "kind": CONFIG_MAPS.kind,
            "metadata": {"name": self.name, "namespace": self.namespace, "labels": labels},
            "data": {CONFIG_KEY: text},
        }

    async def add(self, layouts: Iterable[NodeCounts], used: Iterable[str]) -> None:
        """Add the entries of layouts. Raises `ConfigTooLarge`; ApiError 409 where it has changed since."""
        names, entries, text = set(used), self.config.entries, ""
        for counts in layouts:
            text = with_entry(entries, counts, names)
            read = parse_entries({CONFIG_KEY: text})
            entries = entries if isinstance(read, str) else read
        if self._live is None:
            await self.client.create(CONFIG_MAPS, self._object(text), manager=MANAGER, guard=self.guard)
            return
        patch = {
            "metadata": {"resourceVersion": self._live["metadata"]["resourceVersion"]},
            "data": {CONFIG_KEY: text},
        }
        await self.client.merge(
            CONFIG_MAPS, self.namespace, self.name, patch, manager=MANAGER, guard=self.guard
        )

    async def name_in_policy(self) -> bool:
        """Make ClusterPolicy name the ConfigMap, if it is there and has every entry that nodes name."""
        config, policy = self.config, self._policy
        if policy is None or config.is_named or config.missing or config.problem or not config.entries:
            return False
        patch = {
            "metadata": {"resourceVersion": policy["metadata"]["resourceVersion"]},
            "spec": {"migManager": {"config": {"name": self.name}}},
        }
        name = str(policy["metadata"]["name"])
        await self.client.merge(CLUSTER_POLICIES, "", name, patch, manager=MANAGER, guard=self.guard)
        return True


def _named(policy: Object | None) -> str | None:
    value: Any = policy
    for key in ("spec", "migManager", "config", "name"):
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None


def _written_at(obj: Object | None) -> datetime | None:
    """Return when an object was last written, by the record of the API server."""
    meta = (obj or {}).get("metadata") or {}
    times = [entry.get("time") for entry in meta.get("managedFields") or ()]
    moments = [parse_api_time(text) for text in (*times, meta.get("creationTimestamp")) if text]
    return max((moment for moment in moments if moment is not None), default=None)
