"""Where replicas that move may start: a plan decides on the kind of a device, its node and no more.

A device plugin picks any free slice of a profile. So a replica saves what its move promises only where no GPU
that the plan leaves idle offers such a slice: those slices are taken away with the move (NVML).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from tangram.fleet import WHOLE_GPU
from tangram.packing import GPUState, Packing
from tangram.packing.problem.result import Move


def left_gpus(moves: Iterable[Move]) -> frozenset[str]:
    """Return the GPUs that the replicas of moves leave."""
    return frozenset(move.source.gpu for move in moves)


def moves_by_shape(moves: Iterable[Move]) -> frozenset[str]:
    """Return the GPUs that replicas leave for another shape."""
    return frozenset(m.source.gpu for m in moves if m.source.profile != m.target.profile)


def unsteered_slices(
    gpus: Iterable[GPUState], packing: Packing, moves: Iterable[Move], *, everywhere: bool
) -> tuple[Mapping[str, frozenset[str]], frozenset[str]]:
    """Return the GPUs that lose their free slices with the moves, with the profiles of those, and the GPUs on
    which a replica could start although its move promises another one.

    `everywhere`: of all GPUs that are idle in the packing; else of those alone that the moves leave.
    """
    moves, states = tuple(moves), {gpu.id: gpu for gpu in gpus}
    profiles = defaultdict[str, set[str]](set)  # of targets, by GPU model
    prices = defaultdict[str, set[float | None]](set)  # of whole GPUs that are targets, by GPU model
    for move in moves:
        target = states.get(move.target.gpu)
        if target is not None:
            profiles[target.sku].add(move.target.profile)
            prices[target.sku].add(target.price_per_hour)
    in_use = {layout.id for layout in packing.layouts if layout.in_use}
    same_shape = {move.source.gpu for move in moves if move.source.profile == move.target.profile}
    considered = states.keys() if everywhere else left_gpus(moves)
    cleared, unsteered = dict[str, frozenset[str]](), set[str]()
    for gpu in (state for state in states.values() if state.id in considered):
        free_slices = {part.profile for part in gpu.instances} & profiles[gpu.sku] - {WHOLE_GPU}
        if (
            gpu.id in in_use
        ):  # it is paid for, wherever on it a replica starts; only one that left it must not
            is_wrong = gpu.id in same_shape
        elif gpu.mig_enabled:
            is_wrong = bool(free_slices) and not (gpu.backend == "nvml" and gpu.cuttable)
            if free_slices and not is_wrong:
                cleared[gpu.id] = frozenset(free_slices)
        else:  # any whole GPU of the price will do
            is_dearer = gpu.id in same_shape or gpu.price_per_hour not in prices[gpu.sku]
            is_wrong = WHOLE_GPU in profiles[gpu.sku] and is_dearer
        unsteered |= {gpu.id} if is_wrong else set()
    return cleared, frozenset(unsteered)
