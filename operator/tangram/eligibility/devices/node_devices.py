"""A Kubernetes Node as a GPU node: which devices newcomers may be given, and why not the others.

The operator and `tangram plan` read nodes here, so both leave out the same devices.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tangram.eligibility.devices.device_rules import (
    NODE_RULES,
    WHOLE,
    LabelledBoard,
    NodeFacts,
    Why,
    is_gpu,
    of_devices,
    offered_devices,
    units,
)
from tangram.eligibility.devices.tolerations import (
    GPU_TAINTS,
    Toleration,
    engine_tolerations,
    held_resource,
    tolerates,
)
from tangram.fleet import LeftOut, Node
from tangram.fleet.labels import ZONE_LABEL
from tangram.fleet.pod_requests import SHARED_SUFFIX

_BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")

PARTLY = frozenset({Why.UNHEALTHY, Why.NOT_OFFERED})
"""Reasons that concern some devices of a resource: the others stay."""
_FINAL = frozenset(
    {Why.UNKNOWN, Why.MIXED, Why.NO_GPU, Why.VIRTUAL, Why.MIG_INVALID, Why.MIG_STRATEGY, Why.SHARED}
)


def gpu_node(facts: NodeFacts, added: Iterable[Toleration] = (), selected: Iterable[str] = ()) -> Node:
    """Return the GPU node: its SKU, what newcomers may be given, what is left out.

    Newcomers tolerate what every engine does, and what the settings have `added`.

    Of its labels those whose keys are in `selected` are kept. `allocatable` of a node that is left out as a
    whole is what it offers once it is back; of devices left out one by one it holds nothing.
    """
    offered = offered_devices(facts.allocatable)
    capacity = offered_devices(facts.capacity) or offered
    capacity = {r: max(capacity.get(r, 0), n) for r, n in offered.items()} | {
        r: n for r, n in capacity.items() if r not in offered
    }
    board = LabelledBoard.of(facts)
    there = bool(capacity or board.product or any(map(is_gpu, facts.allocatable)))
    taints = tuple(_closing_taints(facts, board, capacity, tuple(added))) if there else ()
    closed = (each for each in taints if not each.resource)
    whole = (*closed, *_of_node(facts, board, capacity)) if there else ()
    held = tuple(each for each in taints if each.resource)
    single = () if any(map(_final, whole)) else (*held, *of_devices(facts, board, offered, capacity))
    gone = {each.resource for each in single if each.reason not in PARTLY}
    kept = {r: n for r, n in offered.items() if r not in gone and not r.endswith(SHARED_SUFFIX)}
    # A slice that is held has its place in the layout, like one that is unhealthy: neither given nor cut.
    at_hand = {r: n for r, n in offered.items() if r not in {each.resource for each in held}}
    return Node(
        name=facts.name,
        sku=board.sku,
        product=board.product,
        usable=facts.ready and not whole,
        allocatable=tuple(sorted((r, n) for r, n in kept.items() if n)),
        zone=facts.label(ZONE_LABEL),
        gpus=board.gpus,
        labels=tuple(sorted((key, facts.labels[key]) for key in set(selected) if key in facts.labels)),
        unhealthy=tuple(
            sorted(
                (r, n - at_hand.get(r, 0)) for r, n in capacity.items() if is_gpu(r) and n > at_hand.get(r, 0)
            )
        ),
        left_out=(*whole, *single),
    )


def holds_replicas(node: Node) -> bool:
    """Whether the replicas on a node keep their places: newcomers may be kept away while these run on.

    Where the node is not ready, cordoned or tainted they are expected to go.
    """
    leaving = any(each.reason in _LEAVING and not each.resource for each in node.left_out)
    return node.usable or (bool(node.left_out) and not leaving)


_LEAVING = frozenset({Why.NOT_READY, Why.CORDONED, Why.TAINTED})


def left_out_notes(nodes: Iterable[Node]) -> list[str]:
    """Return one sentence for each reason, with the nodes that it is about: the first few by name."""
    names: dict[str, list[str]] = {}
    for node in sorted(nodes, key=lambda each: each.name):
        for each in node.left_out:
            names.setdefault(each.message, []).append(node.name)
    return [f"left out: {_listed(named)}: {message}" for message, named in names.items()]


_MOST_NAMED = 3


def _listed(names: list[str]) -> str:
    if len(names) == 1:
        return f"node {names[0]}"
    more = len(names) - _MOST_NAMED
    return f"nodes {', '.join(names[:_MOST_NAMED])}" + (f" and {more} more" if more > 0 else "")


def _of_node(
    facts: NodeFacts,
    board: LabelledBoard,
    capacity: Mapping[str, int],
) -> Iterator[LeftOut]:
    for resource, value in facts.allocatable.items():
        if is_gpu(str(resource)) and units(value) is None:
            said = f"allocatable {resource} is {str(value)[:40]!r}, no number of devices"
            yield LeftOut(Why.UNKNOWN, f"{said}; look at the device plugin")
    for rule in NODE_RULES:
        for reason, message in rule(facts, board, capacity):
            yield LeftOut(reason, message)


def _closing_taints(
    facts: NodeFacts, board: LabelledBoard, capacity: Mapping[str, int], added: tuple[Toleration, ...]
) -> Iterator[LeftOut]:
    """Yield what taints close: the node, or single resources whose engines do not tolerate one."""
    there = {r for r in capacity if is_gpu(r)}
    for taint in facts.taints:
        if taint.get("effect") not in _BLOCKING_EFFECTS:
            continue
        if facts.unschedulable and taint.get("key") == "node.kubernetes.io/unschedulable":
            continue
        if any(tolerates(each, taint) for each in (*GPU_TAINTS, *added)):
            continue  # by engines on every resource
        held = held_resource(taint)
        asked = there | ({held} if held else set()) or {WHOLE}
        closed = sorted(
            resource
            for resource in asked
            if not any(tolerates(t, taint) for t in engine_tolerations(board.sku or "", resource, added))
        )
        if held:
            yield from (LeftOut(Why.HELD, _held(taint, resource), resource) for resource in closed)
        elif len(closed) == len(asked):
            yield LeftOut(Why.TAINTED, f"engine pods {_untolerated(taint)}")
        else:
            yield from (
                LeftOut(Why.TAINTED, f"engines on {resource} {_untolerated(taint)}", resource)
                for resource in closed
            )


def _held(taint: Mapping[str, Any], resource: str) -> str:
    return (
        f"taint {taint['key']}: {resource} is held while GPUs are cut anew; newcomers wait until it is gone"
    )


def _untolerated(taint: Mapping[str, Any]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return (
        f"do not tolerate its taint {taint.get('key', '')}{value}:{taint['effect']}; remove"
        " it, or add a toleration to the chart's value engine.tolerations"
    )


def _final(each: LeftOut) -> bool:
    """Whether the devices are not worth a further sentence: none of them is what the labels describe."""
    return each.reason in _FINAL
