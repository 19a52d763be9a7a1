"""What a reader would expect of a packing, one scene each."""

from collections import Counter
from dataclasses import replace

import pytest

from tangram.fleet import WHOLE_GPU
from tangram.packing import (
    Demand,
    GPUState,
    GrowablePool,
    Headroom,
    Instance,
    Offer,
    Problem,
    Spread,
    slice_request,
)
from tangram.packing.solve import solve

SKU = "H100-80GB-SXM"
PRICES = ((SKU, 3.0),)


def cut(n: int, *instances: Instance, **more) -> GPUState:
    more = {"node": f"n{n}", "mig_enabled": True} | more
    return GPUState(f"g{n}", sku=SKU, instances=instances, **more)


def whole(n: int, node: str, owner: str | None = None, gang: str | None = None, **more) -> GPUState:
    instances = (Instance(WHOLE_GPU, 0, owner, gang=gang),) if owner else ()
    return GPUState(f"g{n}", node, SKU, instances=instances, **more)


def ask(name: str, profile: str, size: int, count: int, **more) -> Demand:
    """So many replicas of one shape; the price is not looked at here."""
    return Demand(name, offers=(Offer(SKU, profile, size, 1.0, 1.0),), rate=float(count), **more)


def owners(packing, gpu: str) -> list:
    layout = next(layout for layout in packing.layouts if layout.id == gpu)
    return [(i.profile, i.start, i.owner) for i in layout.instances]


def test_of_two_shapes_that_need_the_same_gpus_the_smaller_share_is_taken():
    offers = (Offer(SKU, "1g.10gb", 1, 1.0, 0.43), Offer(SKU, "7g.80gb", 1, 1.0, 3.0))
    demand = Demand("a", offers=offers, rate=1.0)

    packed = solve(Problem((cut(0),), (demand,), PRICES))

    assert owners(packed, "g0") == [("1g.10gb", 6, "a")]
    assert packed.idle_per_hour == pytest.approx(3.0 * 6 / 7)


def test_a_replica_stays_while_moving_it_costs_more_than_it_saves():
    gpus = (
        cut(0, Instance("1g.10gb", 0, "a", move_cost=2.0)),
        cut(1, Instance("1g.10gb", 0, "b", move_cost=2.0)),
    )
    demands = (ask("a", "1g.10gb", 1, 1), ask("b", "1g.10gb", 1, 1))

    short = solve(Problem(gpus, demands, PRICES, horizon_h=0.5))
    long = solve(Problem(gpus, demands, PRICES, horizon_h=1.0))

    assert (short.moves, short.gpus_in_use) == ((), 2)
    assert (len(long.moves), long.gpus_in_use) == (1, 1)
    assert long.objective == pytest.approx(3.0 + 2.0)


def test_a_newcomer_takes_the_free_slice_and_foreign_replicas_stay():
    gpus = (
        cut(0, Instance("3g.40gb", 0, "x", movable=False), Instance("1g.10gb", 4)),
        cut(1, Instance("2g.20gb", 0, "y", move_cost=9.0)),
    )
    packed = solve(Problem(gpus, (ask("new", "1g.10gb", 1, 1),), PRICES))

    assert packed.moves == ()
    assert not any(layout.recut for layout in packed.layouts)
    assert ("1g.10gb", 4, "new") in owners(packed, "g0")
    assert ("2g.20gb", 0, "y") in owners(packed, "g1")


def test_shortage_falls_on_the_lowest_priority_and_is_told():
    demands = (
        ask("high", "4g.40gb", 1, 1, priority=10),
        ask("low", "4g.40gb", 1, 2, priority=1),
    )
    gpus = (cut(0, Instance("4g.40gb", 0, "low")), cut(1, Instance("4g.40gb", 0, "low")))

    packed = solve(Problem(gpus, demands, PRICES))

    assert [c.unmet for c in packed.choices] == [0.0, 0.5]
    assert [(u.demand, u.share) for u in packed.unmet] == [("low", 0.5)]
    assert packed.unmet[0].reason
    assert packed.moves == ()


def test_tensor_parallel_gangs_stay_inside_a_node():
    gpus = tuple(whole(i, f"n{i // 4}") for i in range(8))
    packed = solve(Problem(gpus, (ask("a", WHOLE_GPU, 2, 1), ask("b", WHOLE_GPU, 4, 1)), PRICES))

    nodes = {
        o: {
            layout.id: layout
            for layout in packed.layouts
            if layout.instances and layout.instances[0].owner == o
        }
        for o in "ab"
    }
    assert len({int(g[1:]) // 4 for g in nodes["a"]}) == 1
    assert len({int(g[1:]) // 4 for g in nodes["b"]}) == 1
    assert len({layout.instances[0].gang for layout in nodes["b"].values()}) == 1


def test_a_gang_of_eight_makes_a_scattered_node_free():
    gpus = tuple(whole(i, f"n{i // 8}", *(("a",) if i in {0, 8} else ())) for i in range(16))
    demands = (ask("a", WHOLE_GPU, 1, 2), ask("big", WHOLE_GPU, 8, 1))

    packed = solve(Problem(gpus, demands, PRICES))

    assert packed.unmet == ()
    assert [move.owner for move in packed.moves] == ["a"]


def test_without_one_nvlink_domain_a_gang_takes_the_whole_node():
    gpus = tuple(whole(i, f"n{i // 4}", nvlink_gpus=1) for i in range(8))

    two = solve(Problem(gpus, (ask("a", WHOLE_GPU, 2, 1),), PRICES))
    four = solve(Problem(gpus, (ask("a", WHOLE_GPU, 4, 2),), PRICES))

    assert two.unmet[0].share == 1.0
    assert four.unmet == ()
    assert four.gpus_in_use == 8


def bridged(gpus):
    """A node with H100s of which an NVLink bridge joins each pair."""
    return tuple(whole(i, "n", nvlink_gpus=2) for i in range(gpus))


@pytest.mark.parametrize(
    ("gpus", "size", "fit"),
    [(2, 2, 1), (4, 2, 2), (8, 2, 4), (3, 2, 1), (8, 4, 0)],
    ids=("one pair", "two pairs", "four pairs", "a pair and a single GPU", "a gang of two pairs"),
)
def test_gpus_that_a_bridge_joins_take_gangs_of_two(gpus, size, fit):
    packed = solve(Problem(bridged(gpus), (ask("a", WHOLE_GPU, size, 4),), PRICES))

    assert sum(part.count for choice in packed.choices for part in choice.parts) == fit
    gangs = Counter(i.gang for layout in packed.layouts for i in layout.instances)
    assert sorted(gangs.values()) == [size] * fit


def test_a_gang_of_all_gpus_of_a_node_with_bridges_talks_over_pcie():
    packed = solve(Problem(bridged(4), (ask("a", WHOLE_GPU, 4, 1),), PRICES))

    assert packed.unmet == ()


def test_a_gang_of_two_and_single_gpus_share_a_node_with_bridges():
    demands = (ask("a", WHOLE_GPU, 2, 1), ask("b", WHOLE_GPU, 1, 2))

    assert solve(Problem(bridged(4), demands, PRICES)).unmet == ()


def test_a_gpu_in_mig_mode_joins_no_gang():
    gpus = (whole(0, "n"), replace(whole(1, "n"), mig_enabled=True))

    assert solve(Problem(gpus, (ask("a", WHOLE_GPU, 2, 1),), PRICES)).unmet[0].demand == "a"


def test_a_convertible_gpu_serves_whole_or_cut_as_is_cheaper():
    gpus = tuple(whole(i, "n", convertible=True) for i in range(3))
    demands = (ask("pair", WHOLE_GPU, 2, 1), ask("slices", "3g.40gb", 1, 2))

    packed = solve(Problem(gpus, demands, PRICES))

    assert packed.unmet == ()
    assert sum(i.profile == "3g.40gb" for layout in packed.layouts for i in layout.instances) == 2


def test_new_nodes_are_bought_whole_and_only_when_they_are_needed():
    pool = GrowablePool("burst", SKU, node_size=4, max_nodes=2, price_per_gpu_hour=4.0)
    demand = ask("a", WHOLE_GPU, 2, 3)

    packed = solve(Problem((whole(0, "n"), whole(1, "n")), (demand,), PRICES, growable=(pool,)))

    assert packed.grown == (("burst", 1),)
    assert packed.cost_per_hour == pytest.approx(2 * 3.0 + 4 * 4.0)
    assert {layout.id.split("/")[0] for layout in packed.layouts if layout.in_use} == {"g0", "g1", "burst"}
    alone = solve(Problem((whole(0, "n"), whole(1, "n")), (ask("a", WHOLE_GPU, 2, 1),), PRICES, (), (pool,)))
    assert alone.grown == ()


def test_new_nodes_in_mig_mode_are_cut():
    pool = GrowablePool("burst", SKU, 2, 3, 4.0, mig_enabled=True)

    packed = solve(Problem((), (slice_request("r", "3g.40gb", 7, sku=SKU),), growable=(pool,)))

    assert packed.grown == (("burst", 2),)
    assert packed.unmet == ()


def test_headroom_is_kept_where_it_costs_nothing():
    gpus = (cut(0), cut(1, cuttable=False))
    wanted = Problem(gpus, (ask("a", "2g.20gb", 1, 2),), PRICES, headroom=(Headroom(SKU, "3g.40gb", 1),))

    packed = solve(wanted)

    stage = next(stage for stage in packed.stages if stage.name == "headroom")
    assert (stage.value, stage.proved, packed.gpus_in_use) == (0, True, 1)


def test_replicas_are_spread_over_nodes_and_zones():
    gpus = tuple(cut(i, node=f"n{i // 2}", zone=f"z{i // 4}") for i in range(8))
    demand = ask("a", "1g.10gb", 1, 4, spread=Spread(node=0.25, zone=0.5), max_replicas=4)

    packed = solve(Problem(gpus, (demand,), PRICES))

    used = {g.node for g in gpus for la in packed.layouts if la.id == g.id and la.in_use}
    assert (packed.unmet, len(used), packed.gpus_in_use) == ((), 4, 4)


def test_one_replica_more_lets_two_stand_on_one_node_and_saves_a_gpu():
    gpus = tuple(cut(i, node=f"n{i // 2}", zone=f"z{i // 4}") for i in range(8))
    demand = ask("a", "1g.10gb", 1, 4, spread=Spread(node=0.25, zone=0.5))

    packed = solve(Problem(gpus, (demand,), PRICES))

    nodes = Counter(g.node for g in gpus for _, _, owner in owners(packed, g.id) if owner)
    assert (packed.unmet, packed.gpus_in_use, packed.status) == ((), 3, "OPTIMAL")
    assert sorted(nodes.values()) == [1, 2, 2]  # a node that fails leaves three, as with four on four nodes


def test_mig_manager_moves_every_replica_of_a_gpu_whose_counts_change():
    full = (Instance("1g.10gb", 0, "a"), Instance("3g.40gb", 4, "b"))
    demands = (
        ask("a", "1g.10gb", 1, 1),
        ask("b", "3g.40gb", 1, 1),
        ask("c", "2g.20gb", 1, 1),
    )

    nvml = solve(Problem((cut(0, *full),), demands, PRICES))
    manager = solve(Problem((cut(0, *full, backend="mig-manager"),), demands, PRICES))

    assert (nvml.unmet, len(nvml.moves)) == ((), 0)
    assert (manager.unmet, len(manager.moves)) == ((), 2)
    frozen = solve(Problem((cut(0, *full, backend="mig-manager"),), demands, PRICES, move_budget=0))
    assert [u.demand for u in frozen.unmet] == ["c"]


def test_the_cheaper_of_two_pools_is_used_first():
    gpus = (cut(0, price_per_hour=5.0), cut(1, price_per_hour=2.0))

    packed = solve(Problem(gpus, (ask("a", "1g.10gb", 1, 3),), PRICES))

    assert [layout.id for layout in packed.layouts if layout.in_use] == ["g1"]
    assert packed.cost_per_hour == 2.0


def test_a_budget_rules_dear_shapes_out():
    offers = (Offer(SKU, "1g.10gb", 1, 1.0, 0.9), Offer(SKU, "7g.80gb", 1, 9.0, 3.6))
    demand = Demand("a", offers=offers, rate=10.0, budget_per_hour=3.0)

    packed = solve(Problem(tuple(cut(i) for i in range(4)), (demand,), PRICES))

    assert [(part.profile, part.count) for part in packed.choices[0].parts] == [("1g.10gb", 3)]
    assert packed.unmet[0].share == pytest.approx(0.7)
    assert "budget" in packed.unmet[0].reason


def test_raw_slices_may_be_served_in_part_and_on_any_board():
    gpus = (cut(0), GPUState("a0", "m", "A100-80GB-SXM", mig_enabled=True))

    packed = solve(Problem(gpus, (slice_request("r", "3g.40gb", 5),)))

    assert packed.choices[0].unmet == pytest.approx(0.2)
    assert sum(part.count for part in packed.choices[0].parts) == 4


def test_nothing_asked_costs_nothing():
    packed = solve(Problem((cut(0), whole(1, "n")), (), PRICES))

    assert (packed.status, packed.objective, packed.gap, packed.gpus_in_use) == ("OPTIMAL", 0.0, 0.0, 0)
    assert solve(Problem((), (ask("a", "1g.10gb", 1, 1),), PRICES)).unmet[0].share == 1.0


def scattered(pools: tuple[str, ...]) -> tuple[GPUState, ...]:
    """One small slice of another owner on each of many GPUs."""
    return tuple(
        GPUState(
            f"g{n}",
            f"n{n}",
            SKU,
            pool=pool,
            mig_enabled=True,
            instances=(Instance("1g.10gb", 0, f"s{n}", move_cost=0.001),),
        )
        for n, pool in enumerate(pools)
    )


def from_pools(problem, packing):
    pools = {gpu.id: gpu.pool for gpu in problem.gpus}
    return Counter(pools[move.source.gpu] for move in packing.moves)


@pytest.mark.parametrize(("budget", "used"), [(None, 1), (0, 3), (1, 2), (2, 1)])
def test_of_a_pool_no_more_replicas_move_away_than_its_budget(budget, used):
    budgets = () if budget is None else (("calm", budget),)
    problem = Problem(scattered(("calm", "calm", "calm", "busy", "busy")), (), move_budgets=budgets)

    packed = solve(problem)

    assert packed.gpus_in_use == used
    assert budget is None or from_pools(problem, packed)["calm"] <= budget
    assert packed.status == "OPTIMAL"


def test_replicas_that_stop_because_fewer_are_wanted_are_no_moves_of_their_pool():
    gpus = tuple(
        replace(g, instances=(replace(g.instances[0], owner="a"),)) for g in scattered(("calm",) * 4)
    )
    fewer = ask("a", "1g.10gb", 1, 1)

    packed = solve(Problem(gpus, (fewer,), move_budgets=(("calm", 0),)))

    assert (packed.gpus_in_use, packed.moves, packed.unmet) == (1, (), ())


def test_a_move_is_counted_where_there_is_budget_for_it():
    gpus = tuple(
        replace(g, instances=(replace(g.instances[0], owner="a"),))
        for g in scattered(("calm", "busy", "busy"))
    )
    other = ask("a", "2g.20gb", 1, 2)
    problem = Problem(gpus, (other,), move_budgets=(("calm", 0),))

    packed = solve(problem)

    assert from_pools(problem, packed) == {"busy": 2}
    assert packed.unmet == ()


def pinned(n: int, owner: str, profile: str = "7g.80gb") -> GPUState:
    return cut(n, Instance(profile, 0, owner, movable=False))


def test_a_pinned_replica_of_a_model_is_kept_beside_a_demand_of_higher_priority():
    low, high = ask("low", "7g.80gb", 1, 1), ask("high", "7g.80gb", 1, 1, priority=5)

    packed = solve(Problem((pinned(0, "low"),), (high, low), PRICES))

    assert owners(packed, "g0") == [("7g.80gb", 0, "low")]
    assert [(each.demand, each.share) for each in packed.unmet] == [("high", 1.0)]


def test_pinned_replicas_are_kept_where_all_that_is_wanted_finds_no_room():
    demand = ask("a", "7g.80gb", 1, 3)

    packed = solve(Problem((pinned(0, "a"), pinned(1, "a")), (demand,), PRICES))

    assert [owners(packed, name) for name in ("g0", "g1")] == [[("7g.80gb", 0, "a")]] * 2
    assert packed.choices[0].unmet == pytest.approx(1 / 3)


def test_pinned_replicas_on_one_node_do_not_rule_out_that_the_others_are_spread():
    gpus = (*(replace(pinned(n, "a"), node="n") for n in range(3)), cut(3))
    demand = ask("a", "7g.80gb", 1, 4, spread=Spread(node=0.5))

    packed = solve(Problem(gpus, (demand,), PRICES))

    assert packed.unmet == ()
    assert [owners(packed, f"g{n}") for n in range(4)] == [[("7g.80gb", 0, "a")]] * 4


@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_of_pinned_slices_as_many_go_on_as_are_wanted(wanted):
    slices = [Instance("1g.10gb", n, "a", movable=False) for n in range(2)]
    full = slice_request("b", "7g.80gb", 1, priority=9)

    packed = solve(Problem((cut(0, *slices),), (slice_request("a", "1g.10gb", wanted), full), PRICES))

    assert [(p, o) for p, _, o in owners(packed, "g0") if o] == [("1g.10gb", "a")] * wanted
    assert [each.demand for each in packed.unmet] == ["b"]


def test_a_pinned_replica_that_is_surplus_gives_its_slice_up():
    gpu = cut(0, Instance("1g.10gb", 4, "old", movable=False))
    new, old = slice_request("new", "7g.80gb", 1, priority=1), slice_request("old", "1g.10gb", 0)

    packed = solve(Problem((gpu,), (new, old), PRICES, move_budget=0))

    assert owners(packed, "g0") == [("7g.80gb", 0, "new")]
    assert (packed.unmet, packed.moves, packed.status) == ((), (), "OPTIMAL")


@pytest.mark.parametrize("backend", ["nvml", "mig-manager"])
def test_of_pinned_replicas_those_go_whose_gpu_others_need_as_a_whole(backend):
    gpus = (
        cut(0, Instance("1g.10gb", 4, "a", movable=False), backend=backend),
        cut(1, Instance("1g.10gb", 0, "a", movable=False), Instance("3g.40gb", 4, "b", movable=False)),
    )
    demands = (ask("a", "1g.10gb", 1, 1), ask("b", "3g.40gb", 1, 1), ask("c", "7g.80gb", 1, 1))

    packed = solve(Problem(gpus, demands, PRICES))

    assert owners(packed, "g0") == [("7g.80gb", 0, "c")]
    assert [owner for *_, owner in owners(packed, "g1") if owner] == ["a", "b"]
    assert (packed.unmet, packed.moves) == ((), ())


def test_where_owners_are_not_told_apart_none_gives_up_the_pinned_slice_of_another(monkeypatch):
    monkeypatch.setattr("tangram.packing.solve._MOST_CLASSES", 1)
    gpus = tuple(cut(n, Instance("1g.10gb", 0, name, movable=False)) for n, name in enumerate("ab"))
    demands = (
        slice_request("a", "1g.10gb", 1),
        slice_request("b", "1g.10gb", 0),
        slice_request("c", "7g.80gb", 1),
    )

    packed = solve(Problem(gpus, demands, PRICES))

    assert owners(packed, "g0") == [("1g.10gb", 0, "a")]
    assert owners(packed, "g1") == [("7g.80gb", 0, "c")]


@pytest.mark.parametrize("budget", [None, 0])
def test_a_pinned_replica_of_another_profile_than_its_owner_asks_for_never_moves(budget):
    gpu = cut(0, Instance("1g.10gb", 0, "a", movable=False))

    packed = solve(Problem((gpu,), (slice_request("a", "3g.40gb", 2),), PRICES, move_budget=budget))

    assert (packed.moves, packed.unmet) == ((), ())


def test_beside_a_pinned_replica_of_another_profile_the_movable_one_moves():
    gpu = cut(0, Instance("1g.10gb", 0, "a", movable=False), Instance("2g.20gb", 4, "a"))

    packed = solve(Problem((gpu,), (slice_request("a", "3g.40gb", 2),), PRICES))

    assert [(move.source.profile, move.target.profile) for move in packed.moves] == [("2g.20gb", "3g.40gb")]
    assert packed.unmet == ()


def test_idle_parts_are_those_of_each_gpu_by_itself():
    """On one GPU 4g.40gb claims more than half of the compute, 3g.40gb half of the memory: all is claimed."""
    gpus = (cut(0), cut(1, Instance("1g.10gb", 0, "b", movable=False), cuttable=False))
    demands = (slice_request("a4", "4g.40gb", 1), slice_request("a3", "3g.40gb", 1))

    packed = solve(Problem(gpus, demands, PRICES))

    assert packed.gpus_in_use == 2
    assert packed.idle_per_hour == pytest.approx(3.0 * 6 / 7)


def reason_of(name: str, problem: Problem) -> str:
    return next(each.reason for each in solve(problem).unmet if each.demand == name)


def test_a_pinned_replica_that_is_given_up_is_no_reason_to_go_short():
    gpu = cut(0, Instance("1g.10gb", 0, "old", movable=False))
    demands = (slice_request("new", "7g.80gb", 2), slice_request("old", "1g.10gb", 0))

    assert reason_of("new", Problem((gpu,), demands, PRICES)) == "no room left: 1 of 2 are placed"


def test_on_an_idle_gpu_that_may_not_be_cut_there_is_room_for_nothing_else():
    gpus = (cut(0, Instance("1g.10gb", 0), cuttable=False), cut(1, Instance("7g.80gb", 0), cuttable=False))
    first = slice_request("first", "7g.80gb", 1, priority=1)

    problem = Problem(gpus, (slice_request("a", "3g.40gb", 1), first), PRICES)

    assert reason_of("a", problem) == "no GPU has what it asks for, and none may be cut for it"


def test_demands_of_higher_priority_are_a_reason_only_where_they_stand_in_the_way():
    gpus = (cut(0, Instance("7g.80gb", 0), cuttable=False), cut(1, Instance("3g.40gb", 0), cuttable=False))
    first = slice_request("first", "7g.80gb", 1, priority=1)

    problem = Problem(gpus, (slice_request("a", "3g.40gb", 2), first), PRICES)

    assert reason_of("a", problem) == "no room left: 1 of 2 are placed"


def test_a_move_budget_that_is_spent_is_part_of_the_reason():
    gpus = (
        cut(0, Instance("1g.10gb", 0, "s")),
        cut(1, Instance("1g.10gb", 0, "s")),
    )
    demands = (slice_request("a", "7g.80gb", 1), slice_request("s", "1g.10gb", 2, priority=1))

    reason = reason_of("a", Problem(gpus, demands, PRICES, move_budget=0))

    assert reason == "no room left after demands of higher priority within the move budget"


def test_a_pinned_replica_on_a_shape_that_its_model_does_not_use_stays_beside_new_ones():
    gpu = cut(0, Instance("1g.10gb", 0, "a", movable=False))

    packed = solve(Problem((gpu,), (ask("a", "3g.40gb", 1, 1),), PRICES, move_budget=0))

    assert owners(packed, "g0") == [("1g.10gb", 0, "a"), ("3g.40gb", 4, "a")]
    assert (packed.unmet, packed.moves, packed.status) == ((), (), "OPTIMAL")


@pytest.mark.parametrize(("share", "replicas"), [(0.6666667, 3), (0.66666666, 2), (0.0000001, 1)])
def test_a_share_of_many_decimals_is_rounded_up_to_whole_replicas(share, replicas):
    gpus = tuple(whole(n, "n") for n in range(3))
    offer = Offer(SKU, WHOLE_GPU, 1, 1.0, 3.0)
    demand = Demand("a", offers=(offer,), rate=3.0, max_replicas=3, spread=Spread(node=share))

    packed = solve(Problem(gpus, (demand,), PRICES))

    assert packed.gpus_in_use == replicas


def test_pinned_replicas_beyond_the_maximum_serve_what_they_serve():
    """All stages say so: what the maximum allows is no bound where more must not move."""
    gpus = tuple(pinned(n, "a") for n in range(3))
    demand = Demand("a", offers=(Offer(SKU, "7g.80gb", 1, 1.0, 3.0),), rate=4.0, max_replicas=1)

    packed = solve(Problem(gpus, (demand,), PRICES))

    stage = packed.stages[0]
    assert (packed.choices[0].unmet, stage.value, stage.bound) == (0.25, 0.25, 0.25)


# ---- MIG modes


def free_slices(count: int) -> tuple[Instance, ...]:
    """Free slices of the smallest profile, from the high end of a GPU."""
    return tuple(Instance("1g.10gb", start) for start in range(7 - count, 7))


@pytest.mark.parametrize("backend", ["nvml", "mig-manager"])
@pytest.mark.parametrize("slices", [3, 7])
@pytest.mark.parametrize("cut_first", [True, False])
@pytest.mark.parametrize("gangs", [False, True])
def test_a_free_slice_is_taken_before_an_idle_gpu_is_cut(backend, slices, cut_first, gangs):
    more = {"node": "n", "convertible": True, "backend": backend}
    number = 0 if cut_first else 1
    gpus = (
        cut(number, *free_slices(slices), **more),
        whole(1 - number, **more),
        whole(2, **more),
        whole(3, "n", "gang" if gangs else "pair", "gang"),
        whole(4, "n", "gang" if gangs else "pair", "gang"),
    )
    demands = [ask("new", "1g.10gb", 1, 1)]
    if gangs:  # GPUs are then looked at node by node
        demands = [ask("gang", WHOLE_GPU, 2, 1), *demands]

    packed = solve(Problem(tuple(sorted(gpus)), tuple(demands), PRICES))

    assert owners(packed, f"g{number}")[-1] == ("1g.10gb", 6, "new")
    assert not any(layout.recut for layout in packed.layouts)
    assert next(stage for stage in packed.stages if stage.name == "disruption").value == 0


def test_a_gpu_out_of_mig_mode_serves_a_whole_gpu_before_a_mode_is_changed():
    for slices in (0, 3):
        for order in ((0, 1), (1, 0)):
            in_mig, out_of_it = order
            gpus = (
                cut(in_mig, *free_slices(slices), node="n", convertible=True),
                whole(out_of_it, "n", convertible=True),
            )

            packed = solve(Problem(tuple(sorted(gpus)), (ask("new", WHOLE_GPU, 1, 1),), PRICES))

            assert owners(packed, f"g{out_of_it}") == [(WHOLE_GPU, 0, "new")]
            assert not any(layout.recut for layout in packed.layouts)


@pytest.mark.parametrize("slices", [0, 3])
def test_a_gpu_that_leaves_mig_mode_is_a_change_of_its_layout(slices):
    gpu = cut(0, *free_slices(slices), convertible=True)

    packed = solve(Problem((gpu,), (ask("new", WHOLE_GPU, 1, 1),), PRICES))

    assert owners(packed, "g0") == [(WHOLE_GPU, 0, "new")]
    assert [layout.recut for layout in packed.layouts] == [True]
    assert next(stage for stage in packed.stages if stage.name == "disruption").value == 1


def test_free_slices_count_as_not_there_where_the_layouts_of_a_node_differ_too_much():
    profiles = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
    layouts = [(Instance(profile, 0),) for profile in profiles] + [free_slices(2), free_slices(3)]
    gpus = tuple(cut(n, *some, node="n", convertible=True) for n, some in enumerate(layouts))
    demands = (ask("pair", WHOLE_GPU, 2, 2), ask("slices", "3g.40gb", 1, 5))

    packed = solve(Problem(gpus, demands, PRICES))

    assert (packed.unmet, packed.gpus_in_use) == ((), 7)
