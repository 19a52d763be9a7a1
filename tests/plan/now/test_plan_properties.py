"""Invariants of every fleet, every spec and every state between two steps."""

from collections import defaultdict
from dataclasses import replace
from functools import cache, lru_cache

from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.fleet import (
    QUANTISED,
    ApplyDeployment,
    Claim,
    EvaluationKey,
    EvaluationReport,
    MIGPolicy,
    Objective,
    Pool,
    RemoveDeployment,
    Shape,
    StartEvaluation,
    Traffic,
)
from tangram.plan import plan
from tests.support.fleet import CHECKPOINTS, NOW, Cluster, capacity, intent, node, snapshot, workload

SHAPES = [
    ("H100-80GB-SXM", "gpu"),
    ("H100-80GB-SXM", "1g.10gb"),
    ("H100-80GB-SXM", "1g.20gb"),
    ("H100-80GB-SXM", "3g.40gb"),
    ("A10", "gpu"),
    ("L4", "gpu"),
]


@lru_cache(maxsize=None, typed=True)
def any_of(*values):
    """One of them. A strategy is made once: to make and validate it takes longer than to draw from it."""
    return st.sampled_from(values)


@cache
def some_of(*values):
    return st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True)


@cache
def up_to_or(most):
    return st.integers(0, most) | st.just(most)


MOSTLY = st.booleans() | st.just(True)
OBJECTIVES = st.none() | st.sampled_from([3, 10, 60]).map(lambda ms: Objective(90, ms))
TWO_SHAPES = st.lists(st.sampled_from(SHAPES), max_size=2, unique=True)


@st.composite
def nodes(draw):
    fleet_nodes = []
    for i in range(draw(st.integers(0, 4))):
        sku = draw(any_of("H100-80GB-SXM", "A10", "L4"))
        profiles = [profile for s, profile in SHAPES if s == sku]
        chosen = draw(some_of(*profiles))
        offer = {
            "gpu" if p == "gpu" else "mig_" + p.replace(".", "_"): draw(st.integers(1, 4)) for p in chosen
        }
        side = draw(any_of((), (("side", "left"),), (("side", "right"),)))
        fleet_nodes.append(replace(node(f"n{i}", sku, usable=draw(MOSTLY), **offer), labels=side))
    return fleet_nodes


POOLS = (Pool("left", (("side", "left"),), 4.0), Pool("right", (("side", "right"),)))


@st.composite
def intents(draw, index):
    low = draw(st.integers(1, 3))
    return intent(
        f"m{index}",
        draw(any_of("image:///m/1b", "image:///m/8b", "image:///m/70b", "image:///m/unknown")),
        created_at=NOW - draw(st.integers(0, 2)),
        served_name=draw(any_of(f"m{index}", "shared")),
        min_replicas=low,
        max_replicas=low + draw(st.integers(0, 3)),
        tpot=draw(OBJECTIVES),
        mig=draw(any_of(*MIGPolicy)),
        denied_skus=draw(any_of((), ("L4",), ("H100-80GB-SXM",))),
        priority=draw(any_of(0, 0, 0, 5)),
        pools=draw(any_of((), (), (), ("left",), ("left", "right"), ("nowhere",))),
        traffic=Traffic(requests_per_second=draw(any_of(None, None, 0.5, 40.0))),
        budget_per_hour=draw(any_of(None, None, 0.5, 3.0, 8.0)),
        paused=draw(any_of(False, False, False, True)),
        precision=draw(any_of("AsStored", "AsStored", "Any", "int4", "fp8")),
    )


@st.composite
def reports(draw):
    """Reports about the checkpoints, on some of the GPU models: within tolerance, or not."""
    by_key = {}
    for uri, facts in CHECKPOINTS.items():
        for sku in ("H100-80GB-SXM", "A10", "L4"):
            increase = draw(any_of(None, None, 0.01, 0.5))
            if increase is not None:
                key = EvaluationKey("ns", uri, facts.digest, sku, draw(any_of(*QUANTISED)))
                by_key[key] = EvaluationReport(4000, 6.0, 6 * (1 + increase), increase, 0.97, 0.02, 0.3)
    return tuple(sorted(by_key.items(), key=lambda item: item[0]))


@st.composite
def worlds(draw):
    """Any state: Deployments half rolled out, foreign pods, lost nodes, desired replicas out of bounds."""
    all_intents = tuple(draw(intents(i)) for i in range(draw(st.integers(0, 4))))
    fleet = draw(nodes())
    owners = [i for i in all_intents if draw(st.booleans())]
    running = [
        workload(
            owner,
            Shape(sku, profile, 1, draw(any_of("bf16", "bf16", *QUANTISED))),
            draw(st.integers(0, 3)),
        )
        for owner in owners
        for sku, profile in draw(TWO_SHAPES)
    ]
    free = {(n.name, resource): count for n in fleet for resource, count in n.allocatable}
    held = []
    for name, resource in sorted(free):
        strangers = draw(st.integers(0, free[(name, resource)]))
        held += [Claim(name, resource, 1, None)] * strangers
        free[(name, resource)] -= strangers
    done = []
    for w in running:
        bound = 0
        for n in fleet:
            key = (n.name, w.shape.resource)
            while (
                n.sku == w.shape.sku and bound < w.replicas and free.get(key, 0) > 0 and draw(st.booleans())
            ):
                free[key] -= 1
                bound += 1
                held.append(Claim(n.name, w.shape.resource, 1, w.owner_uid))
        available = draw(st.integers(0, bound))
        updated = draw(up_to_or(w.replicas))
        done.append(
            replace(w, ready=available, available=available, updated=updated, in_place=draw(st.booleans()))
        )
    desired = tuple((i.uid, draw(st.integers(0, 9))) for i in all_intents if draw(st.booleans()))
    observed = snapshot(
        *fleet,
        claims=tuple(held),
        workloads=tuple(done),
        desired=desired,
        reports=draw(reports()),
        pools=draw(any_of((), POOLS)),
    )
    return observed, all_intents


def applied(new_plan):
    return [action for action in new_plan.actions if isinstance(action, ApplyDeployment)]


@given(worlds())
@settings(max_examples=300, deadline=None)
def test_new_replicas_never_exceed_the_devices_of_the_fleet(world):
    observed, owners = world
    new_plan = plan(observed, owners, NOW)
    room = capacity(observed)
    before = {(w.owner_uid, w.shape): w.replicas for w in observed.workloads}
    placed = defaultdict(int)
    for decision in new_plan.decisions:
        if decision.shape is not None:
            placed[(decision.shape.sku, decision.shape.resource)] += decision.placed
    assert all(count <= room[pool] for pool, count in placed.items())
    # Pods of ours that run elsewhere in a pool, beyond what their owner is given, take room too.
    given_to = {d.owner_uid: (d.shape, d.placed) for d in new_plan.decisions}
    growing = {
        (a.shape.sku, a.shape.resource)
        for a in applied(new_plan)
        if a.replicas > before.get((a.owner_uid, a.shape), 0)
    }
    usable = {n.name: n.sku for n in observed.nodes if n.usable}
    for pool in growing:
        held = defaultdict(int)
        for claim in observed.claims:
            if (usable.get(claim.node), claim.resource) == pool and claim.owner_uid is not None:
                held[claim.owner_uid] += claim.count
        for uid, (shape, count) in given_to.items():
            if shape is not None and (shape.sku, shape.resource) == pool:
                held[uid] = max(held[uid], count)
        assert sum(held.values()) <= room[pool]


@given(worlds())
@settings(max_examples=200, deadline=None)
def test_bounds_hold_and_shortage_never_shrinks_a_deployment(world):
    observed, owners = world
    by_uid = {i.uid: i for i in owners}
    before = {(w.owner_uid, w.shape): w.replicas for w in observed.workloads}
    new_plan = plan(observed, owners, NOW)
    for decision in new_plan.decisions:
        owner = by_uid[decision.owner_uid]
        assert owner.min_replicas <= decision.desired <= owner.max_replicas
        assert 0 <= decision.placed <= decision.desired
    desired = {d.owner_uid: d.desired for d in new_plan.decisions}
    for action in applied(new_plan):
        owner = by_uid[action.owner_uid]
        assert action.replicas <= owner.max_replicas
        # A budget that was lowered does shrink it, down to the minimum.
        lower_bound = desired[owner.uid] if owner.budget_per_hour is None else owner.min_replicas
        assert action.replicas >= min(lower_bound, before.get((owner.uid, action.shape), 0))


@given(worlds(), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_a_plan_does_not_depend_on_the_order_of_its_inputs(world, random):
    observed, owners = world

    def shuffled(values):
        values = list(values)
        random.shuffle(values)
        return tuple(values)

    other = replace(
        observed,
        nodes=shuffled(observed.nodes),
        claims=shuffled(observed.claims),
        workloads=shuffled(observed.workloads),
        facts=shuffled(observed.facts),
        reports=shuffled(observed.reports),
        desired=shuffled(observed.desired),
    )

    assert plan(other, shuffled(owners), NOW) == plan(observed, owners, NOW)


@given(worlds())
@settings(max_examples=300, deadline=None)
def test_no_available_replica_is_stopped_below_the_minimum(world):
    observed, owners = world
    new_plan = plan(observed, owners, NOW)
    gone = {action.uid for action in new_plan.actions if isinstance(action, RemoveDeployment)}
    shrunk = {(a.owner_uid, a.shape): a.replicas for a in applied(new_plan)}
    for owner in owners:
        own = [w for w in observed.workloads if w.owner_uid == owner.uid]
        serving = sum(w.available for w in own)
        left = sum(
            min(w.available, shrunk.get((owner.uid, w.shape), w.replicas)) for w in own if w.uid not in gone
        )
        assert left >= min(serving, owner.min_replicas)
        if any(w.uid in gone and w.available > 0 for w in own):
            assert any(w.uid not in gone and w.available > 0 for w in own)


@given(worlds())
@settings(max_examples=300, deadline=None)
def test_a_rollout_keeps_the_minimum_and_is_in_place_only_while_it_runs(world):
    observed, owners = world
    rolling = {(w.owner_uid, w.shape) for w in observed.workloads if w.total > w.updated}
    minimum = {i.uid: i.min_replicas for i in owners}
    for action in applied(plan(observed, owners, NOW)):
        if action.max_unavailable:
            assert action.replicas - action.max_unavailable >= minimum[action.owner_uid]
            assert (action.owner_uid, action.shape) in rolling


@given(worlds())
@settings(max_examples=200, deadline=None)
def test_only_existing_own_deployments_are_removed(world):
    observed, owners = world
    new_plan = plan(observed, owners, NOW)
    workloads = {(w.uid, w.name, w.namespace, w.owner_uid) for w in observed.workloads}
    active = {i.uid for i in owners if not i.paused}

    for action in new_plan.actions:
        assert action.owner_uid in active
        if isinstance(action, RemoveDeployment):
            assert (action.uid, action.name, action.namespace, action.owner_uid) in workloads


@given(worlds())
@settings(max_examples=200, deadline=None)
def test_an_llmdeployment_that_is_not_fully_placed_has_a_reason(world):
    observed, owners = world
    for decision in plan(observed, owners, NOW).decisions:
        if decision.placed_reason == "Placed":
            assert decision.placed == decision.desired
            assert decision.shape is not None
        else:
            assert decision.placed_message
            assert decision.accepted_message
            assert decision.model_message
        if decision.placed_reason in ("Infeasible", "SLOUnreachable"):
            assert decision.alternatives
        assert all(lost.message and lost.rejected_because for lost in decision.alternatives)
        assert len(decision.alternatives) <= 5


@given(worlds(), st.data())
@settings(max_examples=100, deadline=None)
def test_a_later_llmdeployment_takes_no_replica_from_earlier_ones(world, data):
    """It may send another newcomer to another shape, so that both fit; it leaves nobody with less, and moves
    nothing that runs.
    """
    observed, owners = world
    last = replace(data.draw(intents(9)), served_name="late", created_at=NOW + 10, paused=False, priority=-9)
    before = {d.owner_uid: d for d in plan(observed, owners, NOW).decisions}
    after = {d.owner_uid: d for d in plan(observed, (*owners, last), NOW).decisions}

    runs = {w.owner_uid for w in observed.workloads}
    for uid, decision in before.items():
        served, still = share(decision), share(after[uid])
        assert still >= served - 1e-9
        if uid in runs and decision.shape in {w.shape for w in observed.workloads if w.owner_uid == uid}:
            assert after[uid].shape == decision.shape


def share(decision):
    return decision.placed / decision.desired if decision.desired else 1.0


@given(worlds())
@settings(max_examples=150, deadline=None)
def test_plans_that_are_carried_out_become_stable(world):
    observed, owners = world
    cluster = Cluster(observed, owners)
    plans = []
    for _ in range(8):
        plans.append(plan(cluster.observed, owners, NOW))
        cluster.perform(plans[-1])
        cluster.settle()

    assert plans[-1] == plans[-2]
    assert not any(isinstance(action, RemoveDeployment) for action in plans[-1].actions)


@given(worlds())
@settings(max_examples=100, deadline=None)
def test_plans_never_overcommit_an_empty_fleet(world):
    observed, owners = world
    cluster = Cluster(replace(observed, workloads=(), claims=()), owners)
    for _ in range(4):
        cluster.perform(plan(cluster.observed, owners, NOW))
        used = defaultdict(int)
        for w in cluster.observed.workloads:
            used[(w.shape.sku, w.shape.resource)] += w.replicas
        room = capacity(cluster.observed)
        assert all(count <= room[pool] for pool, count in used.items())
        cluster.settle()


@given(worlds())
@settings(max_examples=100, deadline=None)
def test_evaluate_jobs_use_only_free_devices_and_only_for_precision_any(world):
    observed, owners = world
    new_plan = plan(observed, owners, NOW)
    starts = [action for action in new_plan.actions if isinstance(action, StartEvaluation)]
    assert len({action.key for action in starts}) == len(starts)
    assert len({action.owner_uid for action in starts}) == len(starts)
    asks = {i.uid for i in owners if i.precision == "Any" and not i.paused}
    assert {action.owner_uid for action in starts} <= asks
    assert not {action.key for action in starts} & dict(observed.reports).keys()

    devices = defaultdict(int)
    for action in starts:
        devices[(action.shape.sku, action.shape.resource)] += 1
    for decision in new_plan.decisions:
        if decision.shape is not None:
            devices[(decision.shape.sku, decision.shape.resource)] += decision.placed
    room = capacity(observed)
    assert all(count <= room[pool] for pool, count in devices.items())
    short = {
        (d.shape.sku, d.shape.resource)
        for d in new_plan.decisions
        if d.shape is not None and d.placed_reason == "InsufficientCapacity"
    }
    assert not short & {(action.shape.sku, action.shape.resource) for action in starts}


@given(worlds())
@settings(max_examples=100, deadline=None)
def test_a_quantised_format_is_chosen_only_by_name_or_with_a_report(world):
    observed, owners = world
    by_uid, reports_by_key = {i.uid: i for i in owners}, dict(observed.reports)
    for action in applied(plan(observed, owners, NOW)):
        owner, form = by_uid[action.owner_uid], action.shape.precision
        if form in QUANTISED and owner.precision != form:
            key = EvaluationKey(
                "ns", owner.model_uri, CHECKPOINTS[owner.model_uri].digest, action.shape.sku, form
            )
            assert owner.precision == "Any"
            assert not reports_by_key[key].misses(owner.tolerance)


@given(worlds())
@settings(max_examples=150, deadline=None)
def test_in_a_stable_fleet_no_idle_device_could_hold_a_waiting_replica(world):
    """Of the shape that it runs on, or of any that may be used where it runs on none."""
    observed, owners = world
    cluster = Cluster(replace(observed, pools=()), tuple(replace(i, pools=()) for i in owners))
    for _ in range(8):
        new_plan = plan(cluster.observed, cluster.intents, NOW)
        cluster.perform(new_plan)
        cluster.settle()

    idle = dict(capacity(cluster.observed))
    skus = {n.name: n.sku for n in cluster.observed.nodes if n.usable}
    for claim in cluster.observed.claims:
        if claim.owner_uid is not None:
            idle[skus[claim.node], claim.resource] -= claim.count
    running = {w.owner_uid for w in cluster.observed.workloads if w.replicas}
    for decision in new_plan.decisions:
        if decision.placed_reason == "InsufficientCapacity" and decision.shape is not None:
            shapes = {decision.shape}
            if decision.owner_uid not in running:
                lost = decision.alternatives
                shapes |= {a.shape for a in lost if a.rejected_because == "NotEnoughGPUs"}
            assert [s for s in shapes if idle.get((s.sku, s.resource), 0) > 0] == []
