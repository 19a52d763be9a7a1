"""What explanations name and offer, put to an optimiser that shares no code with them."""

from dataclasses import replace

import pytest

from tangram.packing.explanation.explain import Binding, infeasible_core
from tangram.packing.explanation.sufficient_changes import relaxations
from tangram.packing.solve import solve
from tests.support.packing_claims import FAMILIES, changed, judged, ranks_without, servable, without
from tests.support.packing_instances import instance

BUDGETS = (2, 3, 7, 11, 14)  # with budgets, maxReplicas and a pinned replica
SURPLUS = (3, 9)  # with a budget, on one shape or on several
UNIFORM = (1, 12)  # with pinned replicas, on one shape or on several
SHORT = (
    "shortage",
    "running-short",
    "spread",
    "pinned",
    "move-budgets",
    "gangs",
    "budgets",
    "surplus",
    "uniform",
)


def short_demands(kind, seeds):
    """Demands of which claims can be judged, and that a packing leaves unserved in part."""
    for seed in seeds:
        problem = instance(kind, seed)
        packing = solve(problem)
        short = {unmet.demand for unmet in packing.unmet}
        for demand in problem.demands:
            if demand.id in short and judged(problem, demand.id):
                yield seed, problem, packing, demand


def false_cores(kind, seeds, explain=infeasible_core):
    """Constraints that are named wrongly, and how many cores were looked at."""
    found, count = [], 0
    for seed, problem, packing, demand in short_demands(kind, seeds):
        claim = explain(problem, packing, demand.id)
        if claim is None or not claim.bindings:
            continue
        count += 1
        named = {f"gpus:{b.subject}" if b.family == "gpus" else b.family for b in claim.bindings}
        others = {*FAMILIES, *(f"gpus:{offer.sku}" for offer in demand.offers)} - named

        def possible(dropped, problem=problem, packing=packing, name=demand.id):
            ranks = ranks_without(problem, name, dropped)
            return servable(without(problem, name, dropped), packing, name, ranks)

        if possible(others):
            found.append((kind, seed, demand.id, sorted(named), "served without any of them"))
        gangs = any(
            offer.tensor_parallel > 1 for offer in demand.offers
        )  # unnamed, they are not dropped here
        for one in sorted(named - {"gang"}) if claim.proved and not gangs else ():
            needless = possible(others | {one}) is False
            found += [(kind, seed, demand.id, sorted(named), f"not served without {one}")] * needless
    return found, count


def false_offers(kind, seeds, offer=relaxations):
    """Changes that do not suffice, and how many were looked at."""
    found, count = [], 0
    for seed, problem, packing, demand in short_demands(kind, seeds):
        for relaxation in offer(problem, packing, demand.id):
            enough = changed(problem, demand, relaxation)
            if enough is not None:
                count += 1
                if servable(enough, packing, demand.id) is False:
                    found.append((kind, seed, demand.id, relaxation.text))
    return found, count


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("shortage", 6),
        ("shortage", 14),
        ("spread", 1),
        ("pinned", 4),
        ("move-budgets", 11),
        ("gangs", 5),
        *(("budgets", seed) for seed in BUDGETS),
        *(("surplus", seed) for seed in SURPLUS),
        *(("uniform", seed) for seed in UNIFORM),
        ("pinned", 5),
    ],
)
def test_named_constraints_rule_a_demand_out_and_each_is_needed(kind, seed):
    found, count = false_cores(kind, [seed])

    assert found == []
    assert count


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("shortage", 6),
        ("pinned", 12),
        ("move-budgets", 11),
        ("budgets", 2),
        ("budgets", 14),
        *(("surplus", seed) for seed in SURPLUS),
    ],
)
def test_offered_changes_suffice(kind, seed):
    found, count = false_offers(kind, [seed])

    assert found == []
    assert count


def test_a_claim_that_is_too_small_is_seen():
    def first(*question):
        return replace(infeasible_core(*question), bindings=infeasible_core(*question).bindings[:1])

    def less(*question):
        return [replace(each, value=each.value - 1) for each in relaxations(*question)]

    assert any("served without any" in line[-1] for line in false_cores("shortage", [6], first)[0])
    assert false_offers("shortage", [6], less)[0]


def test_a_constraint_that_is_named_without_need_is_seen():
    def more(*question):
        return replace(
            infeasible_core(*question), bindings=(*infeasible_core(*question).bindings, Binding("moves", ""))
        )

    assert any("not served without" in line[-1] for line in false_cores("pinned", [4], more)[0])


@pytest.mark.campaign
@pytest.mark.parametrize("false_claims", [false_cores, false_offers])
@pytest.mark.parametrize("kind", SHORT)
def test_many_named_constraints_and_offered_changes_hold(kind, false_claims):
    found, count = false_claims(kind, range(1, 40))

    assert found == []
    assert count
