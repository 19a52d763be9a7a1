"""Choose the packing that serves most and that steps lead to.

GPUs in use keep their MIG mode where all demand is served so: changing it takes more moves, and they may
block each other.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from tangram.packing import Packing, Problem
from tangram.packing.problem.result import Stage
from tangram.plan.explanation.steps_document import restarted_owners
from tangram.plan.place.best.packing_problem import FleetProblem, with_modes_in_use

_MOST_ATTEMPTS = 3  # to find another layout before replicas are restarted
Steps = dict[str, Any]  # of the plan document: `steps` and, where they are incomplete, `stepsMissing`


@dataclass(frozen=True, slots=True)
class ExecutablePacking:
    """A packing of a fleet with the steps that lead to it, and notes on why it was chosen."""

    fleet: FleetProblem
    packing: Packing
    steps: Steps
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PackingChoice:
    """Solves a fleet, and orders the steps to a packing."""

    solve: Callable[[FleetProblem], Packing]
    solve_again: Callable[[FleetProblem], Packing]  # later, with less time
    steps_of: Callable[[FleetProblem, Packing, bool], Steps]  # True: replicas may be restarted

    def of(self, fleet: FleetProblem) -> ExecutablePacking:
        """Return the best packing of a fleet, or the best with fewer changes where no step leads to it.

        Replicas are restarted only where no order of direct moves serves as much.
        """
        calm = replace(fleet, problem=with_modes_in_use(fleet.problem, fleet.inputs.inferred))
        packing = self.solve(calm)
        best = None
        if packing.unmet and calm.problem != fleet.problem:
            freer = self.solve_again(fleet)
            if freer.status != "FALLBACK" and _leaves_more_unmet(packing, freer):
                best = self._with_steps(fleet, _bounded(freer, freer, fleet.problem))
            else:
                packing = _bounded(packing, freer, fleet.problem)
        best = best or self._with_steps(calm, packing)
        if not fleet.inputs.terms.reachable or "stepsMissing" not in best.steps or not best.packing.moves:
            return best
        return self._with_fewer_changes(best) or self._with_restarts(best) or best

    def _with_steps(self, fleet: FleetProblem, packing: Packing) -> ExecutablePacking:
        return ExecutablePacking(fleet, packing, self.steps_of(fleet, packing, False))

    def _with_fewer_changes(self, best: ExecutablePacking) -> ExecutablePacking | None:
        """Return the best packing with fewer changes, if no step leads to `best` and it serves as much.

        Steps are blocked by replicas that wait for each other's devices. They rarely do where GPUs in use are
        not cut, and never without moves. A packing with some blocked steps is kept: the others save money.
        """
        if best.steps["steps"]:
            return None
        problem = best.fleet.problem
        in_use = {gpu.id for gpu in problem.gpus if gpu.in_use}
        uncut = _uncut(with_modes_in_use(problem, best.fleet.inputs.inferred), in_use)
        for smaller in (uncut, replace(problem, move_budget=0)):
            fleet = replace(best.fleet, problem=smaller)
            packing = self.solve_again(fleet)
            if packing.status == "FALLBACK" or _leaves_more_unmet(packing, best.packing):
                continue
            steps = self.steps_of(fleet, packing, False)
            if "stepsMissing" not in steps:
                cost, why = best.packing.cost_per_hour, best.steps["stepsMissing"]["text"]
                note = f"a layout for {cost:.2f} $/h is not planned, because no step leads to it: {why}"
                return ExecutablePacking(best.fleet, packing, steps, (note,))
        return None

    def _with_restarts(self, best: ExecutablePacking) -> ExecutablePacking | None:
        """Return the same packing with steps that restart replicas; None: they serve no more."""
        steps = self.steps_of(best.fleet, best.packing, True)
        owners = restarted_owners(steps["steps"])
        if not owners:
            return None
        if (elsewhere := self._without_restarts(best, steps)) is not None:
            return elsewhere
        note = (
            f"replicas of {', '.join(owners)} are restarted, with consent: none serves from its step"
            f" stop-replica to wait-available. Without that: {best.steps['stepsMissing']['text']}"
        )
        return replace(best, steps=steps, notes=(note,))

    def _without_restarts(self, best: ExecutablePacking, steps: Steps) -> ExecutablePacking | None:
        """Return a packing that serves as much by direct moves: the GPUs on which replicas would be restarted
        stay as they are, and others are cut in their place. None: a few attempts found none.
        """
        fleet, uncut_gpus = best.fleet, set[str]()
        for _ in range(_MOST_ATTEMPTS):
            uncut_gpus |= {
                g for step in steps["steps"] if step["kind"] == "stop-replica" for g in step["gpus"]
            }
            fleet = replace(fleet, problem=_uncut(fleet.problem, uncut_gpus))
            packing = self.solve_again(fleet)
            if packing.status == "FALLBACK" or _leaves_more_unmet(packing, best.packing):
                return None
            direct = self.steps_of(fleet, packing, False)
            if "stepsMissing" not in direct:
                cost, where = best.packing.cost_per_hour, ", ".join(sorted(uncut_gpus))
                note = f"a layout for {cost:.2f} $/h is not planned, because it needs restarts on {where}"
                return ExecutablePacking(
                    best.fleet, packing, direct, (note,) * (cost < packing.cost_per_hour)
                )
            steps = self.steps_of(fleet, packing, True)
        return None


def _uncut(problem: Problem, uncut_gpus: Collection[str]) -> Problem:
    """Return the problem in which some GPUs keep their slices and their MIG mode."""
    gpus = (
        replace(gpu, cuttable=False, convertible=False) if gpu.id in uncut_gpus else gpu
        for gpu in problem.gpus
    )
    return replace(problem, gpus=tuple(gpus))


def _bounded(packing: Packing, freer: Packing, problem: Problem) -> Packing:
    """Return a packing whose unmet demand is proved only as far as the one of `freer` is, whose GPUs in use
    may change their MIG mode. Where gangs of several GPUs are in play, they do not.
    """
    gangs = {offer.sku for demand in problem.demands for offer in demand.offers if offer.tensor_parallel > 1}
    all_tried = not any(gpu.in_use and gpu.may_convert and gpu.sku in gangs for gpu in problem.gpus)
    bounds = {stage.name: stage for stage in freer.stages} if all_tried else {}

    def bounded(stage: Stage) -> Stage:
        freer_stage = bounds.get(stage.name)
        if not stage.is_unmet:
            return stage
        if freer_stage is None:
            return replace(stage, bound=0.0, proved=stage.value <= 0)
        bound = min(stage.bound, freer_stage.bound)
        return replace(stage, bound=bound, proved=stage.proved and freer_stage.proved)

    stages = tuple(map(bounded, packing.stages))
    proved = packing.status != "OPTIMAL" or all(stage.proved for stage in stages)
    return replace(packing, stages=stages, status=packing.status if proved else "FEASIBLE")


def _leaves_more_unmet(changed: Packing, packing: Packing) -> bool:
    """Whether `changed` serves less than `packing`, the highest priority first."""
    priorities = sorted({item.priority for item in (*changed.unmet, *packing.unmet)}, reverse=True)

    def unmet_by_priority(candidate: Packing) -> list[float]:
        return [round(sum(i.share for i in candidate.unmet if i.priority == p), 6) for p in priorities]

    return unmet_by_priority(changed) > unmet_by_priority(packing)
