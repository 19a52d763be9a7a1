"""Solve the objectives one after the other, and share out solver time: CP-SAT, one worker, a fixed seed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tangram.packing.model import cp_model
from tangram.packing.model.objective import StageObjective
from tangram.packing.model.variables import Model
from tangram.packing.problem.result import Stage
from tangram.packing.search.hints import carried, first_guess

_SEED = 7
_LARGE = 5000  # variables above which proofs take longer than the last per mille is worth
_LARGE_GAP = 0.002
_HALF = 0.5  # objectives are whole numbers


@dataclass(frozen=True, slots=True)
class SolveLimits:
    """How long to solve. Deterministic time gives equal problems equal packings; the wall guard does not."""

    deterministic_s: float | None = None  # CP-SAT's unit, about a second of one core; None: by size
    wall_s: float | None = None  # guard: the best found so far is returned when it is over
    gap: float | None = None  # relative gap at which a stage is good enough; None: 0, of large models 0.2 %
    clock: Callable[[], float] | None = None  # seconds since the call; None: count the solver's own


@dataclass(slots=True)
class SolverTime:
    """Solver seconds, deterministic and by the clock: their limits, and what is spent of them."""

    limits: SolveLimits
    total_s: float = 0.0  # deterministic
    spent_s: float = 0.0
    wall_s: float = 0.0  # in the solver
    large: bool = False  # the models are cut down from a large one: a good answer will do for them as well
    least_s: float = 0.01  # wall-clock seconds that any solve may take: the guard gives way to that

    def open(self, variables: int, least_s: float, each_s: float) -> None:
        """Set the deterministic limit for models of this size, unless one was given."""
        by_size = least_s + each_s * variables
        self.total_s = by_size if self.limits.deterministic_s is None else self.limits.deterministic_s

    def left(self, share: float) -> tuple[float, float | None]:
        """Return deterministic and wall seconds for a solve that may take `share` of what is left."""
        spent = self.limits.clock() if self.limits.clock is not None else self.wall_s
        part = max(share, _HALF)  # the guard is not the plan: half of what it leaves may always be used
        wall = None if self.limits.wall_s is None else max(self.least_s, (self.limits.wall_s - spent) * part)
        return max(0.01, (self.total_s - self.spent_s) * share), wall

    def late(self) -> bool:
        """Whether the wall-clock guard is over; never where none was given."""
        spent = self.limits.clock() if self.limits.clock is not None else self.wall_s
        return self.limits.wall_s is not None and spent >= self.limits.wall_s

    def is_large(self, variables: int) -> bool:
        """Whether only a good answer is looked for, not the best."""
        return (self.large or variables > _LARGE) and self.limits.gap is None

    def gap(self, variables: int) -> float:
        """Return the relative gap at which a stage may end."""
        return self.limits.gap or (_LARGE_GAP if self.is_large(variables) else 0.0)


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of one solve."""

    solution: list[int] | None
    bound: float
    proved: bool


def solve_model(
    cp: cp_model.CpModel,
    solver_time: SolverTime,
    share: float,
    hint: Mapping[int, int] | None = None,
    gap: float = 0.0,
    enough: float = 0.0,
    *,
    fix: bool = False,
) -> Found:
    """Solve once, from `hint` (values by the variable's index). So near the bound as `enough` will do.

    `fix`: with the values of the hint, which leaves few others to be found.
    """
    solver = _solver(solver_time, share, len(cp.proto.variables), max_gap=gap, max_distance=enough)
    solver.parameters.fix_variables_to_their_hinted_value = fix
    cp.clear_hints()
    for index, value in (hint or {}).items():
        cp.add_hint(cp.get_int_var_from_proto_index(index), value)
    status = solver.solve(cp)
    solver_time.spent_s += solver.response_proto.deterministic_time
    solver_time.wall_s += solver.wall_time
    bound = solver.best_objective_bound
    if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        return Found(None, bound, proved=False)
    proved = status == cp_model.OPTIMAL and solver.objective_value - bound < _HALF
    return Found(list(solver.response_proto.solution), bound, proved)


def _solver(
    solver_time: SolverTime, share: float, variables: int, max_gap: float, max_distance: float
) -> cp_model.CpSolver:
    """Return a solver that is limited in time, and ends within a relative gap or a distance to its bound."""
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = 1
    parameters.random_seed = _SEED
    deterministic, wall = solver_time.left(share)
    parameters.max_deterministic_time = deterministic
    if wall is not None:
        parameters.max_time_in_seconds = wall
    parameters.absolute_gap_limit = max(max_distance, parameters.absolute_gap_limit)
    parameters.relative_gap_limit = max(max_gap, solver_time.gap(variables))
    # The linear relaxation of every constraint gives the bound; probing and symmetry search cost more than
    # they bring: with the defaults the bound of 100 GPUs and 20 demands stays 19 % away.
    parameters.linearization_level = 2
    parameters.cp_model_probing_level = 0
    parameters.symmetry_level = 0
    return solver


@dataclass(slots=True)
class Run:
    """Stages on one model, each bounded by the ones before."""

    model: Model
    time: SolverTime
    solution: list[int] | None = None
    stages: list[Stage] = field(default_factory=list)
    complete: bool = True  # every stage so far was proved
    whole: bool = True  # the model has every mix; else what it proves holds for those that it has
    late: bool = False  # the last stage ended before anything was found

    def minimise(self, objective: StageObjective, share: float) -> bool:
        """Minimise within `share` of the time left, and keep the value for the stages to come.

        False: nothing was found.
        """
        combined = objective.combined
        if not combined.variables and self.solution is not None:  # every solution is best
            self._record(objective, objective.terms.constant, proved=True)
            return True
        self.model.cp.minimize(combined.expression)
        outcome = solve_model(self.model.cp, self.time, share, self._hint())
        self.late = outcome.solution is None
        if outcome.solution is None:
            self.complete = False
            if self.solution is None:
                return False
        self.solution = outcome.solution or self.solution or []
        least = objective.least(outcome.bound) if self.whole else 0
        self._record(objective, least, proved=outcome.proved and self.whole)
        self.model.cp.add(combined.expression <= combined.value(self.solution))
        return True

    def note(self, objective: StageObjective) -> None:
        """Record a stage that is not solved for: what the others made of it."""
        if self.solution is not None:
            self._record(objective, 0, proved=False)

    def _record(self, objective: StageObjective, bound: float, *, proved: bool) -> None:
        """Record a stage with the value that the solution has."""
        value = objective.terms.value(self.solution or [])
        least = value if proved else min(bound, value)
        self.stages.append(Stage(objective.name, value / objective.scale, least / objective.scale, proved))
        self.complete = self.complete and proved

    def start_from(self, run: "Run") -> None:
        """Take over the solution of another model of the same fleet, as far as it can be completed."""
        self.solution = solve_model(self.model.cp, self.time, 1.0, run.carried(self.model), fix=True).solution

    def carried(self, model: Model) -> dict[int, int]:
        """Return the solution for another model of the same fleet, as a hint; without one, no hint."""
        if self.solution is None or model is self.model:
            return dict(enumerate(self.solution or ()))
        return carried(self.model, self.solution, model)

    def _hint(self) -> dict[int, int]:
        return first_guess(self.model) if self.solution is None else dict(enumerate(self.solution))
