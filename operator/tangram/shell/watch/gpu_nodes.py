"""From a mirrored Node to a GPU node. Pure."""

from dataclasses import replace

from tangram.eligibility.devices.device_rules import NodeFacts
from tangram.eligibility.devices.node_devices import gpu_node
from tangram.fleet import Node, Pool, declared_skus
from tangram.shell.objects.children import labels_of
from tangram.shell.objects.kinds import SPOT_LABELS, Object


def node(obj: Object, tolerations: tuple[Object, ...], known: tuple[Pool, ...] = ()) -> Node:
    """Return a node: which GPU it has and how much of it engines may be given, `tolerations` added to theirs.

    Of its labels those by which one of the `known` GPUPools selects are kept.
    """
    facts = NodeFacts(
        name=obj["metadata"]["name"],
        labels=labels_of(obj),
        allocatable=obj["allocatable"],
        capacity=obj.get("capacity") or {},
        taints=tuple(obj["taints"]),
        unschedulable=obj["unschedulable"],
        ready=obj["ready"],
        declared=declared_skus(labels_of(obj), known),
    )
    selected = {key for pool in known for key, _ in pool.selector}
    spot = any(facts.label(key).lower() == value for key, value in SPOT_LABELS)
    return replace(gpu_node(facts, tolerations, selected), spot=spot)
