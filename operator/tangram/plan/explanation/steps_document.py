"""The steps of `packing.transition` as the plan document shows them, or what they are blocked by."""

from collections.abc import Iterable, Mapping
from typing import Any

from tangram.packing import Packing
from tangram.packing.transition import BlockedMoves, Step, plan_steps
from tangram.plan.place.best.packing_problem import FleetProblem


def steps_document(fleet: FleetProblem, packing: Packing, *, restarts: bool = False) -> dict[str, Any]:
    """Return `steps` and, where they do not end in the plan, `stepsMissing`. Equal inputs give equal steps.

    While they move, no owner has fewer replicas than the fewer of before and after, but for those whose
    replicas are restarted.
    """
    planned = plan_steps(fleet.problem, packing, restarts=restarts)
    document: dict[str, Any] = {"steps": [_step(step) for step in planned.steps]}
    return document if planned.blocked is None else document | {"stepsMissing": _missing(planned.blocked)}


def restarted_owners(steps: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the owners of replicas that steps stop before a replacement serves, sorted."""
    return tuple(sorted({step["owner"] for step in steps if step["kind"] == "stop-replica"}))


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
    document["after"] = list(step.after)
    return document | {"precondition": step.precondition, "doneWhen": step.done_when}


def _missing(blocked: BlockedMoves) -> dict[str, Any]:
    return {"text": str(blocked), "blocked": list(blocked.replicas), "reasons": list(blocked.reasons)}
