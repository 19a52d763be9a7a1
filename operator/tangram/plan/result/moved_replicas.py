"""Where replicas that move may start: a plan decides on the kind of a device, its node and no more.

A device plugin picks any free slice of a profile. So a replica saves what its move promises only where no GPU
that the plan leaves idle offers such a slice: those slices are taken away with the move (NVML).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tangram.fleet import WHOLE_GPU
from tangram.packing import GPUState, Packing
from tangram.packing.problem.result import Move


def left_gpus(moves: Iterable[Move]) -> frozenset[str]:
    """Return the GPUs that the replicas of moves leave."""
    return frozenset(move.source.gpu for move in moves)


def keeps_profile(move: Move) -> bool:
    """Whether a replica moves to another slice of the profile that it has."""
    return move.source.profile == move.target.profile


def moves_by_shape(moves: Iterable[Move]) -> frozenset[str]:
    """Return the GPUs that replicas leave for another shape."""
    return frozenset(move.source.gpu for move in moves if not keeps_profile(move))


def unsteered_slices(
    gpus: Iterable[GPUState], packing: Packing, moves: Iterable[Move], *, everywhere: bool
) -> tuple[Mapping[str, frozenset[str]], frozenset[str]]:
    """Return the GPUs that lose their free slices with the moves, with the profiles of those, and the GPUs on
    which a replica could start although its move promises another one.

    `everywhere`: of all GPUs that are idle in the packing; else of those alone that the moves leave.
    """
    moves, states = tuple(moves), {gpu.id: gpu for gpu in gpus}
    promised = _PromisedDevices.of(moves, states)
    in_use = {layout.id for layout in packing.layouts if layout.in_use}
    same_shape = {move.source.gpu for move in moves if keeps_profile(move)}
    considered = states.keys() if everywhere else left_gpus(moves)
    cleared, unsteered = dict[str, frozenset[str]](), set[str]()
    for gpu in (state for state in states.values() if state.id in considered):
        free_profiles = promised.profiles_on(gpu)
        if gpu.id in in_use:  # it is paid for, whatever starts there; only a replica that left it must not
            is_wrong = gpu.id in same_shape
        elif not gpu.mig_enabled:
            is_wrong = promised.has_whole_gpu(gpu) and (gpu.id in same_shape or promised.is_dearer(gpu))
        else:
            can_clear = gpu.backend == "nvml" and gpu.cuttable
            is_wrong = bool(free_profiles) and not can_clear
            if free_profiles and can_clear:
                cleared[gpu.id] = free_profiles
        unsteered |= {gpu.id} if is_wrong else set()
    return cleared, frozenset(unsteered)


@dataclass(frozen=True, slots=True)
class _PromisedDevices:
    """The devices to which replicas move."""

    profiles: Mapping[str, frozenset[str]]  # by GPU model
    prices: Mapping[str, frozenset[float | None]]  # of their GPUs, USD per hour, by GPU model

    @classmethod
    def of(cls, moves: Iterable[Move], states: Mapping[str, GPUState]) -> "_PromisedDevices":
        """Return the targets of moves, of those on known GPUs."""
        targets = [(states[move.target.gpu], move.target) for move in moves if move.target.gpu in states]
        skus = {gpu.sku for gpu, _ in targets}
        return cls(
            {sku: frozenset(site.profile for gpu, site in targets if gpu.sku == sku) for sku in skus},
            {sku: frozenset(gpu.price_per_hour for gpu, _ in targets if gpu.sku == sku) for sku in skus},
        )

    def profiles_on(self, gpu: GPUState) -> frozenset[str]:
        """Return the profiles of slices of a GPU that replicas could take in place of their own."""
        instances = {part.profile for part in gpu.instances}
        return (self.profiles.get(gpu.sku, frozenset()) - {WHOLE_GPU}) & instances

    def has_whole_gpu(self, gpu: GPUState) -> bool:
        """Whether a replica moves to a whole GPU of this model."""
        return WHOLE_GPU in self.profiles.get(gpu.sku, ())

    def is_dearer(self, gpu: GPUState) -> bool:
        """Whether no replica moves to a GPU of this model at its price."""
        return gpu.price_per_hour not in self.prices.get(gpu.sku, ())
