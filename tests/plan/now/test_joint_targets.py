"""Several LLMDeployments at once: devices are assigned to all of them jointly."""

import itertools
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.fleet import ApplyDeployment, MIGPolicy, Objective, Pool, RemoveDeployment, Spread, Traffic
from tangram.fleet.lengths import around
from tangram.packing.search import stages
from tangram.plan import plan, render_status, round_decisions
from tangram.plan.fleet_input.fleet import read_fleet
from tangram.plan.fleet_input.free_capacity import observe_free_devices
from tangram.plan.offers import assessment
from tangram.plan.offers.node_offers import offers
from tangram.plan.place.now.joint_assignment import assign_devices
from tests.support.fleet import NOW, Cluster, claims, intent, node, shape, snapshot, tpot, workload

SLICE, BIG_SLICE, WHOLE, L4 = shape("1g.10gb"), shape("1g.20gb"), shape(), shape(sku="L4")
LEFT = Pool("left", (("side", "left"),))
RIGHT = Pool("right", (("side", "right"),), price_per_gpu_hour=9.0)


def decide(observed, *owners):
    new_plan = plan(observed, owners, NOW)
    return new_plan, {d.owner_uid: d for d in new_plan.decisions}


def on(side, gpu_node):
    return replace(gpu_node, labels=(("side", side),))


def applied(new_plan, owner):
    return [a for a in new_plan.actions if isinstance(a, ApplyDeployment) and a.owner_uid == owner.uid]


# --- new LLMDeployments together


def test_the_older_llmdeployment_leaves_the_device_to_one_that_has_no_alternative():
    """In turn, the older would take the slice, because it is cheapest, and the younger would wait."""
    old = intent("old", created_at=1.0)
    young = intent("young", denied_skus=("L4",), created_at=2.0)
    observed = snapshot(node("b", mig_1g_10gb=1), node("c", "L4", gpu=1))
    _, decisions = decide(observed, old, young)

    assert (decisions[old.uid].shape, decisions[young.uid].shape) == (L4, SLICE)
    assert [d.placed_reason for d in decisions.values()] == ["Placed", "Placed"]
    lost = decisions[old.uid].alternatives[0]
    assert (lost.shape, lost.rejected_because) == (SLICE, "NotEnoughGPUs")


def test_the_cost_of_the_fleet_is_least_not_that_of_the_first_llmdeployment():
    """In turn, the first would take the slice, and the second would pay a whole H100."""
    first = intent("first", created_at=1.0)
    second = intent("second", created_at=2.0, denied_skus=("L4",))
    observed = snapshot(node("a", gpu=1), node("b", mig_1g_10gb=1), node("c", "L4", gpu=1))
    _, decisions = decide(observed, first, second)

    assert (decisions[first.uid].shape, decisions[second.uid].shape) == (L4, SLICE)


def test_running_replicas_stay_though_all_would_cost_less_elsewhere():
    runs = intent("runs", created_at=1.0)
    new = intent("new", denied_skus=("L4",), created_at=2.0)
    observed = snapshot(
        node("b", mig_1g_10gb=1),
        node("c", "L4", gpu=1),
        claims=claims(runs, SLICE, "b"),
        workloads=(workload(runs, SLICE),),
    )
    new_plan, decisions = decide(observed, runs, new)

    assert decisions[runs.uid].shape == SLICE
    assert decisions[new.uid].placed == 0
    assert not [a for a in new_plan.actions if isinstance(a, RemoveDeployment)]


# --- priority


def test_the_higher_priority_gets_the_last_device_though_it_is_younger():
    old, young = intent("old", created_at=1.0), intent("young", created_at=2.0, priority=1)
    _, decisions = decide(snapshot(node("b", mig_1g_10gb=1)), old, young)

    assert (decisions[old.uid].placed, decisions[young.uid].placed) == (0, 1)


def test_running_replicas_of_a_lower_priority_are_not_preempted():
    low, high = intent("low"), intent("high", priority=9)
    observed = snapshot(
        node("b", mig_1g_10gb=1), claims=claims(low, SLICE, "b"), workloads=(workload(low, SLICE),)
    )
    new_plan, decisions = decide(observed, low, high)

    assert (decisions[low.uid].placed, decisions[high.uid].placed) == (1, 0)
    assert [a.replicas for a in applied(new_plan, low)] == [1]
    assert "0 of 1 replicas placed" in decisions[high.uid].placed_message


@pytest.mark.parametrize(("priority", "expected"), [(0, (2, 0)), (1, (1, 1))])
def test_priority_decides_between_growth_and_a_new_llmdeployment(priority, expected):
    grows = intent("grows", created_at=1.0, max_replicas=2)
    new = intent("new", created_at=2.0, priority=priority)
    observed = snapshot(
        node("b", mig_1g_10gb=2),
        claims=claims(grows, SLICE, "b"),
        workloads=(workload(grows, SLICE),),
        desired=((grows.uid, 2),),
    )
    _, decisions = decide(observed, grows, new)

    assert (decisions[grows.uid].placed, decisions[new.uid].placed) == expected


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=2, max_size=6), st.integers(0, 8))
@settings(max_examples=60, deadline=None)
def test_under_shortage_no_llmdeployment_waits_for_a_lower_priority(demands, units):
    owners = tuple(
        intent(f"m{i}", created_at=float(i), priority=priority, min_replicas=n)
        for i, (priority, n) in enumerate(demands)
    )
    _, decisions = decide(snapshot(node("b", mig_1g_10gb=units)), *owners)

    in_turn = sorted(owners, key=lambda m: (-m.priority, m.created_at))
    left = units
    for m in in_turn:
        assert decisions[m.uid].placed == min(left, m.min_replicas)
        left -= decisions[m.uid].placed


# --- spread

APART = Spread(node=0.5)


def in_zone(name, gpu_node):
    return replace(gpu_node, zone=name)


@pytest.mark.parametrize(
    ("spread", "nodes"),
    [
        (APART, (node("a", mig_1g_10gb=7), node("c", "L4", gpu=1), node("d", "L4", gpu=1))),
        (
            Spread(zone=0.5),
            (
                *(in_zone("x", node(name, mig_1g_10gb=7)) for name in ("a", "b")),
                *(in_zone(name, node(name, "L4", gpu=1)) for name in ("x", "y")),
            ),
        ),
    ],
    ids=("nodes", "zones"),
)
def test_a_new_llmdeployment_gets_a_shape_that_can_be_spread_though_another_is_cheaper(spread, nodes):
    m = intent(min_replicas=2, spread=spread)
    _, decisions = decide(snapshot(*nodes), m)

    assert (decisions[m.uid].shape, decisions[m.uid].placed) == (L4, 2)
    (lost,) = decisions[m.uid].alternatives
    assert (lost.shape, lost.rejected_because) == (SLICE, "Spread")
    assert "placement.spread" in lost.message


def test_devices_held_by_others_do_not_count_for_the_spread():
    m, other = intent("m", min_replicas=2, spread=APART), intent("other", "image:///m/8b")
    observed = snapshot(
        *(node(name, mig_1g_10gb=2) for name in "ab"),
        *(node(name, "L4", gpu=1) for name in "cd"),
        claims=claims(other, SLICE, "b", 2),
        workloads=(workload(other, SLICE, 2),),
    )
    _, decisions = decide(observed, m)

    assert decisions[m.uid].shape == L4


def test_the_cheapest_shape_serves_if_no_shape_can_be_spread():
    m = intent(min_replicas=2, spread=APART)
    _, decisions = decide(snapshot(node("a", mig_1g_10gb=7), node("c", "L4", gpu=2)), m)

    assert (decisions[m.uid].shape, decisions[m.uid].placed) == (SLICE, 2)


def test_no_llmdeployment_loses_replicas_to_the_spread_of_another():
    first = intent("first", min_replicas=2, spread=APART, priority=1)
    second = intent("second", min_replicas=2, mig=MIGPolicy.FORBIDDEN)
    nodes = (node("a", mig_1g_10gb=7), node("c", "L4", gpu=1), node("d", "L4", gpu=1))
    _, decisions = decide(snapshot(*nodes), first, second)

    assert [decisions[m.uid].shape for m in (first, second)] == [SLICE, L4]
    assert [decisions[m.uid].placed for m in (first, second)] == [2, 2]


def test_one_of_two_llmdeployments_is_spread_if_only_one_can_be():
    first, second = (intent(name, min_replicas=2, spread=APART) for name in ("first", "second"))
    nodes = (node("a", mig_1g_10gb=7), node("c", "L4", gpu=1), node("d", "L4", gpu=1))
    _, decisions = decide(snapshot(*nodes), first, second)

    assert sorted(d.shape for d in decisions.values()) == [SLICE, L4]
    assert [d.placed for d in decisions.values()] == [2, 2]


def test_running_replicas_are_not_moved_to_be_spread():
    m = intent(min_replicas=2, spread=APART)
    observed = snapshot(
        node("a", mig_1g_10gb=7),
        *(node(name, "L4", gpu=1) for name in "cd"),
        claims=claims(m, SLICE, "a", 2),
        workloads=(workload(m, SLICE, 2),),
    )
    new_plan, decisions = decide(observed, m)

    assert decisions[m.uid].shape == SLICE
    assert not [a for a in new_plan.actions if isinstance(a, RemoveDeployment)]


asks = st.tuples(st.integers(1, 3), st.booleans(), st.sampled_from(MIGPolicy))


@given(st.lists(asks, min_size=1, max_size=4), st.lists(st.integers(0, 3), min_size=4, max_size=4))
@settings(max_examples=60, deadline=None)
def test_a_spread_changes_the_number_of_replicas_of_no_llmdeployment(demands, units):
    cut, whole = units[:2], units[2:]
    observed = snapshot(
        *(node(f"a{i}", mig_1g_10gb=n) for i, n in enumerate(cut) if n),
        *(node(f"c{i}", "L4", gpu=n) for i, n in enumerate(whole) if n),
    )

    def placed(share):
        owners = tuple(
            intent(f"m{i}", min_replicas=n, mig=mig, spread=Spread(node=share if spread else 1.0))
            for i, (n, spread, mig) in enumerate(demands)
        )
        return [decision.placed for decision in decide(observed, *owners)[1].values()]

    assert placed(0.5) == placed(1.0)


@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 3)), max_size=5),
    st.integers(1, 6),
    st.sampled_from((0.2, 0.34, 0.5, 1.0)),
    st.sampled_from((0.34, 0.5, 1.0)),
)
def test_can_spread_agrees_with_trying_every_distribution(nodes, count, on_node, in_zone):
    observed = snapshot(
        *(replace(node(f"n{i}", mig_1g_10gb=n), zone=zone) for i, (zone, n) in enumerate(nodes) if n)
    )
    m = intent()
    can_spread = observe_free_devices(read_fleet(observed), (m,)).can_spread(
        m.uid, SLICE, count, Spread(on_node, in_zone)
    )

    def fits(counts):
        by_zone = Counter()
        for (zone, _), n in zip(nodes, counts, strict=True):
            by_zone[zone] += n
        limit, limits = -(-on_node * count // 1), -(-in_zone * count // 1)
        return max(counts, default=0) <= max(1, limit) and max(by_zone.values(), default=0) <= max(1, limits)

    distributions = itertools.product(*(range(n + 1) for _, n in nodes))
    assert can_spread == any(
        sum(distribution) == count and fits(distribution) for distribution in distributions
    )


# --- numbers of replicas


def test_a_new_llmdeployment_gets_as_many_replicas_as_its_traffic_needs():
    m = intent(max_replicas=9, traffic=Traffic(requests_per_second=40.0))
    new_plan, decisions = decide(snapshot(node("b", mig_1g_10gb=7)), m)

    assert decisions[m.uid].placed == decisions[m.uid].desired == applied(new_plan, m)[0].replicas == 4
    assert "predicted to carry" in decisions[m.uid].placed_message
    assert "requests/s in total" in decisions[m.uid].placed_message


def test_traffic_makes_one_fast_gpu_cheaper_than_many_slow_slices():
    little, heavy = (
        intent(max_replicas=40, tpot=tpot(8), traffic=Traffic(requests_per_second=rate))
        for rate in (1.0, 75.0)
    )
    observed = snapshot(node("a", gpu=4), node("b", mig_1g_10gb=40))

    assert decide(observed, little)[1][little.uid].shape == SLICE
    assert decide(observed, heavy)[1][heavy.uid].shape == WHOLE


def test_replicas_leave_a_shape_without_free_devices_for_as_many_of_equal_total_rate():
    m = intent(max_replicas=12)
    observed = snapshot(
        node("a", gpu=4),
        node("b", usable=False, mig_1g_10gb=6),
        claims=claims(m, SLICE, "b", 6),
        workloads=(workload(m, SLICE, 6, available=0),),
        desired=((m.uid, 6),),
    )
    _, decisions = decide(observed, m)

    assert (decisions[m.uid].shape, decisions[m.uid].desired) == (WHOLE, 2)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"tensor_parallel": (2,)}, "tensorParallel"),
        ({"precision": "nvfp4"}, "engine.precision"),
        ({"kv_precision": "fp8"}, "kvCachePrecision"),
    ],
)
def test_a_limit_of_the_engine_is_reported(changes, text):
    m = intent(**changes)
    new_plan, decisions = decide(snapshot(node("a", gpu=4)), m)

    assert decisions[m.uid].placed_reason == "Infeasible"
    assert text in decisions[m.uid].placed_message
    assert not applied(new_plan, m)


def test_a_serving_shape_is_scaled_though_every_shape_is_predicted_too_slow():
    """A prediction stops no replica and prevents no scaling."""
    m = intent(tpot=tpot(1), max_replicas=5)
    observed = snapshot(
        node("b", mig_1g_10gb=7),
        claims=claims(m, SLICE, "b"),
        workloads=(workload(m, SLICE),),
        desired=((m.uid, 3),),
    )
    new_plan, decisions = decide(observed, m)

    assert decisions[m.uid].placed_reason == "SLOUnreachable"
    assert "H100-80GB-SXM:1g.10gb goes on serving meanwhile" in decisions[m.uid].placed_message
    assert decisions[m.uid].alternatives[0].rejected_because == "TPOT"
    assert [(a.shape, a.replicas) for a in applied(new_plan, m)] == [(SLICE, 3)]


# --- GPUPools


def test_pods_run_only_in_the_named_pools():
    m = intent(pools=("left",), spread=Spread(node=0.5))
    observed = snapshot(
        on("right", node("a", mig_1g_10gb=4)), on("left", node("b", gpu=1)), pools=(LEFT, RIGHT)
    )
    new_plan, decisions = decide(observed, m)

    assert decisions[m.uid].shape == WHOLE
    (action,) = applied(new_plan, m)
    assert action.node_selectors == ((("side", "left"),),)
    assert action.spread == Spread(node=0.5)


def test_a_missing_pool_is_named_in_the_message():
    m = intent(pools=("lfet",))
    new_plan, decisions = decide(snapshot(on("left", node("b", gpu=1)), pools=(LEFT,)), m)

    assert decisions[m.uid].placed_reason == "InsufficientCapacity"
    assert "placement.pools names lfet, and there is no such GPUPool" in decisions[m.uid].placed_message
    assert not applied(new_plan, m)


def test_a_pool_without_gpus_is_named_in_the_message():
    m = intent(pools=("right",))
    _, decisions = decide(snapshot(on("left", node("b", gpu=1)), pools=(LEFT, RIGHT)), m)

    assert decisions[m.uid].placed_message.startswith("GPUPools right have no GPU that the catalog knows")


def test_the_price_of_a_pool_is_the_price_of_the_replica():
    observed = snapshot(
        on("right", node("a", gpu=1)), on("left", node("b", "L4", gpu=1)), pools=(LEFT, RIGHT)
    )
    m = intent(denied_skus=("L4",))

    assert decide(observed, m)[1][m.uid].price_per_hour == 9.0


def test_an_unrestricted_llmdeployment_leaves_a_pool_to_one_that_names_it():
    anywhere = intent("anywhere", created_at=1.0)
    named = intent("there", created_at=2.0, pools=("left",))
    observed = snapshot(
        on("left", node("a", mig_1g_10gb=1)), on("right", node("b", mig_1g_10gb=1)), pools=(LEFT,)
    )
    _, decisions = decide(observed, anywhere, named)

    assert [d.placed for d in decisions.values()] == [1, 1]


# --- budgets


def price(m, at, observed):
    return offers(read_fleet(observed)).replica_hour(at, m.pools) or 0.0


def test_a_budget_bounds_the_replicas_and_is_named():
    m = intent(min_replicas=1, max_replicas=5, budget_per_hour=1.0)
    observed = snapshot(node("b", mig_1g_10gb=7), desired=((m.uid, 5),))
    _, decisions = decide(observed, m)
    decision = decisions[m.uid]

    assert (decision.placed, decision.placed_reason) == (2, "OverBudget")
    assert "placement.budgetPerHour of 1.00 $/h allows 2 of 5 replicas" in decision.placed_message
    assert (
        render_status(decision, m, observed, None, None, {}, NOW)["conditions"][0]["reason"] == "OverBudget"
    )


def test_a_budget_that_is_lowered_takes_nothing_below_the_minimum():
    m = intent(min_replicas=2, max_replicas=5, budget_per_hour=0.1)
    observed = snapshot(
        node("b", mig_1g_10gb=7),
        claims=claims(m, SLICE, "b", 4),
        workloads=(workload(m, SLICE, 4),),
        desired=((m.uid, 4),),
    )
    new_plan, _ = decide(observed, m)

    assert [a.replicas for a in applied(new_plan, m)] == [2]


def test_a_move_waits_if_the_budget_does_not_allow_both_shapes():
    m = intent(tpot=tpot(5), budget_per_hour=1.0)  # 0.77 $/h alone, 1.21 $/h beside the old one
    old = workload(m, SLICE)
    observed = snapshot(
        node("b", mig_1g_10gb=1, mig_1g_20gb=1), claims=claims(m, SLICE, "b"), workloads=(old,)
    )
    new_plan, decisions = decide(observed, m)

    assert decisions[m.uid].placed_reason == "OverBudget"
    assert "for what runs until then" in decisions[m.uid].placed_message
    assert not applied(new_plan, m)
    assert not [a for a in new_plan.actions if isinstance(a, RemoveDeployment)]
    roomier = replace(m, budget_per_hour=1.5)
    assert [a.shape for a in applied(decide(observed, roomier)[0], roomier)] == [BIG_SLICE]


LIMITS = st.sampled_from([None, 0.3, 0.5, 1.0, 2.0, 4.0, 8.0])


@st.composite
def lives(draw):
    """A fleet, and its LLMDeployments over time: objectives, pools, replicas and budgets change."""
    fleet = [
        on("left", node("a", gpu=draw(st.integers(0, 3)) or 1, mig_1g_10gb=draw(st.integers(1, 5)))),
        on("right", node("b", mig_1g_20gb=draw(st.integers(1, 4)))),
        node("c", "L4", gpu=draw(st.integers(1, 3))),
    ]
    turns = []
    budgets = [draw(LIMITS) for _ in range(3)]
    for _ in range(draw(st.integers(1, 3))):
        owners = []
        for i in range(3):
            low = draw(st.integers(1, 2))
            owners.append(
                intent(
                    f"m{i}",
                    created_at=float(i),
                    priority=draw(st.integers(0, 1)),
                    min_replicas=low,
                    max_replicas=low + draw(st.integers(0, 3)),
                    tpot=draw(st.sampled_from([None, Objective(90, 5), Objective(90, 9)])),
                    pools=draw(st.sampled_from([(), ("left",), ("left", "right")])),
                    traffic=Traffic(requests_per_second=draw(st.sampled_from([None, 30.0]))),
                    budget_per_hour=budgets[i],
                )
            )
        turns.append((tuple(owners), tuple((f"uid-m{i}", draw(st.integers(1, 5))) for i in range(3))))
    return snapshot(*fleet, pools=(LEFT, RIGHT)), turns


@given(lives())
@settings(max_examples=60, deadline=None)
def test_in_every_round_budget_and_minimum_hold_and_no_device_is_assigned_twice(life):
    observed, turns = life
    cluster = Cluster(observed, turns[0][0])
    for owners, desired in turns:
        cluster.intents = owners
        for _ in range(4):
            now = replace(cluster.observed, desired=desired)
            before = {m.uid: serving(now, m) for m in owners}
            paid_before = {m.uid: paid(now, m) for m in owners}
            new_plan = plan(now, owners, NOW)
            assert new_plan == plan(now, owners[::-1], NOW)
            cluster.perform(new_plan)
            for m in owners:
                if m.budget_per_hour is not None:
                    allowed = max(m.budget_per_hour, paid_before[m.uid])  # prices change with the pools named
                    assert paid(cluster.observed, m) <= allowed + 1e-6
                assert serving(cluster.observed, m) >= min(before[m.uid], m.min_replicas)
            cluster.settle()


def paid(observed, m):
    return sum(w.replicas * price(m, w.shape, observed) for w in observed.workloads if w.owner_uid == m.uid)


def serving(observed, m):
    return sum(w.available for w in observed.workloads if w.owner_uid == m.uid)


@given(lives())
@settings(max_examples=60, deadline=None)
def test_llmdeployments_that_name_pools_get_no_more_devices_than_these_pools_have(life):
    observed, turns = life
    owners, desired = turns[0]
    new_plan = plan(replace(observed, desired=desired), owners, NOW)
    by_uid = {m.uid: m for m in owners}
    capacity = defaultdict(int)
    for n in observed.nodes:
        for resource, count in n.allocatable:
            capacity[n.sku, resource, dict(n.labels).get("side", "")] += count
    for sides in (("left",), ("left", "right")):
        used = defaultdict(int)
        for d in new_plan.decisions:
            named = by_uid[d.owner_uid].pools
            if d.shape is not None and named and set(named) <= set(sides):
                used[d.shape.sku, d.shape.resource] += d.placed
        for (sku, resource), count in used.items():
            assert count <= sum(capacity[sku, resource, side] for side in sides)


# --- faults, and the number of solves


def test_an_llmdeployment_whose_assessment_fails_stops_no_other(monkeypatch):
    bad, good = intent("bad", created_at=1.0), intent("good")
    real = assessment.node_shapes

    def judge(m, *rest):
        if m.intent.uid == bad.uid:
            raise ZeroDivisionError("division by zero")
        return real(m, *rest)

    monkeypatch.setattr(assessment, "node_shapes", judge)
    observed = snapshot(node("b", mig_1g_10gb=2), workloads=(workload(bad, SLICE),))
    new_plan, decisions = decide(observed, bad, good)

    assert decisions[bad.uid].placed_reason == "NotJudged"
    assert "ZeroDivisionError: division by zero" in decisions[bad.uid].placed_message
    assert not applied(new_plan, bad)
    assert decisions[good.uid].placed_reason == "Placed"
    status = render_status(decisions[bad.uid], bad, observed, None, None, {}, NOW)
    assert status["conditions"][0]["reason"] == "NotJudged"


def test_traffic_longer_than_the_context_is_infeasible():
    m = intent(max_model_len=64, traffic=Traffic(input_tokens=around(5000), output_tokens=around(5000)))
    _, decisions = decide(snapshot(node("b", gpu=1)), m)

    assert decisions[m.uid].placed_reason == "Infeasible"
    assert decisions[m.uid].placed_message


@pytest.fixture
def solved(monkeypatch):
    """The CP-SAT models that were solved."""
    solved_models = []
    real = stages.solve_model

    def counted(model, *rest):
        solved_models.append(model)
        return real(model, *rest)

    monkeypatch.setattr(stages, "solve_model", counted)
    assign_devices.cache_clear()
    return solved_models


def test_the_solver_is_not_called_if_every_llmdeployment_gets_its_best_option(solved):
    owners = tuple(intent(f"m{i}", created_at=float(i)) for i in range(6))
    cluster = Cluster(snapshot(node("b", mig_1g_10gb=7)), owners)
    for _ in range(3):
        cluster.perform(plan(cluster.observed, owners, NOW))
        cluster.settle()

    assert not solved


def test_a_solution_is_cached_while_the_relevant_inputs_stay_equal(solved):
    owners = (
        intent("old", created_at=1.0),
        intent("young", denied_skus=("L4",), created_at=2.0),
        intent("waits", denied_skus=("L4",), created_at=3.0),
    )
    cluster = Cluster(snapshot(node("b", mig_1g_10gb=1), node("c", "L4", gpu=1)), owners)
    plan(cluster.observed, owners, NOW)
    first = len(solved)
    for step in range(4):
        plan(cluster.observed, owners, NOW + step)
    assert first
    assert len(solved) == first

    for _ in range(3):
        cluster.perform(plan(cluster.observed, owners, NOW))
        cluster.settle()
    before = len(solved)
    rested = plan(cluster.observed, owners, NOW)
    assert len(solved) == before
    assert repr(rested) == repr(plan(cluster.observed, owners[::-1], NOW + 60))


def test_if_the_solver_fails_llmdeployments_are_assigned_in_order_and_it_is_reported(monkeypatch):
    def fails(*_):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(stages, "solve_model", fails)
    assign_devices.cache_clear()
    old, young = intent("old", created_at=1.0), intent("young", denied_skus=("L4",), created_at=2.0)
    observed = snapshot(node("b", mig_1g_10gb=1), node("c", "L4", gpu=1))
    new_plan, decisions = decide(observed, old, young)
    assign_devices.cache_clear()

    assert [a.shape for a in applied(new_plan, old)] == [SLICE]
    assert (decisions[old.uid].placed, decisions[young.uid].placed) == (1, 0)
    assert "the joint decision failed (ZeroDivisionError: division by zero)" in (
        decisions[old.uid].placed_message
    )


def test_an_llmdeployment_whose_placement_raises_stops_no_other(monkeypatch):
    bad, good = intent("bad", created_at=1.0), intent("good")
    real = round_decisions.__dict__["deployment_placement"]

    def placement(demand, *rest):
        if demand.uid == bad.uid:
            raise KeyError("x")
        return real(demand, *rest)

    monkeypatch.setitem(round_decisions.__dict__, "deployment_placement", placement)
    _, decisions = decide(snapshot(node("b", mig_1g_10gb=2)), bad, good)

    assert decisions[bad.uid].placed_reason == "NotJudged"
    assert decisions[good.uid].placed_reason == "Placed"


# --- the shape that desired replicas count


def test_a_lost_node_does_not_lower_the_desired_replicas():
    """Five of L4 were wanted and one had room; its node is lost, and nothing else has room either."""
    m = intent(uri="image:///m/8b", max_replicas=9)
    observed = snapshot(
        node("a", "L4", usable=False, gpu=1),
        node("b", "A10", usable=False, gpu=1),
        claims=claims(m, L4, "a"),
        workloads=(workload(m, L4, 1, available=0),),
        desired=((m.uid, 5),),
        desired_of=((m.uid, L4),),
    )
    _, decisions = decide(observed, m)

    assert (decisions[m.uid].shape, decisions[m.uid].placed, decisions[m.uid].desired) == (L4, 0, 5)


def test_an_llmdeployment_that_returns_to_a_shape_gets_as_many_replicas_as_before():
    """Six slices were to become two whole GPUs; then the slices' node came back."""
    m = intent(max_replicas=12)
    observed = snapshot(
        node("a", gpu=4),
        node("b", mig_1g_10gb=6),
        claims=claims(m, SLICE, "b", 6),
        workloads=(workload(m, SLICE, 6), workload(m, WHOLE, 2, available=0)),
        desired=((m.uid, 6),),
        desired_of=((m.uid, SLICE),),
    )
    new_plan, decisions = decide(observed, m)

    assert (decisions[m.uid].shape, decisions[m.uid].placed) == (SLICE, 6)
    assert [(a.shape, a.replicas) for a in applied(new_plan, m)] == [(SLICE, 6)]
