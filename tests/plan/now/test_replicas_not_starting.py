"""Replicas of a shape that do not become ready: another shape is used, and what serves stays."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.api import back_off_block, back_offs_from_status
from tangram.fleet import ApplyDeployment, BackOff, FleetSnapshot, RemoveDeployment, StartOutcome
from tangram.plan import plan, render_status
from tangram.plan.fleet_input.documents.snapshot_file import read_snapshot, snapshot_document
from tangram.scaling import ScalingParams, SupplyMemory
from tangram.scaling import ordered_replicas as supply
from tests.support.fleet import NOW, Cluster, claims, intent, node, shape, snapshot, workload

CHEAP, DEAR, DEARER = shape("1g.10gb"), shape("1g.20gb"), shape("3g.40gb")
PARAMS = ScalingParams(window_s=60, scrape_interval_s=15, up_after_s=10, down_after_s=120)
NODES = (node("a", mig_1g_10gb=7), node("b", mig_1g_20gb=4), node("c", mig_3g_40gb=2))
CRASH = "pod m-0: waits for its container to stay up: CrashLoopBackOff"


class World:
    """A fleet on which replicas of some shapes never become ready, under the law's view of starts."""

    def __init__(self, m, *broken, nodes=NODES, round_s=30.0):
        self.m, self.broken, self.now = m, set(broken), NOW
        self.cluster = Cluster(snapshot(*nodes), (m,))
        self.starts, self.back_offs, self.tried, self.decision = (), (), [], None
        self.round_s = round_s

    def observed(self) -> FleetSnapshot:
        seen = self.cluster.observed
        workloads = tuple(
            replace(w, ready=0, available=0, message=CRASH)
            if w.shape in self.broken
            else replace(w, message="")
            for w in seen.workloads
        )
        self.starts = supply.observe_shapes(self.starts, workloads, SupplyMemory(), PARAMS, self.now)
        return replace(
            seen,
            workloads=workloads,
            back_offs=tuple(sorted(self.back_offs)),
            start_outcomes=supply.start_outcomes(self.m.uid, self.starts),
        )

    def round(self):
        seen = self.observed()
        new_plan = plan(seen, (self.m,), self.now)
        assert new_plan.faults == ()
        self.decision = new_plan.decisions[0]
        self.back_offs = self.decision.back_offs
        self._nothing_that_serves_is_drained(seen, new_plan)
        self.cluster.observed = replace(seen, back_offs=(), start_outcomes=())
        self.cluster.perform(new_plan)
        self.cluster.settle()
        self.tried += [w.shape for w in self.cluster.observed.workloads if w.shape not in self.tried]
        self.now += self.round_s

    def run(self, minutes):
        for _ in range(round(2 * minutes)):
            self.round()
        return self.decision

    def _nothing_that_serves_is_drained(self, seen, new_plan):
        ready = {w.uid: w.ready for w in seen.workloads}
        removed = {a.uid for a in new_plan.actions if isinstance(a, RemoveDeployment)}
        serving = sum(ready.values())
        assert serving - sum(ready[uid] for uid in removed) >= min(serving, self.m.min_replicas)

    @property
    def running(self):
        return {w.shape: w.replicas for w in self.observed().workloads if w.replicas}


def serving(m, running):
    held = claims(m, running.shape, "a", running.replicas)
    return snapshot(*NODES, workloads=(running,), claims=held, desired=((m.uid, running.replicas),))


def test_before_the_deadline_nothing_moves():
    world = World(intent(min_replicas=2), CHEAP)

    decision = world.run(9)

    assert (decision.shape, world.running, decision.back_offs) == (CHEAP, {CHEAP: 2}, ())


def test_after_the_deadline_another_shape_is_used_and_the_late_replicas_end_once_it_serves():
    world = World(intent(min_replicas=2), CHEAP)
    world.run(10.5)
    assert world.decision.shape == CHEAP
    world.round()  # it is late: the first plan of another shape
    assert world.decision.shape == DEAR
    assert world.running == {CHEAP: 2, DEAR: 2}  # make before break

    decision = world.run(2)

    assert world.running == {DEAR: 2}
    assert (decision.desired, decision.placed) == (2, 2)
    (back_off,) = decision.back_offs
    assert (back_off.shape, back_off.reason, back_off.message) == (CHEAP, "ReplicasNotStarting", CRASH)
    assert back_off.until - back_off.since == 600
    assert (
        "no replica on H100-80GB-SXM:1g.10gb became ready in time (attempt 1, since"
        in decision.placed_message
    )
    assert CRASH in decision.placed_message
    assert "another shape is used, until 2026-" in decision.placed_message
    (cheap,) = (a for a in decision.alternatives if a.shape == CHEAP)
    assert cheap.rejected_because == "ReplicasNotStarting"


def test_after_the_back_off_nothing_moves_back_to_save_money():
    world = World(intent(min_replicas=2), CHEAP)
    world.run(12)
    world.broken.clear()

    decision = world.run(120)

    assert (decision.shape, decision.back_offs, world.running) == (DEAR, (), {DEAR: 2})
    assert "became ready" not in decision.placed_message


def test_a_replica_that_becomes_ready_at_last_ends_the_back_off_and_the_move():
    world = World(intent(min_replicas=2), CHEAP, DEAR)
    world.run(12)
    assert world.running == {CHEAP: 2, DEAR: 2}
    world.broken.remove(CHEAP)

    decision = world.run(3)

    assert (decision.shape, decision.back_offs, world.running) == (CHEAP, (), {CHEAP: 2})


def test_a_checkpoint_that_crashes_alike_everywhere_visits_two_shapes_and_stays_on_the_first():
    world = World(intent(min_replicas=2), CHEAP, DEAR, DEARER)

    decision = world.run(300)

    assert world.tried == [CHEAP, DEAR]
    assert (decision.shape, world.running) == (CHEAP, {CHEAP: 2})
    text = "no replica became ready on H100-80GB-SXM:1g.10gb nor on H100-80GB-SXM:1g.20gb: the likely cause"
    assert text in decision.placed_message


def test_available_names_the_cause_when_two_shapes_failed():
    m = intent(min_replicas=2)
    world = World(m, CHEAP, DEAR, DEARER)
    world.run(30)

    status = render_status(world.decision, m, world.observed(), None, None, {}, world.now)

    available = next(c for c in status["conditions"] if c["type"] == "Available")
    assert available["reason"] == "ReplicasNotStarting"
    assert "the likely cause is the checkpoint or the engine image" in available["message"]
    assert CRASH in available["message"]


def test_a_new_spec_is_tried_from_the_start():
    m = intent(min_replicas=2)
    world = World(m, CHEAP, DEAR, DEARER)
    world.run(30)
    changed = replace(m, generation=2, max_model_len=2048)
    world.m, world.cluster.intents = changed, (changed,)
    world.broken = {CHEAP}

    decision = world.run(20)

    assert (decision.shape, world.running) == (DEAR, {DEAR: 2})


def test_the_only_shape_is_kept():
    world = World(intent(min_replicas=2), CHEAP, nodes=NODES[:1])

    decision = world.run(30)

    assert world.running == {CHEAP: 2}
    assert "no other shape that may be used has free devices" in decision.placed_message


def test_another_shape_is_used_as_soon_as_it_has_free_devices():
    world = World(intent(min_replicas=2), CHEAP, nodes=NODES[:1])
    world.run(30)
    world.cluster.observed = replace(world.cluster.observed, nodes=NODES[:2])

    world.run(2)

    assert world.running == {DEAR: 2}


def test_late_replicas_end_first_where_the_budget_does_not_allow_both_shapes():
    m = intent(min_replicas=2)
    price = World(m).run(1).price_per_hour
    dear_price = World(m, nodes=NODES[1:2]).run(1).price_per_hour
    world = World(replace(m, budget_per_hour=dear_price + price / 2), CHEAP)

    world.run(13)

    assert world.running == {DEAR: 2}


def test_replicas_that_serve_keep_their_shape_while_another_one_of_them_never_starts():
    m = intent(min_replicas=1, max_replicas=8)
    running = workload(m, CHEAP, 5, available=3, message=CRASH)
    late = StartOutcome(m.uid, CHEAP, 1, is_late=True)  # as flapping replicas give
    seen = snapshot(
        *NODES,
        workloads=(running,),
        claims=claims(m, CHEAP, "a", 5),
        desired=((m.uid, 5),),
        start_outcomes=(late,),
    )
    decision = plan(seen, (m,), NOW).decisions[0]

    assert (decision.shape, decision.back_offs) == (CHEAP, ())


def test_a_back_off_that_is_recorded_drains_no_replica_that_is_ready_after_all():
    m = intent(min_replicas=1, max_replicas=8)
    back_off = BackOff(m.uid, 1, CHEAP, "ReplicasNotStarting", CRASH, 0, NOW - 100, NOW + 500, 1)
    running = workload(m, CHEAP, 5, available=1)
    seen = snapshot(
        *NODES,
        workloads=(running,),
        claims=claims(m, CHEAP, "a", 5),
        desired=((m.uid, 5),),
        back_offs=(back_off,),
    )
    new_plan = plan(seen, (m,), NOW)

    applied = {a.shape: a.replicas for a in new_plan.actions if isinstance(a, ApplyDeployment)}
    assert applied == {CHEAP: 5}


def test_each_failure_doubles_the_back_off_up_to_an_hour():
    world = World(intent(min_replicas=2), CHEAP, nodes=NODES[:1])
    waits = []
    for _ in range(600):
        world.round()
        for back_off in world.back_offs:
            if back_off.attempts > len(waits):
                waits.append(back_off.until - world.now + 30)

    assert waits == [600, 1200, 2400, 3600, 3600, 3600, 3600]


def test_the_status_keeps_back_offs_for_the_next_process():
    m = intent(min_replicas=2)
    world = World(m, CHEAP, DEAR, DEARER)
    world.run(30)
    status = render_status(world.decision, m, world.observed(), None, None, {}, world.now)

    assert back_offs_from_status({"metadata": {"uid": m.uid}, "status": status}) == world.back_offs
    world.starts = ()  # another leader
    assert world.run(300).shape == CHEAP
    assert world.tried == [CHEAP, DEAR]


@pytest.mark.parametrize(
    "changes",
    [
        {"until": NOW + 10**7},
        {"generation": 9},
        {"shape": shape("7g.80gb")},
        {"shape": shape(sku="nonsense"), "started_elsewhere": True},
        {"since": NOW + 10**6, "until": 0.0},
        {"reason": "nonsense"},
        {"owner_uid": "another"},
    ],
)
def test_recorded_nonsense_keeps_nothing_from_being_placed(changes):
    m = intent(min_replicas=2)
    back_off = BackOff(m.uid, 1, DEAR, "ReplicasNotStarting", "x" * 160, 0, NOW - 100, NOW + 500, 1)
    nonsense = tuple(replace(back_off, **{"shape": s} | changes) for s in (DEAR, DEARER))
    decision = plan(snapshot(*NODES, back_offs=nonsense), (m,), NOW).decisions[0]

    assert decision.placed == 2
    assert decision.shape == (DEAR if "since" in changes else CHEAP)  # two failures: the first one is used


def test_a_clock_that_is_set_back_ends_back_offs_instead_of_lengthening_them():
    world = World(intent(min_replicas=2), CHEAP)
    world.run(12)
    world.now -= 10 * 86_400

    decision = world.run(2)

    assert decision.back_offs == ()
    assert world.running == {DEAR: 2}


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_at_most_two_shapes_are_tried_while_no_replica_is_ready(data):
    """However pods flap and leaders change, and whichever shapes the fleet offers."""
    profiles = data.draw(st.permutations(["gpu", "mig_1g_10gb", "mig_1g_20gb", "mig_3g_40gb", "mig_7g_80gb"]))
    skus = data.draw(st.lists(st.sampled_from(["L4", "A10"]), max_size=2, unique=True))
    nodes = [node(f"n{i}", **{profile: 4}) for i, profile in enumerate(profiles)]
    nodes += [node(f"x{i}", sku, gpu=4) for i, sku in enumerate(skus)]
    m = intent(min_replicas=data.draw(st.integers(1, 3)), max_replicas=4)
    rounds = st.integers(0, 79)
    world = World(m, nodes=nodes, round_s=120.0)
    leaders, flaps = data.draw(st.sets(rounds, max_size=3)), data.draw(st.sets(rounds, max_size=20))
    for number in range(80):
        is_flap = number in flaps and number - 1 not in flaps
        world.broken = set() if is_flap else {w.shape for w in world.cluster.observed.workloads}
        world.starts = () if number in leaders else world.starts
        world.round()

    assert 1 <= len(world.tried) <= 2
    assert world.running
    assert len(world.back_offs) <= 2


def late(m, at, **changes):
    return StartOutcome(m.uid, at, **{"generation": 1, "is_late": True, **changes})


def failed(m, at, **changes):
    failure = BackOff(m.uid, 1, at, "ReplicasNotStarting", CRASH, 0, NOW - 900, NOW + 500, 2)
    return replace(failure, **changes)


def two_failures(m, **changes):
    """The replicas of one shape failed a while ago, those of another one do now."""
    running = workload(m, DEAR, 2, available=0, message=CRASH)
    seen = snapshot(
        *NODES,
        workloads=(running,),
        claims=claims(m, DEAR, "b", 2),
        desired=((m.uid, 2),),
        start_outcomes=(late(m, DEAR),),
        back_offs=(failed(m, CHEAP, **changes),),
    )
    return plan(seen, (m,), NOW).decisions[0]


def test_a_third_shape_is_tried_if_replicas_became_ready_in_between():
    m = intent(min_replicas=2)

    assert two_failures(m).shape == CHEAP
    assert two_failures(m, started_elsewhere=True).shape == DEARER


@pytest.mark.parametrize(("generation", "is_known"), [(1, True), (0, False)])
def test_a_back_off_knows_whether_replicas_of_this_revision_became_ready_elsewhere(generation, is_known):
    m = intent(min_replicas=2)
    ready = late(m, DEAR, generation=generation, is_late=False)
    seen = replace(serving(m, workload(m, DEAR, 2)), start_outcomes=(ready,), back_offs=(failed(m, CHEAP),))

    (back_off,) = plan(seen, (m,), NOW).decisions[0].back_offs

    assert back_off == failed(m, CHEAP, started_elsewhere=is_known)
    assert back_offs_from_status(
        {"metadata": {"uid": m.uid}, "status": {"backOffs": [back_off_block(back_off)]}}
    ) == (back_off,)


def test_a_move_whose_new_replicas_never_start_goes_back_to_the_shape_that_serves():
    m = intent(min_replicas=2)
    old, new = workload(m, DEAR, 2), workload(m, CHEAP, 2, available=0, message=CRASH)
    seen = snapshot(
        *NODES,
        workloads=(old, new),
        claims=(*claims(m, DEAR, "b", 2), *claims(m, CHEAP, "a", 2)),
        desired=((m.uid, 2),),
        start_outcomes=(late(m, CHEAP), late(m, DEAR, is_late=False)),
    )
    new_plan = plan(seen, (m,), NOW)

    assert new_plan.decisions[0].shape == DEAR
    assert [a.uid for a in new_plan.actions if isinstance(a, RemoveDeployment)] == [new.uid]


def test_failed_starts_refuse_no_pods_of_the_namespace():
    m, other = intent(min_replicas=2), intent("other", min_replicas=3)
    seen = replace(serving(m, workload(m, DEAR, 2)), back_offs=(failed(m, CHEAP),))

    placed = {d.owner_uid: d.placed for d in plan(seen, (m, other), NOW).decisions}

    assert placed == {m.uid: 2, other.uid: 3}


def test_a_snapshot_file_gives_the_same_plan():
    m = intent(min_replicas=2)
    world = World(m, CHEAP)
    world.run(11)
    seen = world.observed()
    assert seen.start_outcomes
    assert seen.back_offs

    document = json.loads(json.dumps(snapshot_document(seen, (m,))))
    read, intents = read_snapshot(document, "file")

    assert plan(read, intents, world.now) == plan(seen, (m,), world.now)
    assert plan(read, intents, world.now).decisions[0].shape == DEAR
