"""What is done to GPUs for the replicas: MIG modes, slices, and the layouts that mig-manager sets."""

from collections import defaultdict
from dataclasses import dataclass, field

from tangram.fleet import WHOLE_GPU
from tangram.packing.geometry.layouts import Placement, is_legal
from tangram.packing.problem.statement import Problem
from tangram.packing.transition.end_states import EndStates, ReplicaPlacement
from tangram.packing.transition.recorder import StepRecorder


@dataclass(slots=True)
class GPUOperations:
    """The GPUs between two steps. Each method records the operations that it takes."""

    problem: Problem
    ends: EndStates
    recorder: StepRecorder = field(init=False)
    mig_on: dict[str, bool] = field(init=False)
    slices: dict[str, set[Placement]] = field(init=False)
    holders: dict[str, set[ReplicaPlacement]] = field(init=False)  # GPU -> replicas on it
    by_node: dict[str, list[str]] = field(init=False)
    uncleared: set[str] = field(init=False)  # mig-manager has yet to clear these

    def __post_init__(self) -> None:
        """Start from the fleet as it is."""
        gpus = self.ends.gpus
        self.mig_on = {name: gpu.mig_enabled for name, gpu in gpus.items()}
        self.slices = {
            name: {Placement(i.start, i.profile) for i in gpu.instances if gpu.mig_enabled}
            for name, gpu in gpus.items()
        }
        self.holders, self.by_node = defaultdict(set), defaultdict(list)
        for name, gpu in gpus.items():
            self.by_node[gpu.node].append(name)
        for replica in self.ends.before:
            self._hold(replica)
        self.uncleared = set(self.ends.cleared)
        self.recorder = StepRecorder(gpus, self.by_node)
        for new in self.ends.new_nodes:
            self.recorder.add_node(new.pool, new.node, tuple(gpu.id for gpu in new.gpus))

    def start(self, replica: ReplicaPlacement) -> None:
        """Create the slice, or free the whole GPUs, that a replica needs, and start it there."""
        self._change_modes(self.ends.gpus[replica.gpus[0]].node)
        for gpu in replica.gpus:
            self._set_mode(gpu, on=replica.profile != WHOLE_GPU)
        gpu, place = replica.gpus[0], Placement(replica.start, replica.profile)
        if gpu in self.uncleared:
            self._set_geometry(gpu)
        if replica.profile != WHOLE_GPU and place not in self.slices[gpu]:
            for free in sorted(self._free_slices(gpu)):
                if not self._fit(gpu, {free, place}):
                    self._destroy(gpu, free)
            self._create(gpu, place)
        self.recorder.start(replica)
        self._hold(replica)

    def stop(self, replica: ReplicaPlacement, *, restarts: bool = False) -> None:
        """Drain a replica; or stop it before a replacement serves."""
        self.recorder.drain(replica, "stop-replica" if restarts else "drain-replica")
        for gpu in replica.gpus:
            self.holders[gpu].discard(replica)

    def make_free_slices(self) -> None:
        """Destroy free slices that the end does not have, create those that are still missing."""
        for node in self.by_node:
            self._change_modes(node)
        for gpu in self.ends.gpus:
            if self._may_finish(gpu):
                self._finish(gpu)

    def _may_finish(self, gpu: str) -> bool:
        """Whether a GPU in MIG mode can get free slices beside the replicas on it."""
        if gpu in self.ends.impossible or not self.ends.mig_on[gpu]:
            return False
        state = self.ends.gpus[gpu]
        if self.mig_on[gpu]:
            return not (self.holders[gpu] and gpu in self.uncleared)
        changes_node = state.backend == "mig-manager"
        members = self.by_node[state.node] if changes_node else [gpu]
        return bool(self.ends.slices[gpu]) and not any(self.holders[member] for member in members)

    def _finish(self, gpu: str) -> None:
        state, end_slices = self.ends.gpus[gpu], self.ends.slices[gpu]
        self._set_mode(gpu, on=True)
        if gpu in self.uncleared:
            self._set_geometry(gpu)
        if state.backend == "mig-manager" or not state.cuttable:
            return
        for free in sorted(self._free_slices(gpu) - set(end_slices)):
            self._destroy(gpu, free)
        for place in end_slices:
            if place not in self.slices[gpu] and self._fit(gpu, self.slices[gpu] | {place}):
                self._create(gpu, place)

    def _change_modes(self, node: str) -> None:
        """Let mig-manager change every MIG mode of a node while nothing runs there."""
        members = self.by_node[node]
        if any(self.holders[gpu] for gpu in members):
            return
        for gpu in members:
            if self.ends.gpus[gpu].backend == "mig-manager" and gpu not in self.ends.impossible:
                self._set_mode(gpu, on=self.ends.mig_on[gpu])

    def _set_mode(self, gpu: str, *, on: bool) -> None:
        if self.mig_on[gpu] == on:
            return
        by_counts = self.ends.gpus[gpu].backend == "mig-manager"
        if not by_counts:
            for place in sorted(self.slices[gpu]):
                self._destroy(gpu, place)
        self.recorder.mode(gpu, on=on)
        self.mig_on[gpu] = on
        self.slices[gpu] = set()
        if by_counts:  # it clears every GPU of the node that is in MIG mode
            for other in self.by_node[self.ends.gpus[gpu].node]:
                self.slices[other] = set()
                made_by_counts = self.ends.gpus[other].backend == "mig-manager"
                if made_by_counts and self.ends.mig_on[other] and self.ends.slices[other]:
                    self.uncleared.add(other)

    def _set_geometry(self, gpu: str) -> None:
        layout = self.ends.slices[gpu]
        self.recorder.geometry(gpu, layout)
        self.uncleared.discard(gpu)
        self.slices[gpu] = set(layout)

    def _create(self, gpu: str, place: Placement) -> None:
        self.recorder.create(gpu, place)
        self.slices[gpu].add(place)

    def _destroy(self, gpu: str, place: Placement) -> None:
        self.recorder.destroy(gpu, place)
        self.slices[gpu].discard(place)

    def _hold(self, replica: ReplicaPlacement) -> None:
        for gpu in replica.gpus:
            self.holders[gpu].add(replica)

    def _free_slices(self, gpu: str) -> set[Placement]:
        return self.slices[gpu] - {Placement(held.start, held.profile) for held in self.holders[gpu]}

    def _fit(self, gpu: str, slices: set[Placement]) -> bool:
        board = self.problem.board(self.ends.gpus[gpu].sku)
        return board is not None and is_legal(board, slices)
