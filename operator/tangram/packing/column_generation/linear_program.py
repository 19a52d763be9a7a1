"""A linear program that grows, and its rows from a model: GLOP, from its last basis. Deterministic."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ortools.math_opt import (
    callback_pb2,
    model_parameters_pb2,
    model_pb2,
    model_update_pb2,
    parameters_pb2,
    solution_pb2,
)
from ortools.math_opt.core.python import solver

from tangram.packing.model import cp_model

_SEED = 7
_INFINITY = float("inf")
_ENDLESS = 2**61  # CP-SAT's bounds beyond this stand for none
_LOW, _BASIC = solution_pb2.BASIS_STATUS_AT_LOWER_BOUND, solution_pb2.BASIS_STATUS_BASIC
_CALLBACKS = callback_pb2.CallbackRegistrationProto()

Column = tuple[int, float | None, Iterable[tuple[int, int]]]  # low, high, (row, factor) sorted by row


@dataclass(frozen=True, slots=True)
class Row:
    """One linear constraint."""

    variables: Sequence[int]
    factors: Sequence[int]
    low: int | None
    high: int | None


@dataclass(frozen=True, slots=True)
class Optimum:
    """A solution of a linear program."""

    value: float
    duals: Sequence[float]  # by row; of a row that limits from above: zero or less
    values: Sequence[float]  # by column


def rows_of(cp: cp_model.CpModel) -> list[Row]:
    """Return the constraints that are linear and always hold. Without the others the bound is lower."""
    rows = []
    for constraint in cp.proto.constraints:
        if constraint.has_exactly_one():
            literals = list(constraint.exactly_one.literals)
            rows.append(Row(literals, [1] * len(literals), 1, 1))
        elif constraint.has_linear() and not constraint.enforcement_literal:
            linear = constraint.linear
            domain = list(linear.domain)
            low, high = domain[0], domain[-1]
            factors: dict[int, int] = {}
            for i, factor in zip(linear.vars, linear.coeffs, strict=True):
                factors[i] = factors.get(i, 0) + factor
            rows.append(
                Row(
                    list(factors),
                    list(factors.values()),
                    low if low > -_ENDLESS else None,
                    high if high < _ENDLESS else None,
                )
            )
    return rows


class Program:
    """Minimise the costs of columns within the bounds of rows."""

    def __init__(self, rows: Sequence[tuple[float | None, float | None]]) -> None:
        self.costs: list[int] = []  # by column
        self._rows = len(rows)
        self._cells: list[tuple[int, int, int]] = []  # (row, column, factor) since the last solution
        self._basis: solution_pb2.BasisProto | None = None
        model = model_pb2.ModelProto()
        model.linear_constraints.ids.extend(range(len(rows)))
        model.linear_constraints.lower_bounds.extend(-_INFINITY if low is None else low for low, _ in rows)
        model.linear_constraints.upper_bounds.extend(_INFINITY if high is None else high for _, high in rows)
        initial = parameters_pb2.SolverInitializerProto()
        self._solver = solver.new(parameters_pb2.SOLVER_TYPE_GLOP, model, initial)
        self._update = model_update_pb2.ModelUpdateProto()

    def add(self, columns: Iterable[Column], costs: Sequence[int] = ()) -> None:
        """Add columns; without `costs` they cost nothing."""
        new = self._update.new_variables
        for number, (low, high, entries) in enumerate(columns):
            identity = len(self.costs)
            new.ids.append(identity)
            new.lower_bounds.append(low)
            new.upper_bounds.append(_INFINITY if high is None else high)
            new.integers.append(False)
            self._cells.extend((row, identity, factor) for row, factor in entries)
            self.costs.append(costs[number] if costs else 0)
            if costs and costs[number]:
                self._update.objective_updates.linear_coefficients.ids.append(identity)
                self._update.objective_updates.linear_coefficients.values.append(costs[number])

    def charge(self, costs: Sequence[int]) -> None:
        """Change what all columns cost."""
        self.costs = list(costs)
        changed = self._update.objective_updates.linear_coefficients
        changed.Clear()
        changed.ids.extend(range(len(costs)))
        changed.values.extend(costs)

    def bound(self, row: int, high: int) -> None:
        """Change what a row is limited to from above."""
        self._flush()
        self._update.linear_constraint_updates.upper_bounds.ids.append(row)
        self._update.linear_constraint_updates.upper_bounds.values.append(high)
        self._flush()

    def _flush(self) -> None:
        if self._cells:
            rows, columns, factors = zip(*sorted(self._cells), strict=True)
            matrix = self._update.linear_constraint_matrix_updates
            matrix.row_ids.extend(rows)
            matrix.column_ids.extend(columns)
            matrix.coefficients.extend(factors)
            self._cells = []
        if not self._solver.update(self._update):
            raise RuntimeError("GLOP refuses an update")
        self._update = model_update_pb2.ModelUpdateProto()

    def solve(self, seconds: float) -> Optimum | None:
        """Return the optimum, or the best found in `seconds` of deterministic time; None: there is none."""
        self._flush()
        limits = parameters_pb2.SolveParametersProto(random_seed=_SEED, presolve=parameters_pb2.EMPHASIS_OFF)
        limits.glop.max_deterministic_time = seconds
        # Bounds are added up in whole numbers from any dual values: an imprecise solution is of use, too.
        limits.glop.change_status_to_imprecise = False
        start = model_parameters_pb2.ModelSolveParametersProto()
        if self._basis is not None:  # has to name every column and row: new columns at 0, new rows basic
            start.initial_basis.CopyFrom(self._basis)
            had = start.initial_basis.variable_status
            more = range(len(had.ids), len(self.costs))
            had.ids.extend(more)
            had.values.extend([_LOW] * len(more))
        solution = self._solver.solve(limits, start, None, _CALLBACKS, None, None)
        if not solution.solutions:
            return None
        answer = solution.solutions[0]
        if not answer.HasField("dual_solution") or not answer.HasField("primal_solution"):
            return None
        self._basis = answer.basis
        duals, values = [0.0] * self._rows, [0.0] * len(self.costs)
        dual, primal = answer.dual_solution.dual_values, answer.primal_solution.variable_values
        for i, value in zip(dual.ids, dual.values, strict=True):
            duals[i] = value
        for i, value in zip(primal.ids, primal.values, strict=True):
            values[i] = value
        return Optimum(answer.primal_solution.objective_value, duals, values)
