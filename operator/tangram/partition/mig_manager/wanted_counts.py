"""The layout that a node is to have as a whole: what its GPUNode lists, and the other GPUs as they are."""

from collections.abc import Iterable

from tangram.packing.geometry.board import Board
from tangram.packing.geometry.layouts import IllegalLayout, check, creation_order, multiset
from tangram.partition.layouts import WantedLayout
from tangram.partition.mig_manager.node_counts import GPUCounts, NodeCounts
from tangram.partition.mig_manager.observed_counts import ObservedCounts, gpu_id
from tangram.partition.status.conditions import NodeConditionState


def wanted_counts(
    wanted: Iterable[WantedLayout],
    observed: ObservedCounts,
    requested: NodeCounts | None,
    board: Board | None,
) -> NodeCounts | NodeConditionState:
    """Return the layout of every GPU of a node, or why there is none.

    A GPU that is not listed stays as it is; while that is not known, as in the entry that the label names.
    """
    by_id = {layout.gpu: layout for layout in wanted}
    ids = [gpu_id(index) for index in range(len(observed))]
    missing = sorted(by_id.keys() - set(ids))
    if missing:
        text = f"{missing[0]} is none of index-0 to {ids[-1]}: mig-manager knows GPUs by index alone"
        return NodeConditionState("False", "GPUMissing", text)
    counts, unknown = list[GPUCounts](), list[str]()
    for index, found in enumerate(observed):
        listed = by_id.get(ids[index])
        if listed is not None:
            try:
                counts.append(_counts(listed, board))
            except IllegalLayout as error:
                return NodeConditionState("False", "IllegalLayout", str(error))
        elif found is not None or requested is not None:
            counts.append(found if found is not None else requested[index])  # type: ignore[index]
        else:
            unknown.append(ids[index])
    if unknown:
        text = f"the layouts of {', '.join(unknown)} are not known, and an entry names every GPU of its node"
        return NodeConditionState("False", "UnknownLayout", f"{text}: list them in the spec, too")
    return tuple(counts)


def _counts(layout: WantedLayout, board: Board | None) -> GPUCounts:
    """Return the counts of a layout. Raises `IllegalLayout` where mig-manager cannot make them.

    It creates instances at default positions and tries orders until one of them works.
    """
    if not layout.mig_enabled:
        if layout.placements:
            raise IllegalLayout(layout.gpu, "instances need MIG mode, which is to be off")
        return GPUCounts(mig_enabled=False)
    if board is None:
        raise IllegalLayout(layout.gpu, "no profiles of this GPU model are known")
    check(board, layout.placements, layout.gpu)
    counts = multiset(layout.placements)
    if creation_order(board, counts) is None:
        text = ", ".join(f"{count}x {profile}" for profile, count in counts)
        raise IllegalLayout(
            layout.gpu, f"mig-manager creates slices at default positions, which cannot give {text}"
        )
    return GPUCounts(mig_enabled=True, instances=counts)
