"""Operations that lead from the layout that a GPU has to the one that it is to have.

Nothing is kept between two calls: after a crash, a failed operation or a change from outside, the difference
is computed again from what is observed then. Each operation names its effect and is idempotent.

An instance that a pod or a process uses is never destroyed, and the MIG mode of a GPU never changes while the
GPU or one of its instances is used. What has to wait for that is reported beside the operations that can be
done now. After each of them, in their order, the instances of the GPU are legal together.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Literal

from tangram.packing.geometry.board import Board
from tangram.packing.geometry.layouts import IllegalLayout, Placement, check, is_legal
from tangram.partition.layouts import ObservedInstance, ObservedLayout, WantedLayout

OperationKind = Literal[
    "set-mode",  # MIG mode on or off
    "destroy-instance",  # its compute instances, then the GPU instance
    "create-instance",  # the GPU instance if it is missing, and a compute instance that takes all of it
]
_NONE_HELD: AbstractSet[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LayoutOperation:
    """One change of one GPU. Where its effect is there already, nothing is done."""

    kind: OperationKind
    gpu: str
    placement: Placement | None = None  # of the instance that is created or destroyed
    mig_enabled: bool = False  # set-mode

    def __str__(self) -> str:
        effect = ("on" if self.mig_enabled else "off") if self.placement is None else self.placement
        return f"{self.kind} {effect} of {self.gpu}"


@dataclass(frozen=True, slots=True)
class LayoutDifference:
    """What can be done now, in this order, and what has to wait until something is no longer used."""

    operations: tuple[LayoutOperation, ...] = ()
    in_use: tuple[Placement, ...] = ()  # instances to be destroyed that a pod or a process uses
    gpu_in_use: bool = False  # the GPU as a whole is used, and its MIG mode has to change
    postponed: tuple[Placement, ...] = ()  # instances to be created that have to wait for these

    @property
    def is_empty(self) -> bool:
        """Whether the GPU is as wanted."""
        return not (self.operations or self.in_use or self.gpu_in_use or self.postponed)


def difference(
    observed: ObservedLayout, wanted: WantedLayout, held: AbstractSet[str] = _NONE_HELD
) -> LayoutDifference:
    """Return what leads from `observed` to `wanted`. `held`: UUIDs of the GPUs and slices that pods hold.

    Raises `IllegalLayout` where the GPU can never hold what is wanted.
    """
    _check(observed, wanted)
    if wanted.mig_enabled != observed.mig_enabled:
        return _mode_on(observed, wanted, held) if wanted.mig_enabled else _mode_off(observed, held)
    result = _between_instances(observed, wanted, held) if wanted.mig_enabled else LayoutDifference()
    if observed.pending_mig_enabled == wanted.mig_enabled:
        return result
    withdrawn = LayoutOperation("set-mode", observed.gpu, mig_enabled=wanted.mig_enabled)
    return replace(result, operations=(withdrawn, *result.operations))  # else the next reset changes it


def _check(observed: ObservedLayout, wanted: WantedLayout) -> None:
    """Raise `IllegalLayout` for a layout that the GPU can never hold."""
    if observed.gpu != wanted.gpu:
        raise ValueError(f"the layout of {wanted.gpu} is compared with that of {observed.gpu}")
    if not wanted.mig_enabled:
        if wanted.placements:
            raise IllegalLayout(wanted.gpu, "instances need MIG mode, which is to be off")
        return
    if observed.board is None:
        raise IllegalLayout(wanted.gpu, f"MIG cannot cut {observed.product or 'this GPU'}")
    check(observed.board, wanted.placements, wanted.gpu)


def _mode_on(observed: ObservedLayout, wanted: WantedLayout, held: AbstractSet[str]) -> LayoutDifference:
    if observed.is_held(held):
        return LayoutDifference(gpu_in_use=True, postponed=tuple(sorted(wanted.placements)))
    set_mode = LayoutOperation("set-mode", observed.gpu, mig_enabled=True)
    return LayoutDifference((set_mode, *_creations(observed, wanted.placements)))


def _mode_off(observed: ObservedLayout, held: AbstractSet[str]) -> LayoutDifference:
    in_use = tuple(sorted(i.placement for i in observed.instances if i.is_held(held)))
    free = [instance for instance in observed.instances if not instance.is_held(held)]
    destroyed = tuple(_destruction(observed, instance) for instance in free)
    if in_use or observed.is_held(held):
        return LayoutDifference(destroyed, in_use, observed.is_held(held))
    return LayoutDifference((*destroyed, LayoutOperation("set-mode", observed.gpu, mig_enabled=False)))


def _between_instances(
    observed: ObservedLayout, wanted: WantedLayout, held: AbstractSet[str]
) -> LayoutDifference:
    wrong = [i for i in observed.instances if i.placement not in wanted.placements or _is_cut_further(i)]
    right = [instance for instance in observed.instances if instance not in wrong]
    in_use = [instance for instance in wrong if instance.is_held(held)]
    free = [instance for instance in wrong if not instance.is_held(held)]

    standing = [instance.placement for instance in (*right, *in_use)]
    created, postponed = list[Placement](), list[Placement]()
    missing = set(wanted.placements) - {instance.placement for instance in right}
    for placement in _largest_first(observed.board, missing):
        fits = observed.board is not None and is_legal(observed.board, (*standing, *created, placement))
        (created if fits else postponed).append(placement)
    half_made = [instance.placement for instance in right if not instance.whole]
    return LayoutDifference(
        (
            *(_destruction(observed, instance) for instance in free),
            *_creations(observed, (*half_made, *created)),
        ),
        tuple(sorted(instance.placement for instance in in_use)),
        postponed=tuple(sorted(postponed)),
    )


def _is_cut_further(instance: ObservedInstance) -> bool:
    """Whether its compute instances are not the single one that is wanted, and have to go first."""
    return bool(instance.devices) and not instance.whole


def _destruction(observed: ObservedLayout, instance: ObservedInstance) -> LayoutOperation:
    return LayoutOperation("destroy-instance", observed.gpu, instance.placement)


def _creations(observed: ObservedLayout, placements: Iterable[Placement]) -> list[LayoutOperation]:
    ordered = _largest_first(observed.board, placements)
    return [LayoutOperation("create-instance", observed.gpu, placement) for placement in ordered]


def _largest_first(board: Board | None, placements: Iterable[Placement]) -> list[Placement]:
    def size(placement: Placement) -> tuple[int, int]:
        option = board.option(placement.profile, placement.start) if board is not None else None
        return (0, 0) if option is None else (-option.mask.bit_count(), -option.compute)

    return sorted(placements, key=lambda placement: (size(placement), placement))
