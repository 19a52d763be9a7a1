"""Very many bundles: few are looked at, and the relaxation proves that this does. Forced on small fleets."""

import random
from dataclasses import replace

import pytest

from benchmarks.packing import scale
from benchmarks.packing.workloads import demands
from tangram.packing import narrow, search, solve
from tangram.packing.build import build
from tangram.packing.columns import columns
from tangram.packing.linear import Relaxation, priced, rows_of
from tangram.packing.mixed import rounded
from tangram.packing.prepare import by_owner, by_shape, emptied, prepare
from tangram.packing.search import Found, solve_model
from tangram.packing.wants import held_replicas, money, wants
from tests.support.packing_problems import small
from tests.support.packing_reference import MONEY, UNMET, boolean_optimum


@pytest.mark.parametrize("batch", range(4))
def test_few_bundles_are_enough_for_the_best_plan(batch, monkeypatch):
    monkeypatch.setattr(narrow, "MANY", -1)
    monkeypatch.setattr(narrow, "_FEW", (1, 2))
    for seed in range(9000 + batch * 15, 9015 + batch * 15):
        problem = small(seed)
        best = boolean_optimum(problem, drains=True)

        packed = solve.solve(problem)

        unmet = [round(stage.value * UNMET) for stage in packed.stages if stage.name.startswith("unmet")]
        blur = (len(problem.gpus) + 10) / MONEY
        assert unmet == best[:-2], seed
        assert packed.objective == pytest.approx(best[-2] / MONEY, abs=blur), seed
        assert packed.bound == pytest.approx(best[-2] / MONEY, abs=blur), seed


def model_of(problem):
    prices = money(problem)
    everyone = wants(problem, prices, held_replicas(problem, prices))
    fleet = prepare(problem, everyone)
    return build(fleet, prices, everyone, columns(fleet, by_owner(fleet)))


def cheapest(model):
    from ortools.sat.python import cp_model

    model.cp.minimize(model.dollars.expression)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model.cp) == cp_model.OPTIMAL
    return round(solver.objective_value), list(solver.response_proto.solution)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_dual_values_the_bound_and_what_bundles_cost_on_top_are_true(seed):
    problem, rng = small(seed), random.Random(seed)
    model = model_of(problem)
    for priority, least in zip(sorted(model.unmet, reverse=True), boolean_optimum(problem), strict=False):
        model.cp.add(model.unmet[priority].expression <= least)
    best, solution = cheapest(model)
    domains = [list(variable.domain) for variable in model.cp.proto.variables]
    low, high = [d[0] for d in domains], [d[-1] for d in domains]
    cost = [0] * len(domains)
    for variable, factor in zip(model.dollars.variables, model.dollars.factors, strict=True):
        cost[variable.index] += factor
    rows = rows_of(model.cp)

    for size in (0.0, 10.0, 1e5):
        bound, _ = priced(cost, low, high, rows, [rng.uniform(-size, size) for _ in rows])
        assert bound + model.dollars.constant <= best
    relaxed = Relaxation(model.cp).solve(model.dollars, 10.0, None)
    assert relaxed.bound <= best
    taken = [v for chosen in model.chosen.values() for v in chosen if solution[v.index]]
    assert all(relaxed.least(variable) <= best for variable in taken)


def test_a_model_without_room_for_everybody_is_told_from_one_with_room():
    model = model_of(small(3))

    assert not Relaxation(model.cp).solve(model.dollars, 10.0, None).impossible
    for terms in model.unmet.values():
        model.cp.add(terms.expression <= -1)
    assert Relaxation(model.cp).solve(model.dollars, 10.0, None).impossible


@pytest.mark.parametrize("seed", range(20))
def test_rounding_finds_solutions_of_the_model_and_nearly_the_best(seed):
    problem = small(seed)
    model = model_of(problem)
    unmet = model.unmet[max(model.unmet)]
    best = boolean_optimum(problem)[0]

    found = rounded(model.cp, unmet, 0, None)

    if found is None:  # some constraints are not linear
        assert any(demand.divisible for demand in problem.demands)
        return
    for index, value in enumerate(found):
        model.cp.add(model.cp.get_int_var_from_proto_index(index) == value)
    checked = solve_model(model.cp, search.Budget(search.Limits(), total_s=10.0), 1.0)
    assert checked.solution == found
    assert best <= unmet.value(found) <= best + 0.1 * UNMET


def test_a_search_that_finds_nothing_is_saved_by_rounding(monkeypatch):
    monkeypatch.setattr(narrow, "MANY", -1)
    problem = next(p for p in map(small, range(100)) if not any(d.divisible for d in p.demands))
    monkeypatch.setattr(narrow, "solve_model", nothing_found)

    packed = solve.solve(problem)

    assert [stage.name for stage in packed.stages if stage.name.startswith("unmet")]
    assert packed.status != "FALLBACK"


def nothing_found(*_args):
    return Found(None, 0.0, proved=False)


def anything_found(cp, *rest):
    """What a search has that ends before it has compared anything."""
    cp.clear_objective()
    return replace(solve_model(cp, *rest), bound=0.0, proved=False)


def worth(packed):
    return [round(s.value, 6) for s in packed.stages if s.name.startswith("unmet") or s.name == "dollars"]


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_that_thinking_ended_early_is_never_worse_than_what_runs(seed, monkeypatch):
    monkeypatch.setattr(narrow, "MANY", -1)
    problem = small(seed)
    with monkeypatch.context() as patched:
        patched.setattr(narrow, "solve_model", nothing_found)
        patched.setattr(narrow, "rounded", lambda *_args: None)
        patched.setattr(search, "solve_model", nothing_found)
        stays = solve.solve(problem)
    monkeypatch.setattr(narrow, "solve_model", anything_found)

    packed = solve.solve(problem)

    assert stays.status == "FALLBACK"
    assert worth(packed) <= worth(stays)


@pytest.mark.parametrize("batch", range(4))
def test_an_empty_fleet_serves_whatever_a_running_one_could(batch):
    """Else what is chosen on it would be worse, and its bound wrong. Pins, mig-manager, gangs and all."""
    for seed in range(9100 + batch * 15, 9115 + batch * 15):
        problem = small(seed)
        prices = money(problem)
        fleet, everyone = emptied(problem, wants(problem, prices, held_replicas(problem, prices)))
        model = build(fleet, prices, everyone, columns(fleet, by_shape(fleet)))

        assert least_unmet(model) <= boolean_optimum(problem)[:-2], seed


def least_unmet(model):
    from ortools.sat.python import cp_model

    found = []
    for priority in sorted(model.unmet, reverse=True):
        model.cp.minimize(model.unmet[priority].expression)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        assert solver.solve(model.cp) == cp_model.OPTIMAL
        found.append(round(solver.objective_value))
        model.cp.add(model.unmet[priority].expression <= found[-1])
    return found


def test_what_runs_does_not_hinder_a_fleet_that_is_short():
    case = scale.CASES["100"]
    empty, deployments = scale.prepare(case, 2)
    packed = solve.solve(replace(empty, demands=demands(deployments, empty)))
    running = replace(empty, gpus=scale.after(empty, packed))
    more = [replace(d, wanted=replace(d.wanted, rps=1.3 * d.wanted.rps)) for d in deployments]

    short = solve.solve(replace(running, demands=demands(more, running)))

    (unmet,) = (stage for stage in short.stages if stage.name.startswith("unmet"))
    assert 0.5 < unmet.bound <= unmet.value <= unmet.bound + 0.1
