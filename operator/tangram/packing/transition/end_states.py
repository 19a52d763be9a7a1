"""The two ends of a transition: where replicas stand and are wanted, with the slices under them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tangram.fleet import WHOLE_GPU
from tangram.packing.geometry.layouts import Layout, Placement, creation_order, multiset
from tangram.packing.problem.result import Packing, Placed
from tangram.packing.problem.statement import GPUState, Problem, new_nodes


@dataclass(frozen=True, slots=True, order=True)
class ReplicaPlacement:
    """One replica at one place: a slice of one GPU, or whole GPUs of one node."""

    owner: str
    profile: str
    gpus: tuple[str, ...]
    start: int = 0

    @property
    def sites(self) -> tuple[tuple[str, int], ...]:
        """The GPUs with the memory slice at which it begins."""
        return tuple((gpu, self.start) for gpu in self.gpus)

    def __str__(self) -> str:
        gpus = " ".join(self.gpus)
        return f"{self.owner} on " + (
            gpus if self.profile == WHOLE_GPU else f"{self.profile}@{self.start} of {gpus}"
        )


@dataclass(frozen=True, slots=True)
class NewNode:
    """A node that a growable pool gets, with its empty GPUs."""

    pool: str
    node: str
    gpus: tuple[GPUState, ...]


@dataclass(frozen=True, slots=True)
class EndStates:
    """The replicas before and after. `after` has slices where the driver really puts them."""

    gpus: Mapping[str, GPUState]  # those of new nodes too, sorted by id
    new_nodes: tuple[NewNode, ...]
    before: frozenset[ReplicaPlacement]
    after: frozenset[ReplicaPlacement]
    unmoved: frozenset[ReplicaPlacement]  # go on undisturbed
    slices: Mapping[str, Layout]  # GPU -> slices when all is done
    mig_on: Mapping[str, bool]  # GPU -> MIG mode when all is done
    cleared: frozenset[str]  # mig-manager has to clear these GPUs
    impossible: Mapping[str, str]  # GPU -> why its layout cannot be made

    @property
    def gaining(self) -> frozenset[str]:
        """The demands that have more replicas after than before."""
        now, then = (Counter(replica.owner for replica in side) for side in (self.before, self.after))
        return frozenset(then - now)


def end_states(problem: Problem, packing: Packing, *, restarts: bool = False) -> EndStates:
    """Return both ends of the transition from `problem` to `packing`.

    `restarts`: where mig-manager changes a MIG mode, replicas that stay on the node are restarted, too.
    """
    new_nodes = _nodes_of_growth(problem, packing)
    added = (gpu for node in new_nodes for gpu in node.gpus)
    gpus = {gpu.id: gpu for gpu in sorted((*problem.gpus, *added), key=lambda gpu: gpu.id)}
    layouts = {layout.id: layout.instances for layout in packing.layouts}
    ends = {name: _gpu_end(problem, gpu, layouts.get(name)) for name, gpu in gpus.items()}
    before = frozenset(_replicas(gpus, {gpu.id: _as_placed(gpu) for gpu in problem.gpus}))
    after = frozenset(_replicas(gpus, {name: end.placed for name, end in ends.items()}))
    cleared = frozenset(name for name, end in ends.items() if end.cleared)
    reset = _reset_nodes(gpus, {name: end.mig_on for name, end in ends.items()}) if restarts else set()
    return EndStates(
        gpus=gpus,
        new_nodes=new_nodes,
        before=before,
        after=after,
        unmoved=frozenset(
            replica
            for replica in before & after
            if replica.gpus[0] not in cleared and gpus[replica.gpus[0]].node not in reset
        ),
        slices={name: end.slices for name, end in ends.items()},
        mig_on={name: end.mig_on for name, end in ends.items()},
        cleared=cleared,
        impossible={name: end.impossible for name, end in ends.items() if end.impossible},
    )


def _reset_nodes(gpus: Mapping[str, GPUState], mig_on: Mapping[str, bool]) -> set[str]:
    """Return the nodes of which mig-manager changes a MIG mode and may clear every GPU."""
    uncut_nodes = {gpu.node for gpu in gpus.values() if not gpu.cuttable}
    changing = (gpu for gpu in gpus.values() if gpu.backend == "mig-manager")
    return {gpu.node for gpu in changing if gpu.mig_enabled != mig_on[gpu.id]} - uncut_nodes


@dataclass(frozen=True, slots=True)
class _GPUEnd:
    """One GPU when all is done."""

    placed: tuple[Placed, ...]
    mig_on: bool
    cleared: bool = False
    impossible: str = ""

    @property
    def slices(self) -> Layout:
        """The slices, of a GPU in MIG mode."""
        return tuple(Placement(p.start, p.profile) for p in sorted(self.placed)) if self.mig_on else ()


def _gpu_end(problem: Problem, gpu: GPUState, layout: tuple[Placed, ...] | None) -> _GPUEnd:
    """Return what becomes of one GPU. None: it stays as it is."""
    placed = _as_placed(gpu) if layout is None else layout
    mig_on = placed[0].profile != WHOLE_GPU if placed else gpu.mig_enabled
    if not mig_on or gpu.backend != "mig-manager":
        return _GPUEnd(placed, mig_on)
    counts = multiset(Placement(p.start, p.profile) for p in placed)
    moved = _by_counts(problem, gpu, placed)
    if moved is None:
        text = ", ".join(f"{n} x {profile}" for profile, n in counts)
        return _GPUEnd(placed, mig_on, impossible=f"{gpu.id}: mig-manager can create {text} in no order")
    return _GPUEnd(moved, mig_on, cleared=not gpu.mig_enabled or counts != _counts(gpu))


def _as_placed(gpu: GPUState) -> tuple[Placed, ...]:
    return tuple(Placed(i.start, i.profile, i.owner, i.gang) for i in gpu.instances)


def _counts(gpu: GPUState) -> tuple[tuple[str, int], ...]:
    return multiset(Placement(i.start, i.profile) for i in gpu.instances)


def _nodes_of_growth(problem: Problem, packing: Packing) -> tuple[NewNode, ...]:
    """Return the nodes by which `packing` grows the pools of `problem`."""
    grown = dict(packing.grown)
    return tuple(
        NewNode(pool.name, node, gpus)
        for pool in problem.growable
        for node, gpus in new_nodes(problem, pool, grown.get(pool.name, 0)).items()
    )


def _by_counts(problem: Problem, gpu: GPUState, instances: tuple[Placed, ...]) -> tuple[Placed, ...] | None:
    """Return where mig-manager, which knows counts only, puts what is asked for. None: nowhere.

    Slices that offer the same counts already are left as they are. Replicas stay where they are if they can.
    """
    multiset_of_instances = multiset(Placement(p.start, p.profile) for p in instances)
    owners: dict[tuple[int, str], str | None] = {}
    if gpu.mig_enabled and multiset_of_instances == _counts(gpu):
        owners = {(i.start, i.profile): i.owner for i in gpu.instances}
        free = sorted(owners)
    else:
        board = problem.board(gpu.sku)
        order = creation_order(board, multiset_of_instances) if board is not None else None
        if order is None:
            return None
        free = sorted((p.start, p.profile) for p in order)
    placed: list[Placed] = []
    unplaced = sorted(
        (p for p in instances if p.owner is not None), key=lambda p: ((p.start, p.profile) not in free, p)
    )
    for stays in (True, False):
        for p in list(unplaced):
            fits = [s for s in free if s[1] == p.profile and (not stays or owners.get(s) == p.owner)]
            if fits:
                slot = min(fits, key=lambda s: (s[0] != p.start, s))
                free.remove(slot)
                unplaced.remove(p)
                placed.append(Placed(slot[0], p.profile, p.owner, p.gang))
    return tuple(
        sorted([*placed, *(Placed(start, profile) for start, profile in free)], key=lambda p: p.start)
    )


def _replicas(
    gpus: Mapping[str, GPUState], placed: Mapping[str, tuple[Placed, ...]]
) -> Iterable[ReplicaPlacement]:
    gangs: dict[tuple[str, str, str], list[str]] = {}
    for name, instances in sorted(placed.items()):
        for p in instances:
            if p.owner is None:
                continue
            if p.profile == WHOLE_GPU and p.gang is not None:
                gangs.setdefault((p.owner, gpus[name].node, p.gang), []).append(name)
            else:
                yield ReplicaPlacement(p.owner, p.profile, (name,), p.start)
    for (owner, _, _), members in sorted(gangs.items()):
        yield ReplicaPlacement(owner, WHOLE_GPU, tuple(members))
