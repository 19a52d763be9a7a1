"""Solve a fleet's packing problem within a time limit. The solver is loaded only when it is needed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tangram.packing import Packing, validate
from tangram.plan.place.best.foreign_owners import merged, named
from tangram.plan.place.best.packing_problem import FleetProblem

if TYPE_CHECKING:
    from tangram.packing.search.stages import SolveLimits

LEAST_S = 0.01


@dataclass(frozen=True, slots=True)
class PlanTimeLimit:
    """Most seconds that a plan, or a part of it, may take."""

    wall_s: float | None = None
    clock: Callable[[], float] | None = None  # seconds; without one the solver measures its own time

    def times(self, share: float) -> "PlanTimeLimit":
        """Return a share of the limit; no limit where there is none."""
        return self if self.wall_s is None else PlanTimeLimit(max(LEAST_S, self.wall_s * share), self.clock)

    def started(self) -> "Stopwatch":
        """Return a stopwatch that starts now."""
        return Stopwatch(self, self.clock() if self.clock is not None else 0.0)

    def for_solver(self, deterministic_s: float | None) -> "SolveLimits":
        """Return the limits of one solve that starts now, with CP-SAT's deterministic seconds."""
        from tangram.packing.search.stages import SolveLimits  # noqa: PLC0415 - loads the solver

        elapsed = None if self.clock is None else self.started().elapsed
        return SolveLimits(deterministic_s=deterministic_s, wall_s=self.wall_s, clock=elapsed)


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """The time since a start, against a limit."""

    limits: PlanTimeLimit
    start: float  # as `limits.clock` reads

    def elapsed(self) -> float:
        """Return the seconds since the start; 0 without a clock."""
        return 0.0 if self.limits.clock is None else self.limits.clock() - self.start

    def until(self, share: float) -> PlanTimeLimit:
        """Return what remains until `share` of the limit has passed; no limit where there is none."""
        if self.limits.wall_s is None:
            return self.limits
        return PlanTimeLimit(max(LEAST_S, self.limits.wall_s * share - self.elapsed()), self.limits.clock)

    def expired(self) -> bool:
        """Whether the limit has passed; never without a clock."""
        wall_s = self.limits.wall_s
        return wall_s is not None and self.limits.clock is not None and self.elapsed() >= wall_s


_UNLIMITED = PlanTimeLimit()


def pack(
    fleet: FleetProblem, limits: PlanTimeLimit = _UNLIMITED, deterministic_s: float | None = None
) -> Packing:
    """Return the packing of the whole fleet. Raises `InputError` where the problem contradicts itself.

    `deterministic_s`: CP-SAT's deterministic seconds; None: by the size of the model.
    """
    validate(fleet.problem)
    from tangram.packing.solve import solve  # noqa: PLC0415 - loads the solver

    return named(solve(merged(fleet.problem), limits.for_solver(deterministic_s)), fleet.problem)
