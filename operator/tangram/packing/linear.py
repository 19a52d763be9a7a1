"""The linear relaxation of a model: a bound that is proved, and what each choice costs on top of it.

An LP solver works with rounding errors, so its optimum proves nothing. Its dual values do, whatever they are:
priced by them, every constraint may be dropped, and the best of what is left bounds the objective from below.
They are rounded to 1024ths here, and that best is added up in whole numbers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ortools.linear_solver import linear_solver_pb2  # type: ignore[attr-defined]
from ortools.linear_solver.python.model_builder_helper import ModelSolverHelper

from tangram.packing import cp_model
from tangram.packing.model import Terms

_FINE = 1024  # parts of a unit that dual values are rounded to
_ENDLESS = 2**61  # CP-SAT's bounds beyond this stand for none
_INFINITY = float("inf")


@dataclass(frozen=True, slots=True)
class Relaxed:
    """What the relaxation says."""

    impossible: bool  # it found no solution (not proved: rounding errors); else, without costs: it gave up
    bound: int = 0  # nothing below it exists
    costs: Sequence[int] = ()  # by variable: what each unit of it adds to the bound, in 1024ths of a unit

    def least(self, variable: cp_model.IntVar) -> int:
        """Return what a solution that has this Boolean is worth at least."""
        return self.bound + self.costs[variable.index] // _FINE


@dataclass(frozen=True, slots=True)
class Row:
    """One linear constraint."""

    variables: Sequence[int]
    factors: Sequence[int]
    low: int | None
    high: int | None
    one: bool = False  # exactly one of its Booleans


class Relaxation:
    """The linear relaxation of one model, whose constraints are read once."""

    def __init__(self, cp: cp_model.CpModel) -> None:
        domains = [list(variable.domain) for variable in cp.proto.variables]
        self._low, self._high = [d[0] for d in domains], [d[-1] for d in domains]
        self._rows = rows_of(cp)
        self._request = linear_solver_pb2.MPModelRequest()
        self._request.solver_type = linear_solver_pb2.MPModelRequest.GLOP_LINEAR_PROGRAMMING
        for low, high in zip(self._low, self._high, strict=True):
            self._request.model.variable.add(lower_bound=low, upper_bound=high)
        for row in self._rows:
            _add(self._request, row)

    def solve(
        self,
        terms: Terms,
        deterministic_s: float,
        wall_s: float | None,
        within: Iterable[tuple[Terms, int]] = (),
    ) -> Relaxed:
        """Return a bound of `terms` where others, `within`, are at most what is said."""
        request = linear_solver_pb2.MPModelRequest()
        request.CopyFrom(self._request)
        request.solver_specific_parameters = f"max_deterministic_time: {deterministic_s}"
        if wall_s is not None:
            request.solver_time_limit_seconds = wall_s
        cost = [0] * len(self._low)
        for i, factor in _factors(terms).items():
            cost[i] = factor
            request.model.variable[i].objective_coefficient = factor
        extra = [_at_most(other, most) for other, most in within]
        for row in extra:
            _add(request, row)
        answer = ModelSolverHelper("GLOP").solve_serialized_request(request.SerializeToString())
        found = linear_solver_pb2.MPSolutionResponse.FromString(answer)
        if found.status != linear_solver_pb2.MPSOLVER_OPTIMAL:
            return Relaxed(impossible=found.status == linear_solver_pb2.MPSOLVER_INFEASIBLE)
        total, costs = priced(cost, self._low, self._high, [*self._rows, *extra], found.dual_value)
        return Relaxed(impossible=False, bound=total + terms.constant, costs=costs)


def _add(request: linear_solver_pb2.MPModelRequest, row: Row) -> None:
    added = request.model.constraint.add(
        lower_bound=-_INFINITY if row.low is None else row.low,
        upper_bound=_INFINITY if row.high is None else row.high,
    )
    added.var_index.extend(row.variables)
    added.coefficient.extend(row.factors)


def _factors(terms: Terms) -> dict[int, int]:
    found: dict[int, int] = {}
    for variable, factor in zip(terms.variables, terms.factors, strict=True):
        found[variable.index] = found.get(variable.index, 0) + factor
    return found


def _at_most(terms: Terms, most: int) -> Row:
    factors = _factors(terms)
    return Row(list(factors), list(factors.values()), None, most - terms.constant)


def priced(
    cost: Sequence[int], low: Sequence[int], high: Sequence[int], rows: Sequence[Row], duals: Sequence[float]
) -> tuple[int, list[int]]:
    """Return the bound that dual values prove, whatever they are, and what variables cost at these prices."""
    total, costs = 0, [each * _FINE for each in cost]
    for row, dual in zip(rows, duals, strict=True):
        price = 0 if row.one else round(dual * _FINE)
        side = row.low if price > 0 else row.high
        if price and side is not None:
            total += price * side
            for i, factor in zip(row.variables, row.factors, strict=True):
                costs[i] -= price * factor
    for row in rows:
        if row.one:  # the cheapest of them is the best price
            least = min(costs[i] for i in row.variables)
            total += least
            for i in row.variables:
                costs[i] -= least
    total += sum(each * (low[i] if each > 0 else high[i]) for i, each in enumerate(costs) if each)
    return -(-total // _FINE), costs


def rows_of(cp: cp_model.CpModel) -> list[Row]:
    """Return the constraints that are linear. The others are dropped: that only lowers the bound."""
    rows = []
    for constraint in cp.proto.constraints:
        if constraint.has_exactly_one():
            literals = list(constraint.exactly_one.literals)
            rows.append(Row(literals, [1] * len(literals), 1, 1, one=True))
        elif constraint.has_linear():
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
