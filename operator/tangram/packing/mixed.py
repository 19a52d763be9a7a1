"""A good solution where CP-SAT finds none: HiGHS, at the root of its search, rounds the linear relaxation.

HiGHS computes with rounding errors. What it finds is rounded to whole numbers and checked here; what it says
about bounds is not used. One node of its tree, and no restarts, take as long as they take on any machine.
"""

from collections.abc import Sequence

from ortools.math_opt import callback_pb2, model_parameters_pb2, model_pb2, parameters_pb2
from ortools.math_opt.core.python import solver

from tangram.packing import cp_model
from tangram.packing.linear import Row, rows_of
from tangram.packing.model import Terms

_SEED = 7
_INFINITY = float("inf")


def rounded(cp: cp_model.CpModel, terms: Terms, near: int, wall_s: float | None) -> list[int] | None:
    """Return a solution of `cp` with few `terms`; one within `near` of the best will do. None: none found."""
    rows = rows_of(cp)
    if len(rows) < len(cp.proto.constraints):  # some are not linear
        return None
    domains = [list(variable.domain) for variable in cp.proto.variables]
    limits = parameters_pb2.SolveParametersProto(random_seed=_SEED, node_limit=1, absolute_gap_tolerance=near)
    if wall_s is not None:
        limits.time_limit.FromMilliseconds(int(1000 * wall_s))
    limits.highs.bool_options["mip_allow_restart"] = False
    model = _model([(d[0], d[-1]) for d in domains], rows, terms)
    found = solver.solve(
        model,
        parameters_pb2.SOLVER_TYPE_HIGHS,
        parameters_pb2.SolverInitializerProto(),
        limits,
        model_parameters_pb2.ModelSolveParametersProto(),
        None,
        callback_pb2.CallbackRegistrationProto(),
        None,
        None,
    )
    if not found.solutions:
        return None
    values = [0] * len(domains)
    answer = found.solutions[0].primal_solution.variable_values
    for i, value in zip(answer.ids, answer.values, strict=True):
        values[i] = round(value)
    inside = all(d[0] <= value <= d[-1] for d, value in zip(domains, values, strict=True))
    return values if inside and all(_holds(row, values) for row in rows) else None


def _model(bounds: Sequence[tuple[int, int]], rows: Sequence[Row], terms: Terms) -> model_pb2.ModelProto:
    model = model_pb2.ModelProto()
    model.variables.ids.extend(range(len(bounds)))
    model.variables.lower_bounds.extend(low for low, _ in bounds)
    model.variables.upper_bounds.extend(high for _, high in bounds)
    model.variables.integers.extend([True] * len(bounds))
    cost = [0] * len(bounds)
    for variable, factor in zip(terms.variables, terms.factors, strict=True):
        cost[variable.index] += factor
    priced = [i for i, each in enumerate(cost) if each]
    model.objective.linear_coefficients.ids.extend(priced)
    model.objective.linear_coefficients.values.extend(cost[i] for i in priced)
    constraints, matrix = model.linear_constraints, model.linear_constraint_matrix
    for number, row in enumerate(rows):
        constraints.ids.append(number)
        constraints.lower_bounds.append(-_INFINITY if row.low is None else row.low)
        constraints.upper_bounds.append(_INFINITY if row.high is None else row.high)
        pairs = sorted((i, f) for i, f in zip(row.variables, row.factors, strict=True) if f)
        matrix.row_ids.extend([number] * len(pairs))
        matrix.column_ids.extend(i for i, _ in pairs)
        matrix.coefficients.extend(f for _, f in pairs)
    return model


def _holds(row: Row, values: Sequence[int]) -> bool:
    total = sum(values[i] * factor for i, factor in zip(row.variables, row.factors, strict=True))
    return (row.low is None or total >= row.low) and (row.high is None or total <= row.high)
