"""Whether a move between two layouts may begin beside what is underway; placements: `geometry.board`.

The steps that are left are legal once all that is underway is done. Checked here is what is still on its way:
replicas that start or terminate, operations on GPUs and nodes.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tangram.fleet import WHOLE_GPU
from tangram.packing.transition.disruption import Budgets
from tangram.packing.transition.end_states import ReplicaPlacement
from tangram.packing.transition.observed import ObservedFleet, replica_of
from tangram.packing.transition.steps import Step


@dataclass(frozen=True, slots=True)
class Underway:
    """What is underway in an observed fleet, indexed."""

    fleet: ObservedFleet
    budgets: Budgets
    nodes: dict[str, str]  # GPU -> its node
    by_counts: frozenset[str]  # nodes with mig-manager
    operated: frozenset[str]  # GPUs with an operation underway; under mig-manager all of the node

    @classmethod
    def of(cls, fleet: ObservedFleet, budgets: Budgets) -> "Underway":
        """Return what is underway in `fleet`."""
        nodes = {gpu.id: gpu.node for gpu in fleet.problem.gpus}
        by_counts = frozenset(gpu.node for gpu in fleet.problem.gpus if gpu.backend == "mig-manager")
        at_work = {step.node for step in fleet.operations} & by_counts
        operated = {gpu for step in fleet.operations for gpu in step.gpus}
        operated |= {gpu for gpu, node in nodes.items() if node in at_work}
        return cls(fleet, budgets, nodes, by_counts, frozenset(operated))

    def permits(self, step: Step) -> bool:
        """Whether `step`, which waits for no other step, may begin now."""
        if step.kind == "drain-replica":
            return self._permits_drain(step)
        if not self.operated.isdisjoint(step.gpus):
            return False
        if step.kind == "add-node":
            return True
        if not self.nodes.keys() >= set(step.gpus):  # of a node that is being added
            return False
        return self._permits_start(step) if step.kind == "start-replica" else self._permits_operation(step)

    def _permits_drain(self, step: Step) -> bool:
        replica, budget = replica_of(step), self.budgets.of(step.owner)
        if replica in self.fleet.terminating:
            return False
        others = self.fleet.replicas - self.fleet.starting - self.fleet.terminating - {replica}
        available = sum(other.owner == step.owner for other in others)
        return available >= (budget.min_available if step.restart else budget.desired)

    def _permits_start(self, step: Step) -> bool:
        sites = set(replica_of(step).sites)
        starting = sum(self.nodes[replica.gpus[0]] == step.node for replica in self.fleet.starting)
        alive = Counter(replica.owner for replica in self.fleet.replicas)[step.owner]
        free = all(sites.isdisjoint(replica.sites) for replica in self.fleet.terminating)
        if step.profile == WHOLE_GPU:
            free = not self._on(step.gpus, self.fleet.terminating)
        return free and starting < self.budgets.per_node and alive < self.budgets.of(step.owner).max_replicas

    def _permits_operation(self, step: Step) -> bool:
        on_gpu = self._on(step.gpus, self.fleet.terminating)
        if step.node in self.by_counts:
            node = [gpu for gpu, name in self.nodes.items() if name == step.node]
            resets = step.kind == "set-mode" and self._on(node, self.fleet.terminating)
            return not (on_gpu or resets or self._on(node, self.fleet.starting))
        if step.kind == "set-mode":
            return not on_gpu
        return all(operation.start != step.start for operation in on_gpu)

    def _on(self, gpus: Iterable[str], replicas: Iterable[ReplicaPlacement]) -> list[ReplicaPlacement]:
        gpu_ids = set(gpus)
        return [replica for replica in replicas if not gpu_ids.isdisjoint(replica.gpus)]
