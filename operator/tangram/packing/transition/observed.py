"""A fleet in the middle of a transition, as it is observed, and what becomes of it once actions are done."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tangram.fleet import WHOLE_GPU
from tangram.packing.problem.statement import GPUState, Instance, Problem
from tangram.packing.transition.end_states import NewNode, ReplicaPlacement, replicas_of
from tangram.packing.transition.steps import Step


@dataclass(frozen=True, slots=True)
class ObservedFleet:
    """The fleet at one moment.

    `problem.gpus` are the GPUs of attached nodes: MIG mode, slices, and as the owner of a slice that of its
    pod, be it available, starting or terminating.
    """

    problem: Problem
    starting: frozenset[ReplicaPlacement] = frozenset()  # not available yet
    terminating: frozenset[ReplicaPlacement] = frozenset()
    operations: tuple[Step, ...] = ()  # on GPUs and nodes: begun, not done

    @property
    def replicas(self) -> frozenset[ReplicaPlacement]:
        """All replicas that hold slices and GPUs."""
        return replicas_of(self.problem)

    def begin(self, action: Step) -> "ObservedFleet":
        """Return the fleet as it is observed once `action` has begun."""
        if action.kind not in {"start-replica", "drain-replica"}:
            return replace(self, operations=(*self.operations, action))
        replica = replica_of(action)
        if action.kind == "drain-replica":
            return replace(self, starting=self.starting - {replica}, terminating=self.terminating | {replica})
        problem = _with(self.problem, (_held(gpu, replica) for gpu in _those(self.problem, replica.gpus)))
        return replace(self, problem=problem, starting=self.starting | {replica})

    def settled(self, new_nodes: Iterable[NewNode]) -> Problem:
        """Return the fleet once all that is underway is done. `new_nodes`: those that the transition adds."""
        problem = self.problem
        for replica in self.terminating:
            problem = _with(problem, (_left(gpu, replica) for gpu in _those(problem, replica.gpus)))
        for step in self.operations:
            if step.kind == "add-node":
                problem = _with(
                    problem, (gpu for new in new_nodes if new.node == step.node for gpu in new.gpus)
                )
            else:
                problem = _with(problem, _operated(step, problem))
        return problem


def replica_of(step: Step) -> ReplicaPlacement:
    """Return the replica that a step starts or drains."""
    return ReplicaPlacement(step.owner, step.profile, step.gpus, step.start)


def _with(problem: Problem, changed: Iterable[GPUState]) -> Problem:
    gpus = {gpu.id: gpu for gpu in problem.gpus} | {gpu.id: gpu for gpu in changed}
    return replace(problem, gpus=tuple(gpus[name] for name in sorted(gpus)))


def _those(problem: Problem, names: Iterable[str]) -> list[GPUState]:
    listed = set(names)
    return [gpu for gpu in problem.gpus if gpu.id in listed]


def _operated(step: Step, problem: Problem) -> Iterator[GPUState]:
    """Yield the GPUs that an operation changes, as they are once it is done."""
    (gpu,) = _those(problem, step.gpus)
    rest = tuple(i for i in gpu.instances if i.start != step.start)
    match step.kind:
        case "create-slice":
            yield replace(gpu, instances=_sorted((*rest, Instance(step.profile, step.start))))
        case "destroy-slice":
            yield replace(gpu, instances=rest)
        case "set-geometry":
            yield replace(gpu, instances=_sorted(Instance(p.profile, p.start) for p in step.layout))
        case "set-mode":
            if gpu.backend == "mig-manager":  # clears every GPU of the node
                yield from (replace(g, instances=()) for g in problem.gpus if g.node == gpu.node)
            yield replace(gpu, mig_enabled=step.mig_enabled, instances=())


def _held(gpu: GPUState, replica: ReplicaPlacement) -> GPUState:
    gang = replica.gpus[0] if len(replica.gpus) > 1 else None
    instance = Instance(replica.profile, replica.start, replica.owner, gang=gang)
    others = (i for i in gpu.instances if i.start != replica.start)
    return replace(gpu, instances=_sorted((*others, instance)))


def _left(gpu: GPUState, replica: ReplicaPlacement) -> GPUState:
    if replica.profile == WHOLE_GPU:
        return replace(gpu, instances=())
    freed = (Instance(i.profile, i.start) if i.start == replica.start else i for i in gpu.instances)
    return replace(gpu, instances=tuple(freed))


def _sorted(instances: Iterable[Instance]) -> tuple[Instance, ...]:
    return tuple(sorted(instances, key=lambda i: i.start))
