"""A Kubernetes Node as a GPU node: which devices new replicas may be given, and why not the others.

The operator and `tangram plan` read nodes here, so both leave out the same devices.
"""

from collections.abc import Iterable

from tangram.catalog.reading.fields import shortened
from tangram.eligibility.devices.device_rules import (
    LabelledBoard,
    LeftOutReason,
    NodeFacts,
    is_gpu,
    left_out_by_taints,
    left_out_devices,
    left_out_node,
    offered_devices,
)
from tangram.eligibility.devices.tolerations import Toleration
from tangram.fleet import LeftOut, Node
from tangram.fleet.labels import ZONE_LABEL
from tangram.fleet.quantity import parse_quantity

PARTLY = frozenset({LeftOutReason.UNHEALTHY, LeftOutReason.NOT_OFFERED})
"""Reasons that leave out some devices of a resource, and not the others."""
_FINAL = frozenset(
    {
        LeftOutReason.UNKNOWN,
        LeftOutReason.MIXED,
        LeftOutReason.NO_GPU,
        LeftOutReason.VIRTUAL,
        LeftOutReason.MIG_INVALID,
        LeftOutReason.MIG_STRATEGY,
        LeftOutReason.SHARED,
    }
)
"""Reasons that make other ones needless: no device is what the labels describe."""


def gpu_node(facts: NodeFacts, added: Iterable[Toleration] = (), selected: Iterable[str] = ()) -> Node:
    """Return the GPU node: its SKU, the devices that new replicas may be given, and those that are left out.

    Engine pods have their usual tolerations and those that the settings have `added`. Labels with keys in
    `selected` are kept. `allocatable` of a node that is left out as a whole is what it offers once it is
    back; it never holds devices that are left out one by one.
    """
    offered = offered_devices(facts.allocatable)
    capacity = offered_devices(facts.capacity)
    capacity |= {r: max(n, capacity.get(r, 0)) for r, n in offered.items()}
    board = LabelledBoard.of(facts)
    has_gpus = bool(capacity or board.product or any(map(is_gpu, facts.allocatable)))
    taints = tuple(left_out_by_taints(facts, board, capacity, tuple(added))) if has_gpus else ()
    on_node = tuple(left_out for left_out in taints if not left_out.resource)
    if has_gpus:
        on_node += tuple(left_out_node(facts, board, capacity))
    is_final = any(left_out.reason in _FINAL for left_out in on_node)
    on_devices = () if is_final else tuple(left_out for left_out in taints if left_out.resource)
    # A slice that is held has its place in the layout, like one that is unhealthy: neither given nor cut.
    held = {left_out.resource for left_out in on_devices}
    if not is_final:
        on_devices += tuple(left_out_devices(facts, board, offered, capacity))
    unusable = {left_out.resource for left_out in on_devices if left_out.reason not in PARTLY}
    allocatable = {r: n for r, n in offered.items() if n and r not in unusable and is_gpu(r)}
    missing = {r: n - (0 if r in held else offered.get(r, 0)) for r, n in capacity.items() if is_gpu(r)}
    return Node(
        name=facts.name,
        sku=board.sku,
        product=board.product,
        usable=facts.ready and not on_node,
        allocatable=tuple(sorted(allocatable.items())),
        zone=facts.label(ZONE_LABEL),
        gpus=board.gpus,
        labels=tuple(sorted((key, facts.labels[key]) for key in set(selected) if key in facts.labels)),
        unhealthy=tuple(sorted((r, n) for r, n in missing.items() if n > 0)),
        left_out=(*on_node, *on_devices),
        host_cpu=_amount(facts, "cpu"),
        host_memory=_amount(facts, "memory"),
    )


def _amount(facts: NodeFacts, resource: str) -> float | None:
    """Return what a node offers of a resource of its host; None: not known, or no quantity."""
    try:
        return parse_quantity(str(facts.allocatable[resource]))
    except (KeyError, ValueError):
        return None


def holds_replicas(node: Node) -> bool:
    """Whether the replicas on a node keep their devices, even if no new replica may be given one.

    On a node that is not ready, cordoned or tainted, replicas are expected to end.
    """
    is_leaving = any(left_out.reason in _LEAVING and not left_out.resource for left_out in node.left_out)
    return node.usable or (bool(node.left_out) and not is_leaving)


def is_lost(node: Node) -> bool:
    """Whether a node is not ready: its kubelet does not say what runs there."""
    reasons = {left_out.reason for left_out in node.left_out}
    return LeftOutReason.NOT_READY in reasons or not (node.usable or reasons)


def left_out_of(node: Node, resource: str) -> tuple[LeftOut, ...]:
    """Return why no new replica is given any device of `resource` on a node; none: some may be free."""
    return tuple(
        left_out
        for left_out in node.left_out
        if not left_out.resource or (left_out.resource == resource and left_out.reason not in PARTLY)
    )


_LEAVING = frozenset({LeftOutReason.NOT_READY, LeftOutReason.CORDONED, LeftOutReason.TAINTED})


def left_out_notes(nodes: Iterable[Node], template: str = "left out: {nodes}: {reason}") -> list[str]:
    """Return one note for each reason, with the first few of its nodes by name."""
    names: dict[str, list[str]] = {}
    for node in sorted(nodes, key=lambda node: node.name):
        for left_out in node.left_out:
            names.setdefault(left_out.message, []).append(node.name)
    return [
        template.format(nodes=f"node{'s' * (len(named) > 1)} {shortened(named)}", reason=message)
        for message, named in names.items()
    ]
