"""How to get from the fleet as it is to the plan: ordered steps, or what is missing for them."""

from typing import Any

from tangram.packing import Packing
from tangram.packing.transition import Missing, Pace, Spare, Step, transition
from tangram.recommendation.problem.pack import PlanTimeLimit
from tangram.recommendation.problem.problem import FleetProblem

_EFFORT = 3_000_000  # what is thought about an order: some seconds of a slow core, counted, not measured
_FREELY = PlanTimeLimit()


def steps_document(asked: FleetProblem, packing: Packing, limits: PlanTimeLimit = _FREELY) -> dict[str, Any]:
    """Return `steps` and, where they do not end in the plan, `stepsMissing`. Equal inputs give equal steps.

    An LLMDeployment never falls below scaling.minReplicas. An owner that was not sized has no minimum: its
    replicas are taken down before their replacements serve only where there is no other way. `limits` end
    the search early.
    """
    pace = Pace(min_available=_minima(asked))
    found = transition(asked.problem, packing, pace, _EFFORT, limits.started().late)
    document: dict[str, Any] = {"steps": [_step(step) for step in found.steps]}
    return document if found.missing is None else document | {"stepsMissing": _missing(found.missing)}


def _minima(asked: FleetProblem) -> tuple[tuple[str, int], ...]:
    owners = {i.owner for gpu in asked.problem.gpus for i in gpu.instances if i.owner is not None}
    least = dict.fromkeys(owners, 0) | {wanted.id: wanted.least for wanted in asked.given.deployments}
    return tuple(sorted(least.items()))


def _step(step: Step) -> dict[str, Any]:
    """Return what a step says; what its kind does not use is left out."""
    document: dict[str, Any] = {"number": step.number, "kind": step.kind, "node": step.node}
    document |= {"gpus": list(step.gpus)} if step.gpus else {}
    document |= {"profile": step.profile, "start": step.start} if step.profile else {}
    document |= {"owner": step.owner} if step.owner else {}
    document |= {"pool": step.pool} if step.pool else {}
    if step.kind == "set-geometry":
        document["layout"] = [{"profile": p.profile, "start": p.start} for p in step.layout]
    if step.kind == "set-mode":
        document["migEnabled"] = step.mig_enabled
    document |= {"temporary": True} if step.temporary else {}
    document |= {"restart": True} if step.restart else {}
    document["after"] = list(step.after)
    return document | {"precondition": step.precondition, "doneWhen": step.done_when}


def _missing(missing: Missing) -> dict[str, Any]:
    return {
        "text": str(missing),
        "blocked": list(missing.blocked),
        "spares": [_spare(spare) for spare in missing.spares],
        "minAvailable": [{"name": name, "replicas": n} for name, n in missing.min_available],
        "reasons": list(missing.reasons),
    }


def _spare(spare: Spare) -> dict[str, Any]:
    return {"sku": spare.sku, "profile": spare.profile, "count": spare.count}
