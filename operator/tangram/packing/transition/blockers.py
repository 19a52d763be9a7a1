"""What is in the way of each replica that arrives: replicas that leave, and what stays as it is.

Slices of one GPU are compared in pairs. That suffices: on every board of the catalog, slices of which each
two fit on the board fit on it together (a test enumerates them).
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tangram.fleet import WHOLE_GPU
from tangram.packing.geometry.layouts import Placement, is_legal
from tangram.packing.problem.statement import GPUState, Problem
from tangram.packing.transition.end_states import EndStates, ReplicaPlacement


@dataclass(frozen=True, slots=True)
class ArrivingReplica:
    """A replica on the place that it should get."""

    replica: ReplicaPlacement
    node: str
    blockers: frozenset[ReplicaPlacement]  # replicas that leave; it starts once they have stopped
    obstacles: tuple[str, ...] = ()  # what will not go away; it starts never


def arriving_replicas(problem: Problem, ends: EndStates) -> tuple[ArrivingReplica, ...]:
    """Return each replica that has to start somewhere, sorted, with what is in its way now."""
    holders_now = _Holders(problem, ends)
    return tuple(map(holders_now.arriving, sorted(ends.after - ends.unmoved)))


@dataclass(slots=True)
class _Holders:
    """The replicas that hold GPUs now, by GPU and node."""

    problem: Problem
    ends: EndStates
    on_gpu: dict[str, list[ReplicaPlacement]] = field(default_factory=lambda: defaultdict(list))
    on_node: dict[str, set[ReplicaPlacement]] = field(default_factory=lambda: defaultdict(set))
    reset_nodes: set[str] = field(init=False)  # mig-manager changes MIG modes there
    _fit: dict[tuple[str, Placement, Placement], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Index the replicas."""
        for replica in self.ends.before:
            for gpu in replica.gpus:
                self.on_gpu[gpu].append(replica)
                self.on_node[self.ends.gpus[gpu].node].add(replica)
        self.reset_nodes = {
            gpu.node
            for gpu in self.ends.gpus.values()
            if gpu.backend == "mig-manager"
            and self._changes_mode(gpu)
            and not self.on_node[gpu.node] & self.ends.unmoved
        }

    def arriving(self, replica: ReplicaPlacement) -> ArrivingReplica:
        """Return one arriving replica with what is in its way."""
        holders = {holder for gpu in replica.gpus for holder in self._in_the_way(replica, gpu)}
        stays = sorted(holders & self.ends.unmoved)
        node = self.ends.gpus[replica.gpus[0]].node
        obstacles = tuple(text for gpu in replica.gpus for text in self._obstacles(replica, gpu, stays))
        return ArrivingReplica(replica, node, frozenset(holders - self.ends.unmoved), obstacles)

    def _changes_mode(self, gpu: GPUState) -> bool:
        return gpu.mig_enabled != self.ends.mig_on[gpu.id] and gpu.id not in self.ends.impossible

    def _in_the_way(self, replica: ReplicaPlacement, name: str) -> Iterator[ReplicaPlacement]:
        """Yield the replicas that have to leave before `replica` can get its part of a GPU."""
        gpu = self.ends.gpus[name]
        changes_mode = self._changes_mode(gpu)
        if gpu.node in self.reset_nodes or (changes_mode and gpu.backend == "mig-manager"):
            yield from self.on_node[gpu.node]
        elif changes_mode or replica.profile == WHOLE_GPU or name in self.ends.cleared:
            yield from self.on_gpu[name]
        else:
            yield from (h for h in self.on_gpu[name] if not self._fit_together(gpu, replica, h))

    def _fit_together(self, gpu: GPUState, replica: ReplicaPlacement, holder: ReplicaPlacement) -> bool:
        pair = Placement(replica.start, replica.profile), Placement(holder.start, holder.profile)
        key = gpu.sku, *pair
        if key not in self._fit:
            board = self.problem.board(gpu.sku)
            self._fit[key] = board is not None and is_legal(board, pair)
        return self._fit[key]

    def _obstacles(
        self, replica: ReplicaPlacement, name: str, stays: list[ReplicaPlacement]
    ) -> Iterator[str]:
        gpu, place = self.ends.gpus[name], Placement(replica.start, replica.profile)
        staying = ", ".join(map(str, stays))
        if name in self.ends.impossible:
            yield self.ends.impossible[name]
        elif staying and self._changes_mode(gpu):
            yield f"MIG mode of {name} changes only while nothing runs on {gpu.node}: {staying}"
        elif staying:
            yield f"{replica} needs what {staying} holds and keeps"
        exists = place.profile == WHOLE_GPU or any(
            (i.start, i.profile) == (place.start, place.profile) for i in gpu.instances
        )
        if not gpu.cuttable and (self._changes_mode(gpu) or not exists):
            yield f"{replica} needs a change of {name}, which must not be cut"
