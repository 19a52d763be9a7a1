"""Plan the whole fleet: solve, explain, and write the plan as a document. Nothing is carried out here.

One function plans both an observed fleet and documents: equal inputs give equal plans.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tangram.eligibility.isolation import Faulted, isolated
from tangram.eligibility.shapes.serving_requirements import identity
from tangram.fleet import Advice, FleetSnapshot, LayoutChanges, ParsedIntent
from tangram.packing import Packing, validate
from tangram.plan.executable_packing import PackingChoice
from tangram.plan.explanation.one_shape_cost import one_shape_document
from tangram.plan.explanation.steps_document import steps_document
from tangram.plan.explanation.unmet_explanation import unmet_explanations
from tangram.plan.fleet_input.documents.fleet_input import FleetInput
from tangram.plan.fleet_input.observed.snapshot_input import snapshot_input
from tangram.plan.inputs_hash import inputs_hash
from tangram.plan.place.best.pack import PlanTimeLimit, pack
from tangram.plan.place.best.packing_problem import FleetProblem, fleet_problem, pinned
from tangram.plan.result.advice import advice_by_deployment, needs_changes
from tangram.plan.result.layout_changes import layout_changes
from tangram.plan.result.plan_document import plan_document

# Shares of the time limit at which the first solve, the solves with fewer changes, explanations and free
# mixes end. Counted work bounds each of them first, unless the limit is short.
_FIRST_SOLVE, _SECOND_SOLVE, _EXPLANATIONS, _FREE_MIXES = 0.6, 0.72, 0.8, 0.9
_UNLIMITED = PlanTimeLimit()


@dataclass(frozen=True, slots=True)
class PlannedFleet:
    """The problem of a fleet, its packing and the plan document."""

    fleet: FleetProblem
    packing: Packing
    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What is recommended for one state of the fleet."""

    inputs_hash: str
    document: dict[str, Any]  # as `tangram plan -o json` prints it
    current_cost_per_hour: float  # USD: GPUs in use now
    better: bool  # re-cuts, moves, new nodes or stops: more than the operator does by itself
    advice: tuple[tuple[str, Advice], ...]  # by uid, sorted: if it is unmet, moved or newly placed
    changes: tuple[LayoutChanges, ...] = ()  # of MIG layouts, those that a backend can make
    planned: frozenset[str] = frozenset()  # uids of the LLMDeployments that the plan is about


def recommend(
    snapshot: FleetSnapshot, intents: Iterable[ParsedIntent], limits: PlanTimeLimit = _UNLIMITED
) -> Recommendation:
    """Return the best plan of an observed fleet. `limits.wall_s` bounds all of it; the solver gets 60 %.

    Without limits equal inputs give equal plans, byte for byte. Raises `InputError` where the input
    contradicts itself, which an observed fleet never does.
    """
    parsed = tuple(intents)
    inputs = snapshot_input(snapshot, parsed)
    try:
        plan = plan_fleet(inputs, limits)
    except Exception:  # noqa: BLE001 - raised again where no LLMDeployment is the cause
        plan = plan_fleet(without_faulty(inputs), limits)
    current_cost, name = cost_per_hour(plan.fleet), inputs_hash(inputs)
    changes, notes = layout_changes(plan.fleet, plan.packing, snapshot, plan.document["steps"])
    plan.document["notes"] += notes
    uids = {identity(intent.namespace, intent.name): intent.uid for intent in parsed}
    advice = advice_by_deployment(plan.fleet, plan.packing, plan.document, name, current_cost)
    return Recommendation(
        inputs_hash=name,
        document=plan.document,
        current_cost_per_hour=current_cost,
        better=needs_changes(plan.fleet, plan.packing),
        advice=tuple(sorted((uids[deployment], item) for deployment, item in advice)),
        changes=changes,
        planned=frozenset(uids[deployment.id] for deployment in plan.fleet.inputs.deployments),
    )


def without_faulty(inputs: FleetInput) -> FleetInput:
    """Return the input without the LLMDeployments whose requirements raise, and a note about each.

    Their running replicas stay in place. Raises what the problem raises without any LLMDeployment.
    """

    def attempt(faulted: Faulted) -> FleetInput:
        reduced = replace(
            inputs,
            deployments=tuple(d for d in inputs.deployments if d.id not in faulted),
            gpus=pinned(inputs.gpus, faulted),
        )
        validate(fleet_problem(reduced).problem)
        return reduced

    planned_input, faults = isolated(attempt, (deployment.id for deployment in inputs.deployments))
    notes = (f"{fault.owner_uid} is not planned: {fault.error}; please report this" for fault in faults)
    return replace(planned_input, notes=(*planned_input.notes, *notes))


def plan_fleet(inputs: FleetInput, limits: PlanTimeLimit = _UNLIMITED) -> PlannedFleet:
    """Return a fleet's plan: layout, steps, and the causes of unmet demand with changes that would serve it.

    Raises `InputError` where the input contradicts itself.
    """
    stopwatch = limits.started()
    fleet = fleet_problem(inputs)
    executable = PackingChoice(
        solve=lambda candidate: pack(candidate, stopwatch.until(_FIRST_SOLVE)),
        solve_again=lambda candidate: pack(candidate, stopwatch.until(_SECOND_SOLVE)),
        steps_of=lambda candidate, packing, restarts: steps_document(candidate, packing, restarts=restarts),
    ).of(fleet)
    fleet, packing = executable.fleet, executable.packing
    document = plan_document(fleet, packing)
    document["notes"] += executable.notes
    explanations = unmet_explanations(fleet, packing, stopwatch.until(_EXPLANATIONS))
    document |= executable.steps
    for deployment, shown in zip(inputs.deployments, document["deployments"], strict=True):
        shown.update(explanations.get(deployment.id, {}))
    remaining = None if stopwatch.expired() else stopwatch.until(_FREE_MIXES)
    if (one_shape := one_shape_document(fleet, packing, remaining)) is not None:
        document["oneShapePerDeployment"] = one_shape
    return PlannedFleet(fleet, packing, document)


def cost_per_hour(fleet: FleetProblem) -> float:
    """Return USD per hour of the GPUs in use now."""
    problem = fleet.problem
    return sum(problem.price(g) for g in problem.gpus if any(i.owner is not None for i in g.instances))
