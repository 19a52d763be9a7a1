"""Every relaxation is applied here once more and solved: it suffices, and the next smaller one does not."""

import math
from dataclasses import replace

import pytest

from tangram.catalog import InputError
from tangram.fleet import WHOLE_GPU
from tangram.packing import Demand, GPUState, Instance, Offer, Part, Problem, Spread, slice_request
from tangram.packing.explanation.question import ExplanationBudget
from tangram.packing.explanation.sufficient_changes import ObjectiveChange, relaxations
from tangram.packing.search.stages import SolveLimits
from tangram.packing.solve import solve
from tests.support.packing_problems import small

pytestmark = pytest.mark.slow

H100 = "H100-80GB-SXM"
SHORT = SolveLimits(deterministic_s=2)


def cut(name, *instances, **more):
    return GPUState(name, name, H100, mig_enabled=True, instances=instances, **more)


def ask(profile, count, price=3.0, tp=1, **more):
    """So many replicas of one shape, at so many dollars together."""
    return Demand("chat", offers=(Offer(H100, profile, tp, 1.0, price / count),), rate=float(count), **more)


def fleet(gpus, *demands, **more):
    return Problem(tuple(gpus), demands, ((H100, 3.0),), **more)


def helps(problem, name="chat", **more):
    return relaxations(problem, solve(problem, SHORT), name, limits=SHORT, **more)


def texts(found):
    return [str(relaxation) for relaxation in found]


def test_one_more_slice_is_offered_where_one_is_missing():
    full = [cut("a", Instance("4g.40gb", 0, "x", movable=False), Instance("1g.10gb", 4, "x", movable=False))]

    found = helps(fleet(full, offers(("2g.20gb", 1.0, 0.9), ("3g.40gb", 1.0, 1.5), rate=1.0)))

    assert texts(found) == [f"add one 2g.20gb on {H100}"]
    assert found[0].added_per_hour == pytest.approx(3.0 * 2 / 7)


def test_raw_slices_are_offered_by_number():
    found = helps(fleet([cut("a")], slice_request("raw", "3g.40gb", 5)), "raw")

    assert texts(found) == [f"add 3 3g.40gb on {H100}"]


def test_a_gang_needs_a_node_with_that_many_gpus():
    found = helps(fleet([GPUState("a", "a", H100)], ask(WHOLE_GPU, 1, tp=2)))

    assert texts(found) == [f"add 2 {H100}, 2 per node"]


def test_the_smallest_budget_that_serves_is_the_price_of_a_mix_that_fits():
    shapes = (("1g.10gb", 1.0, 0.2), ("4g.40gb", 9.0, 3.1), ("7g.80gb", 9.0, 3.4))

    found = helps(fleet([cut("a")], offers(*shapes, rate=9.0, budget=1.0)))

    assert "budget 3.10 $/h" in texts(found)


def test_a_slower_objective_is_offered_with_the_shapes_that_the_caller_enumerates_for_it():
    demand = ask("7g.80gb", 2)
    objective = ObjectiveChange(
        "TTFT",
        "ms",
        (520.0, 570.0, 620.0, 670.0),
        lambda ms: demand if ms < 600 else ask("4g.40gb", 1),
    )

    found = helps(fleet([cut("a")], demand), objectives=(objective,))

    assert texts(found) == [f"add one 7g.80gb on {H100}", "TTFT 620 ms"]
    assert found[1].value == 620.0


def test_a_larger_share_per_node_is_offered_where_nodes_are_few():
    gpus = [GPUState(f"a{i}", "a", H100) for i in range(3)] + [GPUState("b", "b", H100)]
    demand = ask(WHOLE_GPU, 4, spread=Spread(node=0.5))

    found = helps(fleet(gpus, demand))

    assert "up to 75% of the replicas on one node" in texts(found)


def test_a_higher_priority_names_the_demands_that_lose():
    boss = replace(ask("7g.80gb", 1), id="boss", priority=5)

    found = helps(fleet([cut("a")], boss, ask("7g.80gb", 1)))

    assert "priority 6 (then boss loses)" in texts(found)
    assert found[-1].loses == ("boss",)


def test_a_larger_move_budget_is_offered_as_small_as_it_can_be():
    apart = [cut(x, Instance("3g.40gb", 4, "batch"), Instance("1g.10gb", 0, "batch")) for x in "ab"]
    parts = (Part(H100, "1g.10gb", 1, 2), Part(H100, "3g.40gb", 1, 2))
    batch = Demand("batch", 1, slices=parts)

    found = helps(fleet(apart, batch, ask("4g.40gb", 1), move_budget=0))

    assert "move budget 1" in texts(found)


def test_nothing_is_offered_to_a_demand_that_is_served_whole():
    assert helps(fleet([cut("a")], ask("7g.80gb", 1))) == ()


def test_without_time_nothing_is_claimed():
    problem = fleet([cut("a")], ask("7g.80gb", 2))

    assert helps(problem, effort=ExplanationBudget(seconds=0.0)) == ()


def test_a_demand_that_is_not_there_is_refused_by_name():
    with pytest.raises(InputError, match="there is no 'chta'"):
        helps(fleet([cut("a")], ask("7g.80gb", 1)), "chta")


def applied(problem, demand, relaxation, value):
    """The problem with one thing changed, written without the code under test."""
    others = tuple(d for d in problem.demands if d.id != demand.id)

    def changed(**more):
        return replace(problem, demands=tuple(sorted((*others, replace(demand, **more)), key=lambda d: d.id)))

    match relaxation.dimension:
        case "budget":
            return changed(budget_per_hour=value)
        case "priority":
            return changed(priority=int(value))
        case "spread":
            place = relaxation.subject.split()[-1]
            return changed(spread=replace(demand.spread, **{place: value}))
        case "moves":
            return replace(problem, move_budget=int(value))
        case "gpus":
            if " and " in relaxation.text or "per node" in relaxation.text:
                return None
            profile, _, sku = relaxation.subject.rpartition(" on ")
            extra = [GPUState(f"zz{i}", f"zz{i}", sku, f"zz{i}") for i in range(int(value))]
            if profile:
                free = Instance(profile, 0)
                extra = [replace(g, mig_enabled=True, cuttable=False, instances=(free,)) for g in extra]
            return replace(problem, gpus=(*problem.gpus, *extra))


def outcome(before, demand, after):
    """What the demand lacks, and who else is served less than before."""
    then = {choice.demand: choice.unmet for choice in before.choices}
    lacks = {choice.demand: choice.unmet for choice in after.choices}
    return lacks[demand.id], [name for name in lacks if name != demand.id and lacks[name] > then[name] + 1e-6]


def smaller(demand, relaxation):
    if relaxation.dimension == "spread":  # shares are rounded up to replicas
        most = demand.max_replicas or math.inf  # shares are told of numbers of replicas that may serve it
        alone = [min(most, math.ceil(demand.rate / offer.rate - 1e-9)) for offer in demand.offers]
        sizes = {max(demand.min_replicas, n) for n in alone}
        if not demand.uniform:
            sizes = range(min(sizes), max(sizes) + 1)
        return max(k / n for n in sizes for k in range(1, n + 1) if k / n < relaxation.value - 1e-6)
    return relaxation.value - (0.01 if relaxation.dimension == "budget" else 1)


@pytest.mark.parametrize("seed", range(9))
def test_each_relaxation_suffices_and_the_next_smaller_does_not(seed):
    problem = small(seed)
    packing = solve(problem, SHORT)
    judged = 0
    for demand in problem.demands:
        for relaxation in relaxations(problem, packing, demand.id, limits=SHORT):
            if (much := applied(problem, demand, relaxation, relaxation.value)) is None:
                continue
            little = applied(problem, demand, relaxation, smaller(demand, relaxation))
            enough, less = (outcome(packing, demand, solve(p, SHORT)) for p in (much, little))
            most = max((offer.rate for offer in demand.offers), default=0) * (demand.max_replicas or 1e9)
            least = max(0.0, 1 - most / demand.rate) if demand.rate else 0.0
            assert enough[0] <= least + 1e-5, relaxation.text
            rank = {d.id: d.priority for d in problem.demands}
            equals = relaxation.dimension == "priority" and relaxation.value - 1
            hurt = [name for name in less[1] if name not in relaxation.loses or rank[name] == equals]
            assert less[0] > least + 1e-5 or hurt, relaxation.text
            judged += 1
    assert judged


def offers(*each, budget=None, **more):
    found = tuple(sorted(Offer(H100, profile, 1, rate, price) for profile, rate, price in each))
    return Demand("chat", offers=found, budget_per_hour=budget, **more)


def test_of_offers_as_few_replicas_are_added_as_the_rate_lacks():
    demand = offers(("3g.40gb", 5.0, 1.5), ("7g.80gb", 9.0, 3.0), rate=18.0)

    found = helps(fleet([cut("a")], demand))

    assert texts(found) == [f"add 2 3g.40gb on {H100}"]


def test_a_budget_that_serves_by_a_mix_is_found_to_the_cent():
    demand = offers(("3g.40gb", 5.0, 1.5), ("4g.40gb", 6.0, 1.755), rate=11.0, budget=3.0)

    found = helps(fleet([cut("a")], demand))

    assert "budget 3.26 $/h" in texts(found)


def test_where_a_budget_excludes_each_shape_alone_a_mix_is_added():
    demand = offers(("3g.40gb", 5.0, 1.5), ("1g.10gb", 1.0, 0.44), rate=6.0, budget=2.0)
    full = cut("a", Instance("7g.80gb", 0, "x", movable=False))

    found = helps(fleet([full], demand))

    assert texts(found) == [f"add one 1g.10gb on {H100} and one 3g.40gb on {H100}"]


def test_what_max_replicas_leave_unserved_is_not_missing():
    demand = offers(("7g.80gb", 9.0, 3.0), rate=90.0, max_replicas=1)

    assert helps(fleet([cut("a")], demand)) == ()


def test_relaxations_are_the_same_every_time():
    problem = small(1)
    packing = solve(problem, SHORT)

    first, second = (relaxations(problem, packing, "d0", limits=SHORT) for _ in range(2))

    assert first == second != ()


def test_more_gpus_than_any_fleet_has_are_not_tried_one_by_one():
    slow = Offer("L4", WHOLE_GPU, 1, 0.5, 1.0)
    demand = ask(WHOLE_GPU, 1_000_000, 3e6, spread=Spread(node=0.5))
    demand = replace(demand, offers=(*demand.offers, slow))
    problem = fleet([GPUState("a", "a", H100)], demand)
    packing = solve(problem, SHORT)

    found = relaxations(problem, packing, "chat", limits=SHORT)

    assert found == ()  # at once: one by one, this would outlast every timeout
