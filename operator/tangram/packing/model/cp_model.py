"""CP-SAT's models and solver without pandas and numpy, whose import takes longer than many a plan.

`ortools.sat.python.cp_model` wraps what OR-tools compiles and names pandas' types in signatures that the
packing does not use. These classes write the same protocol buffers, those of OR-tools' `cp_model.proto`. Of
the compiled module they take what `cp_model` exports under the same names, and `SolveWrapper`. pyproject.toml
pins OR-tools' minor version, and a test compares the buffers with those that `cp_model` writes.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from ortools.sat.python import cp_model_helper
from ortools.sat.python.cp_model_helper import (
    BoundedLinearExpression,
    CpModelProto,
    CpSolverResponse,
    CpSolverStatus,
    FlatIntExpr,
    IntVar,
    LinearExpr,
    Literal,
    SatParameters,
)
from ortools.util.python.sorted_interval_list import Domain

__all__ = ["CpModel", "CpSolver", "CpSolverStatus", "IntVar", "LinearExpr", "Literal", "ModelConstraint"]

UNKNOWN, FEASIBLE = CpSolverStatus.UNKNOWN, CpSolverStatus.FEASIBLE
INFEASIBLE, OPTIMAL = CpSolverStatus.INFEASIBLE, CpSolverStatus.OPTIMAL
_ENDLESS = (-(2**63), 2**63 - 1)  # bounds that stand for none


class ModelConstraint:
    """One constraint of a model."""

    def __init__(self, proto: Any) -> None:
        self.proto = proto

    def only_enforce_if(self, *literals: Literal) -> "ModelConstraint":
        """Let the constraint hold only where all of these are true."""
        self.proto.enforcement_literal.extend([literal.index for literal in literals])
        return self


class CpModel:
    """Integer variables, linear and logical constraints on them, and an objective."""

    def __init__(self) -> None:
        self.proto = CpModelProto()

    def new_int_var(self, low: int, high: int, name: str) -> IntVar:
        """Return a new variable of low..high."""
        return IntVar(self.proto).with_name(name).with_domain(Domain(low, high))

    def new_bool_var(self, name: str) -> IntVar:
        """Return a new variable of 0 and 1."""
        return self.new_int_var(0, 1, name)

    def get_int_var_from_proto_index(self, index: int) -> IntVar:
        """Return a variable of this model by its number."""
        return IntVar(self.proto, range(len(self.proto.variables))[index])

    def add(self, condition: Any) -> ModelConstraint:
        """Add a linear condition. Raises `TypeError` for anything else, and where factors are not whole."""
        if not isinstance(condition, BoundedLinearExpression) or not condition.ok:
            raise TypeError(f"not a linear condition on whole numbers: {condition}")
        constraint, offset = self.proto.constraints.add(), condition.offset
        constraint.linear.vars.extend([variable.index for variable in condition.vars])
        constraint.linear.coeffs.extend(condition.coeffs)
        bounds = condition.bounds.flattened_intervals()
        constraint.linear.domain.extend([bound if bound in _ENDLESS else bound - offset for bound in bounds])
        return ModelConstraint(constraint)

    def add_exactly_one(self, literals: Iterable[Literal]) -> ModelConstraint:
        """Let one of `literals` be true and the others false."""
        constraint = self.proto.constraints.add()
        constraint.exactly_one.literals.extend([literal.index for literal in literals])
        return ModelConstraint(constraint)

    def add_implication(self, condition: Literal, result: Literal) -> ModelConstraint:
        """Let `result` be true where `condition` is."""
        constraint = self.proto.constraints.add()
        constraint.bool_and.literals.append(result.index)
        return ModelConstraint(constraint).only_enforce_if(condition)

    def add_min_equality(
        self, target: LinearExpr, expressions: Iterable[LinearExpr | int]
    ) -> ModelConstraint:
        """Let `target` be the least of `expressions`: its negation is the most of theirs."""
        constraint = self.proto.constraints.add()
        _negate(target, constraint.lin_max.target)
        for expression in expressions:
            _negate(expression, constraint.lin_max.exprs.add())
        return ModelConstraint(constraint)

    def add_multiplication_equality(self, target: IntVar, factors: Iterable[IntVar]) -> ModelConstraint:
        """Let `target` be the product of `factors`."""
        constraint = self.proto.constraints.add()
        for expression, proto in (
            (target, constraint.int_prod.target),
            *((f, constraint.int_prod.exprs.add()) for f in factors),
        ):
            proto.vars.append(expression.index)
            proto.coeffs.append(1)
        return ModelConstraint(constraint)

    def minimize(self, expression: LinearExpr) -> None:
        """Set the objective, in place of any other."""
        self.proto.clear_objective()
        flat, goal = FlatIntExpr(expression), self.proto.objective
        goal.vars.extend([variable.index for variable in flat.vars])
        goal.coeffs.extend(flat.coeffs)
        goal.offset = flat.offset
        goal.scaling_factor = 1.0

    def add_hint(self, variable: IntVar, value: int) -> None:
        """Let the search begin near a value."""
        self.proto.solution_hint.vars.append(variable.index)
        self.proto.solution_hint.values.append(value)

    def clear_hints(self) -> None:
        """Forget all hints."""
        self.proto.clear_solution_hint()

    def add_assumptions(self, literals: Iterable[Literal]) -> None:
        """Take these for true; if that is impossible, the solver names some that are to blame."""
        self.proto.assumptions.extend([literal.index for literal in literals])

    def clear_assumptions(self) -> None:
        """Assume nothing."""
        self.proto.assumptions.clear()


class CpSolver:
    """One solve, and what came of it."""

    def __init__(self) -> None:
        self.parameters = SatParameters()
        # With it OR-tools 9.15 "proves" what is not the optimum: github.com/google/or-tools/issues/5293.
        self.parameters.presolve_inclusion_work_limit = 0
        self._response: CpSolverResponse | None = None

    def solve(self, model: CpModel) -> CpSolverStatus:
        """Solve with `parameters`."""
        wrapper: Any = cp_model_helper.SolveWrapper()
        wrapper.set_parameters(self.parameters)
        response: Any = wrapper.solve(model.proto)
        self._response = response
        status: CpSolverStatus = response.status
        return status

    @property
    def response_proto(self) -> CpSolverResponse:
        """What the solver answered. Raises `RuntimeError` before `solve`."""
        if self._response is None:
            raise RuntimeError("solve() has not been called")
        return self._response

    @property
    def objective_value(self) -> float:
        """Of the solution that was found."""
        return float(self.response_proto.objective_value)

    @property
    def best_objective_bound(self) -> float:
        """What no solution is below."""
        return float(self.response_proto.best_objective_bound)

    @property
    def wall_time(self) -> float:
        """Seconds."""
        return float(self.response_proto.wall_time)

    def sufficient_assumptions_for_infeasibility(self) -> Sequence[int]:
        """Return the numbers of assumptions that cannot hold together."""
        return list(self.response_proto.sufficient_assumptions_for_infeasibility)


def _negate(expression: LinearExpr | int, proto: Any) -> None:
    if isinstance(expression, int):
        proto.offset = -expression
        return
    flat = FlatIntExpr(expression)
    proto.vars.extend([variable.index for variable in flat.vars])
    proto.coeffs.extend([-factor for factor in flat.coeffs])
    proto.offset = -flat.offset
