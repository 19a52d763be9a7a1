"""The conditions of a GPUPool: whether its spec is accepted, and whether its nodes offer their GPUs. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from tangram.eligibility.devices.device_rules import LeftOutReason
from tangram.eligibility.devices.node_devices import left_out_notes
from tangram.fleet import InvalidPool, Node, Pool
from tangram.fleet.labels import PRODUCT_LABEL

Verdict = tuple[str, str, str]
"""Status, reason and message of a condition."""

_MOST_NAMED = 3
# A node that takes no newcomers by a person's will is Ready, and offers its GPUs.
_KEPT_AWAY = frozenset({LeftOutReason.CORDONED, LeftOutReason.TAINTED})


def accepted(pool: Pool | InvalidPool, members: Mapping[Node, list[str]]) -> Verdict:
    """Return Accepted. `members`: the names of the pools that claim each node; the first has it."""
    if isinstance(pool, InvalidPool):
        return "False", "InvalidSpec", pool.message
    lost = sorted((node.name, names[0]) for node, names in members.items() if pool.name in names[1:])
    if lost:
        (node, owner), more = lost[0], len(lost) - 1
        others = f" (and {more} more of its nodes to others)" if more else ""
        return (
            "False",
            "Conflict",
            f"node {node} belongs to GPUPool {owner} already{others}: make the selectors exclude each other",
        )
    mine = [node for node, names in members.items() if names[0] == pool.name]
    other = sorted((node.name, node.product) for node in mine if _contradicts(node, pool))
    if other:
        (node, product), more = other[0], len(other) - 1
        others = f" (and {more} more of its nodes have another model)" if more else ""
        return (
            "False",
            "SKUMismatch",
            f"spec.sku is {pool.sku}, but node {node} has the label {PRODUCT_LABEL}={product}{others}: the"
            " label counts, and plans add no nodes; correct spec.sku, or select these nodes by a GPUPool of"
            " their own",
        )
    return "True", "Valid", "; ".join(("the spec is valid", *_remarks(pool, mine)))


def _contradicts(node: Node, pool: Pool) -> bool:
    """Whether the product label of a node names another model than its pool."""
    return pool.sku is not None and bool(node.product) and node.sku != pool.sku


def _remarks(pool: Pool, mine: Sequence[Node]) -> Iterator[str]:
    """Say what a person may not have meant."""
    skus = sorted({node.sku for node in mine if node.sku})
    if pool.max_nodes is None or pool.max_nodes <= len(mine) or pool.sku is not None:
        return
    if not skus:
        yield "plans add no nodes, because spec.sku does not say which GPUs they would have"
    elif len(skus) > 1:
        yield f"plans add no nodes, because its own have {', '.join(skus)}"


def ready(pool: Pool | InvalidPool, mine: Sequence[Node]) -> Verdict:
    """Return Ready, of a pool with these nodes."""
    if isinstance(pool, InvalidPool):
        return "Unknown", "NotAccepted", "waits for Accepted"
    if not mine:
        return "False", "NoNodes", "no GPU node has all labels of spec.nodeSelector"
    away = [node.name for node in mine if not is_ready(node)]
    if away:
        return "False", "NodesNotReady", f"{_counted(away, mine)} not Ready: {_listed(away)}"
    short = [node for node in mine if not _offers_all(node)]
    notes = left_out_notes(mine)
    if short:
        names = [node.name for node in short]
        told = f"{_counted(names, mine)} Ready but without all GPUs on offer: {_listed(names)}"
        return "False", "GPUsLeftOut", "; ".join((told, *notes))
    all_of = f"all {len(mine)} nodes are" if len(mine) > 1 else "its node is"
    offer = "offer their GPUs" if len(mine) > 1 else "offers its GPUs"
    return "True", "NodesReady", "; ".join((f"{all_of} Ready and {offer}", *notes))


def is_ready(node: Node) -> bool:
    """Whether the condition Ready of a node is True."""
    return all(each.reason != LeftOutReason.NOT_READY for each in node.left_out)


def offers(node: Node) -> bool:
    """Whether a node offers GPUs and slices that pods may be given, now or once it takes pods again."""
    left_out = (each for each in node.left_out if not each.resource)
    return node.sku is not None and all(each.reason in _KEPT_AWAY for each in left_out)


def _offers_all(node: Node) -> bool:
    """Whether a node offers devices, and none of them is left out for what it is."""
    return offers(node) and bool(node.allocatable) and not any(each.resource for each in node.left_out)


def _counted(names: Sequence[str], mine: Sequence[Node]) -> str:
    return f"{len(names)} of {len(mine)} nodes {'is' if len(names) == 1 else 'are'}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(sorted(names)[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
