"""Solve a joint problem. The solver is loaded when it is needed: everything before it starts fast."""

from collections.abc import Callable
from dataclasses import dataclass

from tangram.packing import Packing, validate
from tangram.recommendation.problem.foreign_owners import merged, named
from tangram.recommendation.problem.problem import FleetProblem

LEAST_S = 0.01


@dataclass(frozen=True, slots=True)
class PlanTimeLimit:
    """How long to think."""

    wall_s: float | None = None
    clock: Callable[[], float] | None = None  # seconds; without one the solver counts its own

    def times(self, share: float) -> "PlanTimeLimit":
        """Return a share of the time; no limit where there is none."""
        return self if self.wall_s is None else PlanTimeLimit(max(LEAST_S, self.wall_s * share), self.clock)

    def started(self) -> "Stopwatch":
        """Return a watch that runs from now on."""
        return Stopwatch(self, self.clock() if self.clock is not None else 0.0)


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """What is left of a limit."""

    limits: PlanTimeLimit
    began: float

    def part(self, share: float) -> PlanTimeLimit:
        """Return what is left until `share` of the time is over; no limit where there is none."""
        wall_s, clock = self.limits.wall_s, self.limits.clock
        if wall_s is None:
            return self.limits
        spent = 0.0 if clock is None else clock() - self.began
        return PlanTimeLimit(max(LEAST_S, wall_s * share - spent), clock)

    def late(self) -> bool:
        """Whether the time is over; never where nobody measures it."""
        wall_s, clock = self.limits.wall_s, self.limits.clock
        return wall_s is not None and clock is not None and clock() - self.began >= wall_s


_FREELY = PlanTimeLimit()


def pack(
    asked: FleetProblem, limits: PlanTimeLimit = _FREELY, deterministic_s: float | None = None
) -> Packing:
    """Return the packing of the whole fleet. Raises `InputError` where the problem contradicts itself.

    `deterministic_s`: CP-SAT's own seconds of work; None: by the size of the model.
    """
    validate(asked.problem)
    from tangram.packing.search.stages import SolveLimits as SolverLimits  # noqa: PLC0415 - loads the solver
    from tangram.packing.solve import solve  # noqa: PLC0415

    clock = limits.clock
    began = clock() if clock is not None else 0.0
    elapsed = None if clock is None else lambda: clock() - began
    given = SolverLimits(deterministic_s=deterministic_s, wall_s=limits.wall_s, clock=elapsed)
    return named(solve(merged(asked.problem), given), asked.problem)
