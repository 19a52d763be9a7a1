"""The two ends of a transition: where replicas stand and are wanted, with the slices under them."""

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


def end_states(problem: Problem, packing: Packing) -> EndStates:
    """Return both ends of the transition from `problem` to `packing`."""
    new_nodes = _nodes_of_growth(problem, packing)
    gpus = {gpu.id: gpu for gpu in (*problem.gpus, *(g for node in new_nodes for g in node.gpus))}
    layouts = {layout.id: layout.instances for layout in packing.layouts}
    slices: dict[str, Layout] = {}
    mig_on: dict[str, bool] = {}
    cleared: set[str] = set()
    impossible: dict[str, str] = {}
    placed: dict[str, tuple[Placed, ...]] = {}
    for name, gpu in sorted(gpus.items()):
        end_layout = layouts.get(name, _as_placed(gpu))
        mig_on[name] = end_layout[0].profile != WHOLE_GPU if end_layout else gpu.mig_enabled
        placed[name], slices[name] = end_layout, ()
        if not mig_on[name]:
            continue
        slices[name] = tuple(Placement(p.start, p.profile) for p in sorted(end_layout))
        if gpu.backend == "mig-manager":
            moved = _by_counts(problem, gpu, end_layout)
            if moved is None:
                counts = ", ".join(f"{n} x {profile}" for profile, n in multiset(slices[name]))
                impossible[name] = f"{name}: mig-manager can create {counts} in no order"
                continue
            placed[name] = moved
            slices[name] = tuple(Placement(p.start, p.profile) for p in moved)
            if not gpu.mig_enabled or multiset(slices[name]) != _counts(gpu):
                cleared.add(name)
    before = frozenset(_replicas(gpus, {g.id: _as_placed(g) for g in problem.gpus}))
    after = frozenset(_replicas(gpus, placed))
    return EndStates(
        gpus=dict(sorted(gpus.items())),
        new_nodes=new_nodes,
        before=before,
        after=after,
        unmoved=frozenset(replica for replica in before & after if replica.gpus[0] not in cleared),
        slices=slices,
        mig_on=mig_on,
        cleared=frozenset(cleared),
        impossible=impossible,
    )


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
