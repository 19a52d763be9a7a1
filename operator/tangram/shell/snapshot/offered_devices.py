"""Devices that nodes offered until lately: a device plugin that restarts offers none for a while.

Pods that run hold their devices whatever the node offers, so nothing has to be remembered for them. What is
remembered is how much each node offered, for replicas that were given a device and whose pod is still to
come. An operator that starts anew knows that of the node's capacity, which the kubelet keeps for as long as
devices are withheld here: what the capacity has lost, too, has been gone for longer.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tangram.eligibility.devices.device_rules import LeftOutReason
from tangram.eligibility.devices.node_devices import PARTLY, holds_replicas
from tangram.fleet import LeftOut, Node
from tangram.fleet.times import rfc3339

# The kubelet keeps the capacity of a device plugin that has gone for five minutes
# (endpointStopGracePeriod, kubernetes/pkg/kubelet/cm/devicemanager/endpoint.go).
WITHHELD_S = 300.0


@dataclass(frozen=True, slots=True)
class _OfferedCount:
    """What one node offered of one resource."""

    count: int  # at most, of what it is not known to have lost
    unhealthy: int = 0  # of its capacity, lost for good as far as is known
    since: float | None = None  # when it began to offer less
    lost: int = 0  # devices that it did not offer again in time
    lost_since: float = 0.0


@dataclass(slots=True)
class OfferedDevices:
    """The memory of what nodes offered, by node and resource."""

    _offers: dict[tuple[str, str], _OfferedCount] = field(default_factory=dict)

    def remember(self, nodes: Iterable[Node], now: float) -> tuple[Node, ...]:
        """Return the nodes with what each withholds at `now` (epoch seconds) and what it has lost.

        A node that is not ready, cordoned or tainted withholds nothing: its replicas are expected to go.
        """
        there = tuple(nodes)
        names = {node.name for node in there}
        for key in [key for key in self._offers if key[0] not in names]:
            del self._offers[key]
        return tuple(self._one(node, now) if holds_replicas(node) else node for node in there)

    def _one(self, node: Node, now: float) -> Node:
        others = {each.resource for each in node.left_out if each.reason not in PARTLY}
        for resource in others:  # it is shared, say: what the node offered before does not come back
            self._offers.pop((node.name, resource), None)
        offered = dict(node.allocatable)
        unhealthy = {resource: n for resource, n in node.unhealthy if resource not in others}
        known = {resource for name, resource in self._offers if name == node.name}
        withheld, notes = [], []
        for resource in sorted(offered.keys() | unhealthy.keys() | known):
            offer = _looked(
                self._offers.get((node.name, resource)),
                offered.get(resource, 0),
                unhealthy.get(resource, 0),
                now,
            )
            if not offered.get(resource) and offered:
                offer = replace(offer, lost=0)  # its device plugin runs: the GPUs were cut anew
            self._offers[node.name, resource] = offer
            missing = offer.count - offered.get(resource, 0)
            if missing > 0:
                withheld.append((resource, missing))
            if not unhealthy.get(resource) and (missing > 0 or offer.lost):
                notes.append(_note(resource, offered.get(resource, 0), offer))
        if not withheld and not notes:
            return node
        return replace(node, withheld=tuple(withheld), left_out=(*node.left_out, *notes))


def _looked(before: _OfferedCount | None, offered: int, unhealthy: int, now: float) -> _OfferedCount:
    """Return what is known of a resource after one more look."""
    if before is None:
        before = _OfferedCount(offered)
    sick = min(before.unhealthy, unhealthy)
    full = max(before.count, offered + unhealthy - sick)
    if offered >= full:
        lost = max(0, before.lost - max(0, offered - before.count))
        return _OfferedCount(offered, sick, None, lost, before.lost_since)
    since = now if before.since is None or before.since > now else before.since  # a clock that was set back
    if now - since < WITHHELD_S:
        return _OfferedCount(full, sick, since, before.lost, before.lost_since)
    return _OfferedCount(offered, unhealthy, None, before.lost + full - offered, since)


def _note(resource: str, offered: int, offer: _OfferedCount) -> LeftOut:
    missing, since = max(0, offer.count - offered) + offer.lost, offer.since or offer.lost_since
    message = (
        f"offers {offered} {resource}, and {missing} fewer than before {rfc3339(since)}: its device plugin is"
        " gone, or the devices failed; look at its log"
    )
    return LeftOut(LeftOutReason.NOT_OFFERED, message, resource)
