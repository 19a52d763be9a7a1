"""Remember the devices that each node offered recently: a restarting device plugin offers none for a while.

Running pods hold their devices whatever the node offers, so nothing is remembered for them. The remembered
counts serve replicas with an assigned device whose pod does not exist yet. A restarted operator takes them
from the capacity of the node, which the kubelet keeps for as long as devices are withheld here: a device that
the capacity lacks, too, has been gone for longer. Where the layouts of its GPUs are known, a node withholds
no device that they do not have.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tangram.eligibility.devices.device_rules import LeftOutReason
from tangram.eligibility.devices.node_devices import PARTLY, holds_replicas
from tangram.fleet import LeftOut, Node, NodePartition
from tangram.fleet.times import rfc3339

# The kubelet keeps the capacity of a stopped device plugin for five minutes
# (endpointStopGracePeriod, kubernetes/pkg/kubelet/cm/devicemanager/endpoint.go).
WITHHELD_S = 300.0


@dataclass(frozen=True, slots=True)
class _OfferedCount:
    """The devices of one resource that one node offered."""

    most: int  # the most it offered, without lost devices
    unhealthy: int = 0  # devices in its capacity that are taken as lost for good
    since: float | None = None  # since when it offers fewer
    lost: int = 0  # devices that did not return within WITHHELD_S
    lost_since: float = 0.0


@dataclass(slots=True)
class OfferedDevices:
    """The device counts that nodes offered, by node and resource."""

    _counts: dict[tuple[str, str], _OfferedCount] = field(default_factory=dict)

    def remember(
        self, nodes: Iterable[Node], now: float, partitions: Iterable[NodePartition] = ()
    ) -> tuple[Node, ...]:
        """Return the nodes with the devices that each withholds at `now` (epoch seconds) and has lost.

        `partitions`: the layouts of their GPUs. A node that is not ready, cordoned or tainted withholds none:
        its replicas are expected to leave.
        """
        observed, existing = tuple(nodes), {each.node: each.devices for each in partitions}
        names = {node.name for node in observed}
        for key in [key for key in self._counts if key[0] not in names]:
            del self._counts[key]
        return tuple(
            self._with_withheld(node, now, existing.get(node.name)) if holds_replicas(node) else node
            for node in observed
        )

    def _with_withheld(self, node: Node, now: float, existing: Counter[str] | None) -> Node:
        """Return the node with the devices that it withholds and the notes on them; update their counts.

        `existing`: the devices that its GPUs have; None: not known.
        """
        excluded = {note.resource for note in node.left_out if note.reason not in PARTLY}
        for resource in excluded:  # it is shared, for example: its earlier devices do not come back
            self._counts.pop((node.name, resource), None)
        offered = dict(node.allocatable)
        plugin_runs = bool(offered)
        unhealthy = {resource: n for resource, n in node.unhealthy if resource not in excluded}
        remembered = {resource for name, resource in self._counts if name == node.name}
        withheld, notes = [], []
        for resource in sorted(offered.keys() | unhealthy.keys() | remembered):
            before = self._counts.get((node.name, resource))
            if before is not None and existing is not None:
                before = replace(before, most=min(before.most, existing[resource]))
            count = _updated(
                before,
                offered.get(resource, 0),
                unhealthy.get(resource, 0),
                now,
            )
            if plugin_runs and not offered.get(resource):
                count = replace(count, lost=0)  # the GPUs were re-cut
            self._counts[node.name, resource] = count
            missing = count.most - offered.get(resource, 0)
            if missing > 0:
                withheld.append((resource, missing))
            if not unhealthy.get(resource) and (missing > 0 or count.lost):
                notes.append(_note(resource, offered.get(resource, 0), count))
        if not withheld and not notes:
            return node
        return replace(node, withheld=tuple(withheld), left_out=(*node.left_out, *notes))


def _updated(before: _OfferedCount | None, offered: int, unhealthy: int, now: float) -> _OfferedCount:
    """Return the record of a resource after an observation of `offered` and `unhealthy` devices."""
    if before is None:
        before = _OfferedCount(offered)
    lost_for_good = min(before.unhealthy, unhealthy)
    full = max(before.most, offered + unhealthy - lost_for_good)
    if offered >= full:
        lost = max(0, before.lost - max(0, offered - before.most))
        return _OfferedCount(offered, lost_for_good, None, lost, before.lost_since)
    since = now if before.since is None or before.since > now else before.since  # the clock went back
    if now - since < WITHHELD_S:
        return _OfferedCount(full, lost_for_good, since, before.lost, before.lost_since)
    return _OfferedCount(offered, unhealthy, None, before.lost + full - offered, since)


def _note(resource: str, offered: int, count: _OfferedCount) -> LeftOut:
    missing, since = max(0, count.most - offered) + count.lost, count.since or count.lost_since
    message = (
        f"offers {offered} {resource}, {missing} fewer than before {rfc3339(since)}: its device plugin is not"
        " running, or the devices failed; see the log of the plugin"
    )
    return LeftOut(LeftOutReason.NOT_OFFERED, message, resource)
