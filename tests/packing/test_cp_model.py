"""The packing's models are OR-tools' own, and planning loads neither pandas nor numpy for them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tangram.packing.column_generation.linear_program import rows_of
from tangram.packing.model import cp_model
from tangram.packing.solve import solve
from tests.support.packing_facts import UNMET, ProblemFacts
from tests.support.packing_instances import instance
from tests.support.packing_optimum import PerGPU

EXAMPLES = Path(__file__).parents[2] / "examples" / "plan"


def filled(made, expressions):
    """Every kind of constraint, on a model of ours or of OR-tools."""
    count = [made.new_int_var(0, 9, f"count{n}") for n in range(4)]
    on = [made.new_bool_var(f"on{n}") for n in range(4)]
    least = made.new_int_var(-5, 40, "least")
    made.add(expressions.sum(count) <= 12)
    made.add(expressions.weighted_sum(count, [1, 2, 3, 4]) + 5 >= 9).only_enforce_if(on[0])
    made.add(expressions.weighted_sum(count + count[:2], [1, 2, 3, 4, 7, -1]) == expressions.sum(on) + 18)
    made.add(count[0] == 2)
    made.add(count[1] <= count[2] + 1)
    made.add(count[1] * 3 - 2 != 7)
    made.add(expressions.weighted_sum([], []) + 0 <= 3)
    made.add(2 * count[0] - 2 * count[0] + count[1] >= 0).only_enforce_if(on[1].negated(), on[2])
    made.add_exactly_one(on)
    made.add_exactly_one([on[0], on[1].negated()])
    made.add_implication(on[0], on[1].negated())
    made.add_multiplication_equality(made.new_int_var(0, 81, "product"), [count[0], count[1]])
    made.add_min_equality(least, [7, expressions.weighted_sum(count, [1, 1, -2, 1]) + 3, count[0]])
    made.add_assumptions([on[0], on[1].negated()])
    made.minimize(expressions.sum(on))
    made.minimize(expressions.weighted_sum(count, [3, 2, 1, 5]) - 4)
    made.add_hint(count[0], 2)
    return made


def test_a_model_is_byte_for_byte_that_of_or_tools():
    from ortools.sat.python import cp_model as theirs

    mine = filled(cp_model.CpModel(), cp_model.LinearExpr)

    assert str(mine.proto) == str(filled(theirs.CpModel(), theirs.LinearExpr).proto)


def test_a_solve_says_what_that_of_or_tools_says():
    from ortools.sat.python import cp_model as theirs

    found = []
    for module in (cp_model, theirs):
        model, solver = filled(module.CpModel(), module.LinearExpr), module.CpSolver()
        model.clear_assumptions()
        solver.parameters.num_workers = 1
        status = solver.solve(model)
        bounds = (solver.objective_value, solver.best_objective_bound)
        found.append((status, bounds, list(solver.response_proto.solution)))

    assert found[0] == found[1]
    assert found[0][0] == cp_model.OPTIMAL


def test_presolve_keeps_the_optimum():
    problem = instance("several", 642, 6)
    packing, model, solver = solve(problem), PerGPU(ProblemFacts(problem)), cp_model.CpSolver()
    (unmet,) = model.unmet.values()
    model.m.minimize(sum(unmet))
    solver.parameters.num_workers = 1

    assert solver.solve(model.m) == cp_model.OPTIMAL  # with all of presolve: 2.0009
    assert solver.objective_value / UNMET == pytest.approx(packing.stages[0].value)


def test_assumptions_that_exclude_each_other_are_named():
    model, solver = cp_model.CpModel(), cp_model.CpSolver()
    some = [model.new_bool_var(f"some{n}") for n in range(3)]
    for literal, least in zip(some, (0, 5, 2), strict=True):
        model.add(cp_model.LinearExpr.sum(some) >= least).only_enforce_if(literal)
    model.add_assumptions(some)

    assert solver.solve(model) == cp_model.INFEASIBLE
    assert some[1].index in solver.sufficient_assumptions_for_infeasibility()


@pytest.mark.parametrize("condition", [True, 3, "x <= 2"])
def test_what_is_not_a_condition_is_refused(condition):
    with pytest.raises(TypeError, match="not a linear condition on whole numbers"):
        cp_model.CpModel().add(condition)


def test_an_answer_before_the_solve_is_refused():
    with pytest.raises(RuntimeError, match="has not been called"):
        _ = cp_model.CpSolver().objective_value


def test_a_plan_loads_neither_pandas_nor_numpy():
    script = (
        "import sys; from tangram.cli.main import main;"
        "status = main(['plan', '-f', 'fleet.yaml', '-f', 'models.yaml']);"
        "print(status, *({'numpy', 'pandas', 'matplotlib', 'kubernetes'} & set(sys.modules)))"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=EXAMPLES
    )

    assert done.stdout.splitlines()[-1] == "0"


def test_the_linear_relaxation_has_no_row_of_a_constraint_that_holds_only_on_a_condition():
    made = cp_model.CpModel()
    count, on = made.new_int_var(0, 9, "count"), made.new_bool_var("on")
    made.add(count <= 3).only_enforce_if(on)
    made.add(count + on <= 8)

    (row,) = rows_of(made)

    assert (list(row.variables), list(row.factors), row.low, row.high) == ([0, 1], [1, 1], None, 8)
