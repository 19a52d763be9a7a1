"""The GPUs of a node whose partition backend knows them: exact layouts, and the holder of each slice."""

from collections import Counter
from collections.abc import Mapping

from tangram.fleet import WHOLE_GPU, MIGLayout
from tangram.packing import GPUState, Instance, board
from tangram.plan.fleet_input.fleet import FleetNode
from tangram.plan.fleet_input.observed.claim_holders import UNMANAGED, SliceOwner


def partitioned_gpus(
    place: FleetNode, owners: Mapping[str, SliceOwner], targets: Mapping[str, MIGLayout]
) -> tuple[GPUState, ...]:
    """Return the GPUs of a node as its backend observes them; none where it has no backend.

    `owners`: by pod, as NAMESPACE/NAME; other pods do not move. `targets`: layouts of GPUs that are being
    cut, by GPU: they count as if they were there, and are not changed again.
    """
    partition, node = place.partition, place.node
    if partition is None:
        return ()
    gpus_of_pod = Counter(pod for gpu in partition.gpus for start, pod in gpu.held if start is None)
    states = list[GPUState]()
    for gpu in partition.gpus:
        layout, sku = targets.get(gpu.id, gpu.layout), node.sku or ""
        may_change = gpu.id not in targets and gpu.is_cuttable and not partition.problem
        # Where the backend does not know the holders, those of the node's pods are assigned by counts later.
        held = dict(gpu.held) if partition.knows_holders else {}
        holders = {start: owners.get(pod) or UNMANAGED for start, pod in held.items()}
        pod = held.get(None, "")
        gang = pod if pod and gpus_of_pod[pod] > 1 else None
        state = GPUState(
            id=gpu.id,
            node=node.name,
            sku=sku,
            zone=node.zone,
            cuttable=may_change,
            mig_enabled=layout.mig_enabled,
            convertible=may_change and gpu.changes_mode and board(sku) is not None,
            backend=partition.backend or "mig-manager",
            instances=_instances(layout, gpu.layout, holders, gang),
        )
        states.append(state)
    return tuple(states)


def _instances(
    layout: MIGLayout, observed: MIGLayout, holders: Mapping[int | None, SliceOwner], gang: str | None
) -> tuple[Instance, ...]:
    """Return the slices of a layout, or the whole GPU that a pod holds. Of slices, only those that are
    observed have a holder: a pod on another one has to leave it.
    """
    if not layout.mig_enabled:
        return (_instance(WHOLE_GPU, 0, holders[None], gang),) if None in holders else ()
    return tuple(
        _instance(part.profile, part.start, holders.get(part.start) if part in observed.slices else None)
        for part in layout.slices
    )


def _instance(profile: str, start: int, owner: SliceOwner | None, gang: str | None = None) -> Instance:
    if owner is None:
        return Instance(profile, start)
    return Instance(profile, start, owner.name, movable=owner.movable, gang=gang)
