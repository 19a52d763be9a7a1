"""Compute the conditions of a GPUPool: Accepted (its spec and selector) and Ready (its nodes). Pure."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from tangram.catalog.reading.fields import shortened
from tangram.eligibility.acceptance import VALID
from tangram.eligibility.devices.device_rules import LeftOutReason
from tangram.eligibility.devices.node_devices import left_out_notes
from tangram.fleet import InvalidPool, Node, Pool, PoolPolicy
from tangram.fleet.labels import PRODUCT_LABEL

ConditionValue = tuple[str, str, str]
"""Status, reason and message of a condition."""

NO_NODES = "no GPU node has all labels of spec.nodeSelector"
# A node that an administrator cordons or taints is still Ready, and offers its GPUs.
_BY_ADMINISTRATOR = frozenset({LeftOutReason.CORDONED, LeftOutReason.TAINTED})


def accepted(pool: Pool | InvalidPool, members: Mapping[Node, tuple[str, ...]]) -> ConditionValue:
    """Return Accepted. `members` names the pools that select each node; a node belongs to the first."""
    if isinstance(pool, InvalidPool):
        return "False", "InvalidSpec", pool.message
    if pool.refused_edit:
        return "False", "InvalidSpec", pool.refused_edit
    conflicts = sorted((node.name, names[0]) for node, names in members.items() if pool.name in names[1:])
    if conflicts:
        (node, owner), more = conflicts[0], len(conflicts) - 1
        others = f" (and {more} more of its nodes to others)" if more else ""
        return (
            "False",
            "Conflict",
            f"node {node} belongs to GPUPool {owner} already{others}: make the selectors exclude each other",
        )
    nodes = [node for node, names in members.items() if names[0] == pool.name]
    mismatches = sorted((node.name, node.product) for node in nodes if _has_other_sku(node, pool))
    if mismatches:
        (node, product), more = mismatches[0], len(mismatches) - 1
        others = f" (and {more} more of its nodes have another model)" if more else ""
        return (
            "False",
            "SKUMismatch",
            f"spec.sku is {pool.sku}, but node {node} has the label {PRODUCT_LABEL}={product}{others}: the"
            " label takes precedence, and plans add no nodes; correct spec.sku, or select these nodes with a"
            " GPUPool of their own",
        )
    return "True", "Valid", "; ".join((VALID, *_warnings(pool, nodes)))


def _has_other_sku(node: Node, pool: Pool) -> bool:
    """Whether the product label of a node names another SKU than its pool."""
    return pool.sku is not None and bool(node.product) and node.sku != pool.sku


def _warnings(pool: Pool, nodes: Sequence[Node]) -> Iterator[str]:
    """Yield warnings about a valid spec that is perhaps not as intended."""
    skus = sorted({node.sku for node in nodes if node.sku})
    if pool.max_nodes is None or pool.max_nodes <= len(nodes) or pool.sku is not None:
        return
    if not skus:
        yield "plans add no nodes, because spec.sku does not say which GPUs they would have"
    elif len(skus) > 1:
        yield f"plans add no nodes, because its nodes have different GPUs: {', '.join(skus)}"


def ready(
    pool: Pool | InvalidPool, nodes: Sequence[Node], problems: Mapping[str, str] = MappingProxyType({})
) -> ConditionValue:
    """Return Ready of a pool with these nodes. `problems`: why no GPU is cut, by node."""
    if isinstance(pool, InvalidPool):
        return "Unknown", "NotAccepted", "waits until condition Accepted is True"
    if not nodes:
        return "False", "NoNodes", NO_NODES
    not_ready = sorted(node.name for node in nodes if not is_ready(node))
    if not_ready:
        return "False", "NodesNotReady", f"{_counted(not_ready, nodes)} not Ready: {shortened(not_ready)}"
    incomplete = sorted(node.name for node in nodes if not _offers_all(node))
    uncuttable = tuple(_uncuttable(pool, nodes, problems))
    notes = (*left_out_notes(nodes), *uncuttable)
    if incomplete:
        do = "does not offer all its" if len(incomplete) == 1 else "do not offer all their"
        message = f"{_counted(incomplete, nodes)} Ready but {do} GPUs: {shortened(incomplete)}"
        return "False", "GPUsLeftOut", "; ".join((message, *notes))
    all_of = f"all {len(nodes)} nodes are" if len(nodes) > 1 else "its node is"
    offer = "offer their GPUs" if len(nodes) > 1 else "offers its GPUs"
    reason = "NoGPUIsCut" if uncuttable else "NodesReady"  # pods run there all the same
    return "True", reason, "; ".join((f"{all_of} Ready and {offer}", *notes))


def _uncuttable(pool: Pool, nodes: Sequence[Node], problems: Mapping[str, str]) -> Iterator[str]:
    """Yield why the partition backend of a pool changes nothing. Pods run there all the same."""
    names = sorted(node.name for node in nodes if problems.get(node.name))
    if names and pool.backend is not None and pool.policy is not PoolPolicy.IGNORE:
        of = f"{len(names)} of {len(nodes)} nodes"
        yield f"no GPU is cut on {of}: {shortened(names)}: {problems[names[0]]}"


def is_ready(node: Node) -> bool:
    """Whether the condition Ready of a node is True."""
    return all(device.reason != LeftOutReason.NOT_READY for device in node.left_out)


def offers(node: Node) -> bool:
    """Whether pods can use GPUs and slices of a node, now or once it is schedulable again."""
    reasons = (device.reason for device in node.left_out if not device.resource)
    return node.sku is not None and all(reason in _BY_ADMINISTRATOR for reason in reasons)


def _offers_all(node: Node) -> bool:
    """Whether a node offers devices, and no kind of device is left out."""
    return offers(node) and bool(node.allocatable) and not any(device.resource for device in node.left_out)


def _counted(names: Sequence[str], nodes: Sequence[Node]) -> str:
    return f"{len(names)} of {len(nodes)} nodes {'is' if len(names) == 1 else 'are'}"
