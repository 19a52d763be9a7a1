"""From a mirrored Node to a GPU node. Pure."""

from dataclasses import replace

from tangram.eligibility.devices.device_rules import NodeFacts
from tangram.eligibility.devices.node_devices import gpu_node
from tangram.fleet import Node, Pool, declared_skus
from tangram.shell.objects.kinds import SPOT_LABELS, Object, labels_of


def node(obj: Object, tolerations: tuple[Object, ...], pools: tuple[Pool, ...] = ()) -> Node:
    """Return a node with its GPU model and the devices that engines may use. Engines have `tolerations`
    beside their usual ones.

    Of the labels only those are kept by which one of `pools` selects.
    """
    facts = NodeFacts(
        name=obj["metadata"]["name"],
        labels=labels_of(obj),
        allocatable=obj["allocatable"],
        capacity=obj.get("capacity") or {},
        taints=tuple(obj["taints"]),
        unschedulable=obj["unschedulable"],
        ready=obj["ready"],
        declared=declared_skus(labels_of(obj), pools),
    )
    selected = {key for pool in pools for key, _ in pool.selector}
    spot = any(facts.label(key).lower() == value for key, value in SPOT_LABELS)
    return replace(gpu_node(facts, tolerations, selected), spot=spot)
