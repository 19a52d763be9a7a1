"""Cores are judged by the solver: what a core does not name does not help, and what it names is needed."""

import math
from dataclasses import replace

import pytest

from tangram.catalog import InputError
from tangram.fleet import WHOLE_GPU
from tangram.packing import Demand, GPUState, Instance, Offer, Part, Problem, Spread, from_json, to_json
from tangram.packing.explanation.explain import InfeasibleCore, infeasible_core
from tangram.packing.explanation.question import ExplanationBudget
from tangram.packing.problem.statement import ANY_SKU
from tangram.packing.search.stages import SolveLimits
from tangram.packing.solve import solve
from tests.support.packing_problems import small

H100 = "H100-80GB-SXM"
SHORT = SolveLimits(deterministic_s=2)


def whole(name, node="n", **more):
    return GPUState(name, node, H100, **more)


def cut(name, *instances, node=None, **more):
    return GPUState(name, node or name, H100, mig_enabled=True, instances=instances, **more)


def ask(name, profile, count, price=3.0, tp=1, **more):
    """So many replicas of one shape, at so many dollars together."""
    return Demand(name, offers=(Offer(H100, profile, tp, 1.0, price / count),), rate=float(count), **more)


def why(problem, name="chat", **more):
    return infeasible_core(problem, solve(problem, SHORT), name, **more)


def fleet(gpus, *demands, **more):
    return Problem(tuple(gpus), demands, ((H100, 3.0),), **more)


def families(found):
    return [binding.family for binding in found.bindings]


def test_too_few_gpus_are_named_with_their_sku():
    found = why(fleet([cut("a")], ask("chat", "4g.40gb", 2)))

    assert str(found) == f"gpus: {H100}"
    assert (found.unmet, found.proved) == (0.5, True)


def test_a_budget_below_every_mix_is_named():
    found = why(fleet([cut("a")], ask("chat", "4g.40gb", 1, budget_per_hour=1.5)))

    assert str(found) == "budget: 1.5 $/h"


def test_spread_is_named_where_one_node_would_have_room_for_all():
    gpus = [whole("a0", "a"), whole("a1", "a")]

    found = why(fleet(gpus, ask("chat", WHOLE_GPU, 2, spread=Spread(node=0.5))))

    assert families(found) == ["spread", "gpus"]  # another GPU elsewhere would do as well


def test_a_gang_is_named_where_the_gpus_are_there_but_apart():
    gpus = [whole("a", "a"), whole("b", "b")]

    found = why(fleet(gpus, ask("chat", WHOLE_GPU, 1, tp=2)))

    assert families(found) == ["gang", "gpus"]
    assert "2 GPUs of one node" in str(found)


def test_a_gang_is_named_beside_one_of_the_same_demand_that_must_not_move():
    pinned = [
        whole(f"a{i}", "a", instances=(Instance(WHOLE_GPU, 0, "chat", movable=False, gang="g"),))
        for i in "01"
    ]
    foreign = Instance(WHOLE_GPU, 0, "foreign", movable=False)
    apart = [whole("b0", "b"), whole("c0", "c", instances=(foreign,)), whole("c1", "c")]

    found = why(fleet([*pinned, *apart], ask("chat", WHOLE_GPU, 2, tp=2)))

    assert families(found) == ["immovable", "gang", "gpus"]


def test_instances_that_must_not_move_are_named_with_their_owners():
    pinned = Instance("1g.10gb", 0, "foreign", movable=False)

    found = why(fleet([cut("a", pinned), cut("b", replace(pinned, start=5))], ask("chat", "7g.80gb", 1)))

    assert families(found) == ["immovable", "gpus"]
    assert "foreign" in str(found)


def test_gpus_that_must_not_be_cut_are_named():
    found = why(fleet([cut("a", cuttable=False)], ask("chat", "3g.40gb", 1)))

    assert families(found) == ["policy", "gpus"]
    assert "must not be cut: a" in str(found)


def test_demands_of_higher_priority_are_named():
    boss, chat = ask("boss", "7g.80gb", 1, priority=5), ask("chat", "7g.80gb", 1)

    found = why(fleet([cut("a")], boss, chat))

    assert families(found) == ["priority", "gpus"]
    assert "boss (5)" in str(found)


def test_one_shape_for_all_replicas_is_named_where_a_mix_would_do():
    offers = (Offer(H100, "3g.40gb", 1, 3.0, 1.0), Offer(H100, "4g.40gb", 1, 4.0, 1.0))
    chat = Demand("chat", offers=offers, rate=7.0, uniform=True)

    found = why(fleet([cut("a")], chat))

    assert families(found) == ["shape", "gpus"]
    assert str(found).startswith("shape: one for all replicas")
    assert why(fleet([cut("a")], replace(chat, uniform=False))) is None


def test_a_move_budget_is_named_where_room_is_scattered():
    apart = [cut(x, Instance("3g.40gb", 4, "batch"), Instance("1g.10gb", 0, "batch")) for x in "ab"]
    batch = Demand("batch", 1, slices=(Part(H100, "1g.10gb", 1, 2), Part(H100, "3g.40gb", 1, 2)))

    found = why(fleet(apart, batch, ask("chat", "4g.40gb", 1), move_budget=0))

    assert families(found) == ["moves", "priority", "gpus"]


@pytest.mark.parametrize(
    "slices",
    [
        (Part(ANY_SKU, "1g.10gb", 1, 1), Part(H100, "1g.10gb", 1, 5)),
        (Part(H100, WHOLE_GPU, 2, 2), Part(H100, WHOLE_GPU, 4, 1)),
        (Part(H100, WHOLE_GPU, 1, 4), Part(H100, WHOLE_GPU, 4, 1)),
    ],
    ids=["an open SKU beside its own", "gangs of two sizes", "a gang beside single GPUs"],
)
def test_gpus_are_named_where_all_parts_of_a_request_lack_them(slices):
    gpus = [cut("a", cuttable=False), whole("b")]

    found = why(fleet(gpus, Demand("chat", slices=slices, spread=Spread(node=0.5))))

    assert "gpus" in families(found)


def test_only_skus_that_would_help_are_named():
    both = Demand("chat", slices=(Part("A30", WHOLE_GPU, 1, 1), Part(H100, WHOLE_GPU, 1, 1)))

    found = why(fleet([whole("a")], both))

    assert str(found) == "gpus: A30"


def test_a_demand_that_is_served_whole_has_nothing_to_explain():
    assert why(fleet([cut("a")], ask("chat", "4g.40gb", 1))) is None


def test_a_demand_that_is_not_there_is_refused_by_name():
    with pytest.raises(InputError, match="there is no 'chta'; there is chat"):
        why(fleet([cut("a")], ask("chat", "4g.40gb", 1)), "chta")


def test_without_time_it_claims_nothing():
    found = why(fleet([cut("a")], ask("chat", "4g.40gb", 2)), effort=ExplanationBudget(seconds=0.0))

    assert (found.bindings, found.proved) == ((), False)


def test_a_core_survives_json_and_is_the_same_every_time():
    problem = fleet([cut("a")], ask("chat", "4g.40gb", 2))

    assert from_json(InfeasibleCore, to_json(why(problem))) == why(problem)


def without(problem: Problem, name: str, dropped: set[str]) -> Problem:
    """The problem without some families: as generous as the solver can be told to be."""
    demand = next(d for d in problem.demands if d.id == name)
    gpus = list(problem.gpus)
    if "budget" in dropped:
        demand = replace(demand, budget_per_hour=None)
    if "shape" in dropped:
        demand = replace(demand, uniform=False)
    if "spread" in dropped:
        demand = replace(demand, spread=Spread())
    if "priority" in dropped:
        demand = replace(demand, priority=99)
    if "immovable" in dropped:
        free = lambda g: tuple(replace(i, movable=True) for i in g.instances)  # noqa: E731
        gpus = [replace(g, instances=free(g)) for g in gpus]
    if "policy" in dropped:
        busy = lambda g: any(i.owner for i in g.instances)  # noqa: E731
        gpus = [replace(g, cuttable=True, convertible=g.convertible or not busy(g)) for g in gpus]
    if "moves" in dropped:
        problem = replace(problem, move_budget=None)
    for sku in sorted({family[5:] for family in dropped if family.startswith("gpus:")}):
        counts = [demand.rate / offer.rate for offer in demand.offers if offer.sku == sku]
        for i in range(math.ceil(max(counts, default=0)) + demand.min_replicas):
            gpus.append(GPUState(f"more-{sku}-{i}", f"more-{sku}-{i}", sku, f"more{i}", mig_enabled=True))
            gpus += [GPUState(f"more-{sku}-{i}.{k}", f"more-{sku}-w{i}", sku, f"more{i}") for k in range(4)]
    demands = tuple(demand if d.id == name else d for d in problem.demands)
    return replace(problem, gpus=tuple(sorted(gpus)), demands=demands)


def serves_less(problem, before, after, demand) -> list[str]:
    """Other demands of its priority or above that are served less than before."""
    then = {choice.demand: choice.unmet for choice in before.choices}
    now = {choice.demand: choice.unmet for choice in after.choices}
    others = (d.id for d in problem.demands if d.id != demand.id and d.priority >= demand.priority)
    return [name for name in others if now[name] > then[name] + 1e-6]


@pytest.mark.parametrize("seed", [0, 2, 6])
def test_all_that_a_core_does_not_name_does_not_help_and_each_that_it_names_is_needed(seed):
    problem = small(seed)
    packing = solve(problem, SHORT)
    judged = 0
    for demand in problem.demands:
        found = infeasible_core(problem, packing, demand.id)
        if found is None or demand.slices:
            continue
        named = {f"gpus:{b.subject}" if b.family == "gpus" else b.family for b in found.bindings}
        skus = {f"gpus:{offer.sku}" for offer in demand.offers}
        other = {"shape", "budget", "spread", "priority", "immovable", "policy", "moves", *skus} - named
        most = max(offer.rate for offer in demand.offers) * (demand.max_replicas or math.inf)
        least = max(0.0, 1 - most / demand.rate)  # what maxReplicas leave unserved on any fleet

        def unmet(dropped, name=demand.id):
            packed = solve(without(problem, name, dropped), SHORT)
            return next(c.unmet for c in packed.choices if c.demand == name), packed

        lacks, packed = unmet(other)
        assert lacks > least + 1e-5 or serves_less(problem, packing, packed, demand)
        for one in sorted(named - {"gang", "priority"}):
            if "gang" not in named and "priority" not in named:
                assert unmet(other | {one})[0] == pytest.approx(least, abs=1e-5), one
        judged += 1
    assert judged


@pytest.mark.parametrize(("budget", "bound"), [(1, ()), (0, ("moves",))])
def test_the_move_budget_of_a_pool_is_named(budget, bound):
    gpus = tuple(cut(f"g{n}", Instance("1g.10gb", 0, f"s{n}"), pool="calm") for n in range(2))
    problem = Problem(gpus, (ask("a", "7g.80gb", 1),), move_budgets=(("calm", budget),))

    found = infeasible_core(problem, solve(problem), "a")

    families = () if found is None else tuple(binding.family for binding in found.bindings)
    assert set(bound) <= set(families)
    assert bool(families) == bool(bound)
    assert not bound or any("at most 0 in pool calm" in binding.subject for binding in found.bindings)
