"""The fleet as the operator sees it, as the input of a joint plan. Nothing in it ends a plan: what cannot be
understood is left out, and the notes say so.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tangram.capacity.from_facts import architecture_from_facts
from tangram.catalog import Architecture, InputError
from tangram.fleet import (
    Claim,
    FactsKey,
    FleetSnapshot,
    Intent,
    InvalidIntent,
    Node,
    Workload,
)
from tangram.packing import GPUState, ShapeKey
from tangram.planner.joint.deployment import Wanted, from_intent, identity
from tangram.planner.joint.engine import on_this_engine
from tangram.planner.joint.nodes import gpus as gpus_of
from tangram.planner.joint.nodes import unknown
from tangram.planner.joint.nouns import FleetInput, Terms
from tangram.planner.joint.pods import PodSeen, occupied
from tangram.planner.joint.pools import claiming, governed
from tangram.planner.order import acceptance, by_age

OTHERS = "(others)"  # who holds what no LLMDeployment holds; no LLMDeployment can be called this

Everyone = Iterable[Intent | InvalidIntent]


def observed(
    snapshot: FleetSnapshot, intents: Everyone, told: Mapping[str, Architecture] | None = None
) -> FleetInput:
    """Return what a plan of the observed fleet is made from. The order of observing does not matter.

    `told`: models by the uid of their LLMDeployment, where somebody says what nobody has inspected.
    """
    ordered = by_age(intents)
    fleet = _Seen(snapshot)
    deployments, kept = _deployments(snapshot, ordered, told or {}, fleet.notes)
    names = {intent.uid: identity(intent.namespace, intent.name) for intent in ordered}
    gpus = fleet.gpus(names, kept)
    return FleetInput(
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.id)),
        deployments=deployments,
        pools=tuple(sorted(snapshot.pools)),
        pods_told=True,
        terms=Terms(prices=tuple(sorted(snapshot.prices)), move_budget=_move_budget(snapshot)),
        inferred=frozenset(gpu.id for gpu in gpus),
        notes=tuple(fleet.notes),
    )


def _move_budget(snapshot: FleetSnapshot) -> int | None:
    budgets = [pool.disruption_budget for pool in snapshot.pools if pool.disruption_budget is not None]
    return min(budgets, default=None)


class _Seen:
    """What nodes offer and who holds it."""

    def __init__(self, snapshot: FleetSnapshot) -> None:
        self.snapshot = snapshot
        self.notes: list[str] = []

    def gpus(self, names: Mapping[str, str], kept: frozenset[str]) -> list[GPUState]:
        """Return every GPU with its holders. `names`: LLMDeployments by uid; `kept`: who is not planned."""
        pools = {pool.name: pool for pool in self.snapshot.pools}
        bare = [
            gpu
            for node in sorted(self.snapshot.nodes, key=lambda node: node.name)
            for gpu in self._of_node(node)
        ]
        pods = [
            self._pod(i, claim, names, kept) for i, claim in enumerate(sorted(self.snapshot.claims, key=_key))
        ]
        there = {gpu.node for gpu in bare}
        held, notes = occupied(bare, [pod for pod in pods if pod.node in there])
        self.notes += notes
        return [governed(gpu, pools) for gpu in held]

    def _of_node(self, node: Node) -> Iterator[GPUState]:
        if not node.allocatable:
            return
        why = unknown(node)
        if not node.usable:
            why = "takes no pods of the engine, so its GPUs are left out"
        if why:
            self.notes.append(f"node {node.name}: {why}")
            return
        try:
            found = gpus_of(node, "node")
        except InputError as error:
            self.notes.append(f"{error.field} {error.problem}; its GPUs are left out")
            return
        names = claiming(node, self.snapshot.pools)
        if len(names) > 1:
            self.notes.append(
                f"node {node.name}: GPUPools {', '.join(names)} claim it; it belongs to {names[0]}"
            )
        yield from (replace(gpu, pool=names[0] if names else "") for gpu in found)

    @staticmethod
    def _pod(number: int, claim: Claim, names: Mapping[str, str], kept: frozenset[str]) -> PodSeen:
        ours = claim.owner_uid in names
        return PodSeen(
            node=claim.node,
            name=f"{claim.node}#{number}",
            owner=names[claim.owner_uid] if ours and claim.owner_uid is not None else OTHERS,
            ours=ours and claim.owner_uid not in kept,
            counts=((claim.resource, claim.count),),
        )


def _key(claim: Claim) -> tuple[str, str, str, int]:
    return claim.node, claim.resource, claim.owner_uid or "", claim.count


@dataclass(frozen=True, slots=True)
class _Running:
    """What runs of one LLMDeployment."""

    workloads: tuple[Workload, ...]

    def desired(self, intent: Intent, wish: int | None) -> int:
        there = max((each.replicas for each in self.workloads), default=0) if wish is None else wish
        return min(max(there, intent.min_replicas), intent.max_replicas)

    def shape(self) -> ShapeKey | None:
        """Return the shape that it runs on: of several the one that serves most."""
        if not self.workloads:
            return None
        best = min(self.workloads, key=lambda w: (-w.available, -w.replicas, w.shape, w.name))
        return ShapeKey(best.shape.sku, best.shape.profile, best.shape.tensor_parallel)


def _deployments(
    snapshot: FleetSnapshot,
    ordered: tuple[Intent | InvalidIntent, ...],
    told: Mapping[str, Architecture],
    notes: list[str],
) -> tuple[tuple[Wanted, ...], frozenset[str]]:
    """Return who is planned, and the uids of those who are not and keep what they have."""
    verdicts, facts, wishes = acceptance(ordered), dict(snapshot.facts), dict(snapshot.desired)
    workloads: dict[str, list[Workload]] = {}
    for workload in snapshot.workloads:
        workloads.setdefault(workload.owner_uid, []).append(workload)
    found, kept = [], set()
    for intent in ordered:
        running = _Running(tuple(workloads.get(intent.uid, ())))
        why = "" if verdicts[intent.uid][0] else verdicts[intent.uid][2]
        if isinstance(intent, Intent) and not why:
            inspected = facts.get(FactsKey(intent.namespace, intent.model_uri, snapshot.engine_image))
            model = told.get(intent.uid) or (architecture_from_facts(inspected) if inspected else None)
            why = "" if model else "its checkpoint has not been inspected"
            if model is not None:
                try:
                    found.append(_wanted(intent, model, running, wishes.get(intent.uid)))
                except InputError as error:
                    why = f"{error.field} {error.problem}"
        if why:
            kept.add(intent.uid)
            notes.append(f"{identity(intent.namespace, intent.name)} is not planned: {why}")
    return tuple(sorted(found, key=lambda wanted: wanted.id)), frozenset(kept)


def _wanted(intent: Intent, model: Architecture, running: _Running, wish: int | None) -> Wanted:
    shape = running.shape()
    present = None if shape is None else (shape, running.desired(intent, wish))
    found = on_this_engine(from_intent(intent, model), intent)
    return replace(found, uniform=True, present=present)
