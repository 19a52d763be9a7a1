"""The steps of `packing.transition` as the plan document shows them, or what they are blocked by."""

from dataclasses import asdict
from typing import Any

from tangram.packing import Packing
from tangram.packing.transition import Missing, Pace, Step, transition
from tangram.recommendation.problem.pack import PlanTimeLimit
from tangram.recommendation.problem.packing_problem import FleetProblem

_EFFORT = 3_000_000  # counted work for finding an order: some seconds of a slow core
_UNLIMITED = PlanTimeLimit()


def steps_document(
    fleet: FleetProblem, packing: Packing, limits: PlanTimeLimit = _UNLIMITED
) -> dict[str, Any]:
    """Return `steps` and, where they do not end in the plan, `stepsMissing`. Equal inputs give equal steps.

    An LLMDeployment never falls below scaling.minReplicas. Other owners have no minimum: their replicas stop
    before their replacements serve only where no other order exists. `limits` end the search early.
    """
    pace = Pace(min_available=_minimum_replicas(fleet))
    planned = transition(fleet.problem, packing, pace, _EFFORT, limits.started().expired)
    document: dict[str, Any] = {"steps": [_step(step) for step in planned.steps]}
    return document if planned.missing is None else document | {"stepsMissing": _missing(planned.missing)}


def _minimum_replicas(fleet: FleetProblem) -> tuple[tuple[str, int], ...]:
    owners = {i.owner for gpu in fleet.problem.gpus for i in gpu.instances if i.owner is not None}
    minimum = dict.fromkeys(owners, 0) | {d.id: d.least for d in fleet.inputs.deployments}
    return tuple(sorted(minimum.items()))


def _step(step: Step) -> dict[str, Any]:
    """Return the fields that the kind of the step uses."""
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
        "spares": [asdict(spare) for spare in missing.spares],
        "minAvailable": [{"name": name, "replicas": n} for name, n in missing.min_available],
        "reasons": list(missing.reasons),
    }
