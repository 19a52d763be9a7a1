"""Demands that choose one of a few allotments get those that trying every combination finds best."""

import itertools
import random
from collections import Counter

import pytest

from tangram.packing import Allotment, Demand, GPUState, Instance, Part, Problem
from tangram.packing.search import stage_solver
from tangram.packing.search.stages import Found as Outcome
from tangram.packing.solve import solve

PRICES = {"group-0": 1.0, "group-1": 2.5}


def fleet(seed):
    """Two GPU models that exist nowhere else, and demands of equal or of falling priority."""
    rng = random.Random(seed)
    free = {sku: rng.randint(0, 4) for sku in PRICES}
    gpus = tuple(
        GPUState(f"{sku}-{n}", f"{sku}-{n}", sku, cuttable=False) for sku in PRICES for n in range(free[sku])
    )
    in_order = rng.random() < 0.5
    demands = tuple(
        Demand(f"d{i}", priority=-i if in_order else 0, allotments=allotments(rng))
        for i in range(rng.randint(1, 4))
    )
    return Problem(gpus, demands, prices=tuple(PRICES.items())), free


def allotments(rng):
    chosen = {(): Allotment((), 1.0)}
    for _ in range(rng.randint(1, 4)):
        counts = Counter({sku: rng.randint(0, 2) for sku in PRICES})
        parts = tuple(Part(sku, "gpu", 1, n) for sku, n in sorted(counts.items()) if n)
        unmet, price, cost = (
            rng.choice((0.0, 0.25, 0.5)),
            rng.choice((1.0, 2.0, 3.0)),
            rng.choice((0.0, 0.0, 4.0)),
        )
        chosen[parts] = Allotment(parts, unmet, price, cost)
    return tuple(chosen.values())


def worth(problem, allotted):
    unmet = Counter()
    for demand, allotment in zip(problem.demands, allotted, strict=True):
        unmet[demand.priority] += allotment.unmet
    gpus = sum(PRICES[part.sku] * part.count for allotment in allotted for part in allotment.parts)
    in_order = tuple(round(unmet[priority], 6) for priority in sorted(unmet, reverse=True))
    return (
        *in_order,
        round(gpus + sum(a.cost for a in allotted), 6),
        round(sum(a.price_per_hour for a in allotted), 6),
    )


def fits(allotted, free):
    used = Counter()
    for allotment in allotted:
        used.update({part.sku: part.count for part in allotment.parts})
    return all(n <= free[sku] for sku, n in used.items())


@pytest.mark.parametrize("seed", range(40))
def test_no_combination_of_allotments_is_better_than_the_packing(seed):
    problem, free = fleet(seed)

    packing = solve(problem)

    pairs = zip(problem.demands, packing.choices, strict=True)
    allotted = [next(a for a in demand.allotments if a.parts == choice.parts) for demand, choice in pairs]
    every = (c for c in itertools.product(*(d.allotments for d in problem.demands)) if fits(c, free))
    assert worth(problem, allotted) == min(worth(problem, combination) for combination in every)
    assert fits(allotted, free)
    assert packing.status == "OPTIMAL"


def test_without_a_solution_in_time_a_demand_gets_nothing_new(monkeypatch):
    monkeypatch.setattr(stage_solver, "solve_model", lambda *_, **__: Outcome(None, 0.0, proved=False))
    one = Allotment((Part("H100-80GB-SXM", "1g.10gb", 1, 1),), 0.0)
    slices = (Instance("1g.10gb", 0), Instance("1g.10gb", 1, "another", movable=False))
    gpu = GPUState("g", "n", "H100-80GB-SXM", mig_enabled=True, instances=slices)
    problem = Problem((gpu,), (Demand("d", allotments=(Allotment((), 1.0), one)),))

    packing = solve(problem)

    assert packing.status == "FALLBACK"
    assert [(choice.parts, choice.unmet) for choice in packing.choices] == [((), 1.0)]
