"""What the whole fleet should become: cut, moved and grown as far as pools allow. Only recommended.

The same function plans what the operator sees and what a file holds: equal inputs give equal documents.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tangram.eligibility.isolation import Faulted, isolated
from tangram.eligibility.shapes.serving_requirements import identity
from tangram.fleet import (
    LAYOUT,
    Advice,
    FleetSnapshot,
    ParsedIntent,
    RecommendedChange,
)
from tangram.packing import GPUState, Packing, validate
from tangram.packing.problem.codec import to_json
from tangram.recommendation.documents.fleet_input import FleetInput
from tangram.recommendation.explanation.executable_packing import executable_packing
from tangram.recommendation.explanation.one_shape_cost import one_shape_document
from tangram.recommendation.explanation.steps import steps_document
from tangram.recommendation.explanation.unmet_demand import unmet_explanations
from tangram.recommendation.inputs_hash import planner_version
from tangram.recommendation.observed.snapshot_input import snapshot_input
from tangram.recommendation.problem.pack import PlanTimeLimit, pack
from tangram.recommendation.problem.problem import FleetProblem, fleet_problem
from tangram.recommendation.result.plan_document import plan_document

_HASH_DIGITS = 12
# Of the time there is: until when the solver may think, think again, reasons be looked for, and free mixes be
# compared; and how long steps may take. Counts bound all of them first: they matter where time is short.
_SOLVING, _AGAIN, _EXPLAINING, _MIXING, _STEPS = 0.6, 0.72, 0.8, 0.9, 0.1
_FREELY = PlanTimeLimit()


@dataclass(frozen=True, slots=True)
class PlannedFleet:
    """A plan, with what it was made from."""

    asked: FleetProblem
    packing: Packing
    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What is recommended for one state of the fleet."""

    inputs_hash: str
    document: dict[str, Any]  # as `tangram plan -o json` prints it
    current_cost_per_hour: float  # USD: GPUs in use now
    better: bool  # it takes cuts, moves or new nodes: the operator alone does not get there
    advice: tuple[tuple[str, Advice], ...]  # by uid, sorted: who goes short, and who is to move


def inputs_hash(given: FleetInput) -> str:
    """Return what names the plan: equal inputs to the same Tangram, equal hash."""
    asked = {"given": to_json(given), "edition": planner_version()}
    text = json.dumps(asked, sort_keys=True, separators=(",", ":"), default=sorted)
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]


def recommend(
    snapshot: FleetSnapshot, intents: Iterable[ParsedIntent], limits: PlanTimeLimit = _FREELY
) -> Recommendation:
    """Return the best plan of the whole fleet. `limits.wall_s` bounds all of it; the solver gets 60 %.

    Without limits equal inputs give equal plans, byte for byte. Raises `InputError` for what contradicts
    itself; what a cluster shows never does.
    """
    everyone = tuple(intents)
    given = snapshot_input(snapshot, everyone)
    try:
        plan = plan_fleet(given, limits)
    except Exception:  # noqa: BLE001 - raised again where no LLMDeployment is the cause
        plan = plan_fleet(without_faulty(given), limits)
    current = cost_per_hour(plan.asked)
    name = inputs_hash(given)
    ids = {identity(intent.namespace, intent.name): intent.uid for intent in everyone}
    return Recommendation(
        inputs_hash=name,
        document=plan.document,
        current_cost_per_hour=current,
        better=_changes(plan.packing) or _takes_away(plan),
        advice=tuple(sorted((ids[who], told) for who, told in _advice(plan, name, current))),
    )


def without_faulty(given: FleetInput) -> FleetInput:
    """Return the input without the LLMDeployments of which no problem can be made, and a note about each.

    What they run stays where it is. Raises what the problem raises without any LLMDeployment, too.
    """

    def attempt(still: Faulted) -> FleetInput:
        left = replace(
            given,
            deployments=tuple(each for each in given.deployments if each.id not in still),
            gpus=tuple(_standing(gpu, still) for gpu in given.gpus),
        )
        validate(fleet_problem(left).problem)
        return left

    made, faults = isolated(attempt, (wanted.id for wanted in given.deployments))
    notes = (f"{fault.owner_uid} is not planned: {fault.error}; please report this" for fault in faults)
    return replace(made, notes=(*made.notes, *notes))


def _standing(gpu: GPUState, still: Faulted) -> GPUState:
    if not any(instance.owner in still for instance in gpu.instances):
        return gpu
    stays = (replace(i, movable=i.movable and i.owner not in still) for i in gpu.instances)
    return replace(gpu, instances=tuple(stays))


def plan_fleet(given: FleetInput, limits: PlanTimeLimit = _FREELY) -> PlannedFleet:
    """Plan a fleet whole: layout, steps and, for those who go short, what rules it out and what would help.

    Raises `InputError` for what contradicts itself.
    """
    watch = limits.started()
    asked = fleet_problem(given)
    first = pack(asked, watch.part(_SOLVING))
    way = executable_packing(
        asked,
        first,
        solved=lambda other: pack(other, watch.part(_AGAIN)),
        steps_of=lambda found: steps_document(asked, found, limits.times(_STEPS)),
    )
    packing = way.packing
    document = plan_document(asked, packing)
    document["notes"] += way.notes
    told = unmet_explanations(asked, packing, watch.part(_EXPLAINING))
    document |= way.steps
    for wanted, found in zip(given.deployments, document["deployments"], strict=True):
        found.update(told.get(wanted.id, {}))
    left = None if watch.late() else watch.part(_MIXING)
    if (mixes := one_shape_document(asked, packing, left)) is not None:
        document["oneShapePerDeployment"] = mixes
    return PlannedFleet(asked, packing, document)


def cost_per_hour(asked: FleetProblem) -> float:
    """Return USD per hour of the GPUs that somebody uses now."""
    problem = asked.problem
    return sum(problem.price(g) for g in problem.gpus if any(i.owner is not None for i in g.instances))


def _changes(packing: Packing) -> bool:
    return bool(packing.moves or packing.grown) or any(layout.recut for layout in packing.layouts)


def _takes_away(plan: PlannedFleet) -> bool:
    """Whether somebody who goes short is to lose what runs: the operator alone does not do that."""
    short = {item.demand for item in plan.packing.unmet}
    now = Counter(i.owner for gpu in plan.asked.problem.gpus for i in gpu.instances if i.owner in short)
    then = Counter(p.owner for at in plan.packing.layouts for p in at.instances if p.owner in short)
    return any(then[owner] < count for owner, count in now.items())


def _advice(plan: PlannedFleet, name: str, current: float) -> Iterable[tuple[str, Advice]]:
    saves = round(current - plan.packing.cost_per_hour, 4) + 0.0  # never -0.0
    missed = {item.demand: item.share for item in plan.packing.unmet}
    moved = {move.owner for move in plan.packing.moves}
    anew = _on_new_ground(plan)
    for wanted, found in zip(plan.asked.given.deployments, plan.document["deployments"], strict=True):
        if wanted.id in missed.keys() | moved | anew:
            told = [
                RecommendedChange(each["dimension"], each["text"]) for each in found.get("relaxations", ())
            ]
            if wanted.id in anew:
                told.insert(
                    0, RecommendedChange(LAYOUT, _layout(plan.packing, name, missed.get(wanted.id, 0.0)))
                )
            yield wanted.id, Advice(name, saves, tuple(found.get("because", ())), tuple(told))


def _on_new_ground(plan: PlannedFleet) -> set[str]:
    """Owners of replicas on GPUs that are cut anew, and on nodes that are still to come."""
    there = {gpu.id for gpu in plan.asked.problem.gpus}
    return {
        placed.owner
        for layout in plan.packing.layouts
        if layout.recut or layout.id not in there
        for placed in layout.instances
        if placed.owner is not None
    }


def _layout(packing: Packing, name: str, missed: float) -> str:
    """Say what carrying the plan out would do for one that has no place on the slices that exist."""
    recut, moves, nodes = (
        sum(layout.recut for layout in packing.layouts),
        len(packing.moves),
        sum(count for _, count in packing.grown),
    )
    counts = (("GPUs cut anew", recut), ("replicas moved", moves), ("new nodes", nodes))
    steps = [f"{what}: {count}" for what, count in counts if count]
    whole = "serves it whole" if missed <= 0 else f"serves {1 - missed:.0%} of it"
    return f"FleetPlan {name} {whole}: {', '.join(steps)}"
