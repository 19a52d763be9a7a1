"""Slices that quota of Kueue promises to others: no plan cuts them away. Pure."""

from tangram.fleet import PromisedSlices, resource_name
from tangram.fleet.quantity import parse_quantity
from tangram.kube.kinds import Object, key_of, labels_of
from tangram.shell.snapshot.conversion import SkipHandler, convert_each, ignore_skipped
from tangram.shell.watch.mirror_view import MirrorView

_SLICES = resource_name("")


def promised_slices(view: MirrorView, on_skipped: SkipHandler = ignore_skipped) -> tuple[PromisedSlices, ...]:
    """Return the nominal quota of all ClusterQueues by slice, with the nodes of its flavor."""
    if not view.cluster_queues:
        return ()
    flavors = {key_of(obj)[1]: dict(obj["nodeLabels"]) for obj in view.resource_flavors}

    def of_queue(queue: Object) -> list[PromisedSlices]:
        promises = []
        for flavor, resource, amount in queue["granted"]:
            count = int(parse_quantity(amount))
            if resource.startswith(_SLICES) and count > 0 and flavor in flavors:
                selected = flavors[flavor].items()
                nodes = (key_of(node)[1] for node in view.nodes if selected <= labels_of(node).items())
                promises.append(PromisedSlices(tuple(sorted(nodes)), resource, count))
        return promises

    promises = convert_each(view.cluster_queues, of_queue, on_skipped)
    return tuple(sorted(promise for of_one in promises for promise in of_one))
