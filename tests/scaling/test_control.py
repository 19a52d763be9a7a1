import itertools
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tangram.fleet import Intent, MIGPolicy, Objective
from tangram.scaling import (
    EvidenceMemory,
    Sample,
    ScalingMemory,
    ScalingObservation,
    ScalingParams,
    SignalState,
    SupplyMemory,
    Window,
    classify,
    decide,
)
from tests.support.examples import examples

PARAMS = ScalingParams(window_s=60, scrape_interval_s=15, up_after_s=10, down_after_s=120)
INTENT = Intent(
    uid="u",
    namespace="ns",
    name="m",
    generation=1,
    created_at=0.0,
    model_uri="image:///m",
    served_name="m",
    max_model_len=None,
    max_running_requests=16,
    ttft=Objective(90, 1000),
    tpot=None,
    allowed_skus=(),
    denied_skus=(),
    mig=MIGPolicy.ALLOWED,
    min_replicas=1,
    max_replicas=10,
    paused=False,
)


def sample(
    at, targets, *, attainment=0.99, running=4.0, waiting=0.0, requests=100.0, wide=None, kv_usage=None
):
    """`wide`: requests, running and share of a window of five minutes."""
    return Sample(
        at,
        targets,
        3.0,
        waiting,
        running,
        running,
        requests,
        ttft_attainment=attainment if requests else None,
        kv_usage=kv_usage,
        wider=() if wide is None else (Window(300, *wide, is_widest=True),),
    )


class World:
    """One LLMDeployment over time: replicas start after `start_s`, samples are what the test says."""

    def __init__(self, intent=INTENT, params=PARAMS, replicas=1, start_s=30.0):
        self.intent, self.params, self.start_s = intent, params, start_s
        self.now, self.memory, self.replicas, self.ready = 1000.0, ScalingMemory(), replicas, replicas
        self.starts: list[float] = []

    def tick(self, seconds=15.0, **load):
        self.now += seconds
        self.ready += sum(1 for start in self.starts if start <= self.now)
        self.starts = [start for start in self.starts if start > self.now]
        blind = load.pop("blind", False)
        seen = None if blind else sample(self.now, self.ready, **load)
        signal = classify(seen, "", ready=self.ready, params=self.params, now=self.now)
        decision = decide(
            replace(self.memory, replicas=self.replicas),
            self.params,
            self.intent,
            ScalingObservation(self.now, self.ready, signal),
        )
        self.memory = decision.memory
        if decision.replicas > self.replicas:
            self.starts += [self.now + self.start_s] * (decision.replicas - self.replicas)
        elif decision.replicas < self.replicas:
            self.ready = min(self.ready, decision.replicas)
        self.replicas = decision.replicas
        return decision


def test_a_missed_objective_adds_a_replica_at_once():
    decision = World().tick(attainment=0.5)

    assert (decision.previous, decision.replicas, decision.reason) == (1, 2, "SLOViolated")


def test_replicas_that_are_still_starting_count():
    world = World(start_s=300)

    for _ in range(10):
        world.tick(attainment=0.5)

    assert world.replicas == 2


def test_a_step_is_judged_only_after_a_window_with_its_replicas():
    world = World(start_s=30)
    replicas = [world.tick(attainment=0.5).replicas for _ in range(9)]

    assert replicas == [2, 2, 2, 2, 2, 2, 3, 3, 3]  # up at 0 s, ready at 30 s, judged at 90 s


def test_a_queue_that_lasts_sizes_the_step():
    world = World()
    world.tick(running=16.0, waiting=32.0)
    decision = world.tick(running=16.0, waiting=32.0)

    assert (decision.previous, decision.replicas, decision.reason) == (1, 3, "QueueGrowing")


def test_a_queue_that_comes_and_goes_adds_nothing():
    world = World()
    for i in range(20):
        world.tick(running=16.0, waiting=32.0 if i % 2 else 0.0)

    assert world.replicas == 1


def test_one_step_at_most_doubles_or_adds_four():
    world = World()
    world.tick(running=16.0, waiting=3200.0)

    assert world.tick(running=16.0, waiting=3200.0).replicas == 5


def test_nothing_goes_above_the_maximum_and_that_is_told():
    world = World(intent=replace(INTENT, max_replicas=2), replicas=2)

    assert world.tick(attainment=0.1).reason == "AtMaximum"
    assert world.replicas == 2


def test_load_that_fell_takes_one_replica_per_window():
    world = World(replicas=4)
    seen = [world.tick(running=0.0, requests=0.0).replicas for _ in range(30)]

    assert seen[:8] == [4] * 8
    changes = [(i, b) for i, (a, b) in enumerate(itertools.pairwise(seen)) if a != b]
    assert [b for _, b in changes] == [3, 2, 1]
    assert all((j - i) * 15 >= PARAMS.down_after_s for (i, _), (j, _) in itertools.pairwise(changes))


def test_one_gap_in_the_evidence_starts_it_anew():
    world = World(replicas=2)
    for _ in range(7):
        world.tick(running=0.0, requests=0.0)
    world.tick(blind=True)
    seen = [world.tick(running=0.0, requests=0.0).replicas for _ in range(8)]

    assert seen == [2] * 8


def test_a_load_that_needed_two_is_not_given_back_to_one():
    world = World(start_s=0)
    world.tick(attainment=0.5, running=8.0)
    for _ in range(20):
        world.tick(attainment=0.99, running=8.0)

    assert world.replicas == 2


def test_after_a_restart_nothing_goes_down_before_a_whole_window():
    world = World(replicas=5)
    seen = [world.tick(running=0.0, requests=0.0).replicas for _ in range(8)]

    assert seen == [5] * 8


def test_a_few_requests_that_miss_prove_nothing():
    assert World().tick(attainment=0.0, requests=3.0).replicas == 1


def test_without_prometheus_the_number_is_held():
    decision = decide(ScalingMemory(3), PARAMS, INTENT, ScalingObservation(5.0, 3))

    assert (decision.replicas, decision.reason) == (3, "NoMetrics")


@pytest.mark.parametrize(("low", "high", "wanted"), [(4, 9, 4), (1, 2, 2)])
def test_new_bounds_hold_at_once_even_while_blind(low, high, wanted):
    world = World(intent=replace(INTENT, min_replicas=low, max_replicas=high), replicas=3)

    decision = world.tick(blind=True)

    assert (decision.replicas, decision.reason) == (wanted, "OutOfBounds")


def test_nothing_moves_while_paused():
    world = World(intent=replace(INTENT, paused=True, max_replicas=2), replicas=3)

    assert world.tick(attainment=0.1).replicas == 3


LOADS = st.fixed_dictionaries(
    {},
    optional={
        "blind": st.booleans(),
        "attainment": st.floats(0, 1),
        "running": st.floats(0, 200),
        "waiting": st.floats(0, 1000),
        "requests": st.sampled_from([0.0, 5.0, 100.0]),
        "kv_usage": st.floats(0, 20),
        "wide": st.tuples(st.sampled_from([None, 0.0, 7.0, 900.0]), st.floats(0, 200), st.floats(0, 1)),
        "seconds": st.sampled_from([1.0, 15.0, 90.0]),
    },
)
INTENTS = st.tuples(st.integers(1, 6), st.integers(0, 6)).map(
    lambda pair: replace(INTENT, min_replicas=pair[0], max_replicas=pair[0] + pair[1])
)


HARDLY_ANYTHING_RUNS = {"blind": False, "seconds": 15.0, "running": 2e-311, "waiting": 2.0}


@given(st.lists(LOADS, max_size=40), INTENTS, st.integers(0, 12))
@example([HARDLY_ANYTHING_RUNS] * 4, INTENT, 1)
@examples(80)
def test_bounds_hold_at_every_instant(loads, intent, replicas):
    world = World(intent=intent, replicas=replicas)
    for load in loads:
        world.tick(**load)
        assert intent.min_replicas <= world.replicas <= intent.max_replicas


@given(st.lists(LOADS, max_size=40), INTENTS)
@examples(80)
def test_nothing_goes_down_without_fresh_metrics_or_by_more_than_one(loads, intent):
    world = World(intent=intent, replicas=intent.max_replicas)
    last_down = None
    for load in loads:
        before = world.replicas
        fresh_before = world.memory.spare_since
        decision = world.tick(**load)
        if decision.replicas < before:
            assert not load.get("blind")
            assert before - decision.replicas == 1
            assert fresh_before is not None
            assert world.now - fresh_before >= PARAMS.down_after_s
            assert last_down is None or world.now - last_down >= PARAMS.down_after_s
            last_down = world.now


@given(LOADS, INTENTS, st.integers(1, 10), st.floats(0, 500))
def test_equal_inputs_give_equal_decisions(load, intent, replicas, spare):
    worlds = [World(intent=intent, replicas=replicas) for _ in range(2)]
    for world in worlds:
        world.memory = replace(world.memory, spare_since=1000.0 - spare)

    assert worlds[0].tick(**load) == worlds[1].tick(**load)


@given(st.lists(LOADS, max_size=20), LOADS)
def test_a_restart_never_takes_a_replica_away(loads, load):
    world = World(replicas=5)
    for earlier in loads:
        world.tick(**earlier)
    world.memory = ScalingMemory()
    before = world.replicas

    assert world.tick(**load).replicas >= before


@given(st.lists(LOADS, max_size=30))
def test_a_step_upwards_is_bounded(loads):
    world = World(intent=replace(INTENT, max_replicas=100))
    for load in loads:
        before = world.replicas
        assert world.tick(**load).replicas <= max(2 * before, before + 4)


@given(st.lists(LOADS.map(lambda load: {k: v for k, v in load.items() if k != "seconds"}), max_size=30))
def test_thin_and_blind_never_count_as_evidence(loads):
    world = World(replicas=4)
    for load in loads:
        world.tick(**load)
        signal = classify(
            None
            if load.get("blind")
            else sample(world.now, world.ready, **{k: v for k, v in load.items() if k != "blind"}),
            "",
            ready=world.ready,
            params=PARAMS,
            now=world.now,
        )
        if signal.state is not SignalState.FRESH:
            assert world.memory.spare_since is None


# --- spec.replicas


def set_to(count):
    return replace(INTENT, min_replicas=count, max_replicas=count, replicas=count)


@pytest.mark.parametrize("count", [0, 1, 3, 1000])
@pytest.mark.parametrize("signal", [None, "blind", "violated"])
def test_a_number_that_is_set_holds_at_once_whatever_is_measured(count, signal):
    seen = {"blind": lambda: classify(None, "down", ready=4, params=PARAMS, now=900)}
    seen["violated"] = lambda: classify(sample(900, 4, attainment=0.1), "", ready=4, params=PARAMS, now=900)
    decision = decide(
        ScalingMemory(replicas=4),
        PARAMS,
        set_to(count),
        ScalingObservation(900, 4, seen[signal]() if signal else None),
    )

    assert (decision.replicas, decision.previous, decision.reason) == (count, 4, "ReplicasSet")


def test_what_was_learned_survives_a_number_that_is_set():
    learned = ScalingMemory(
        replicas=4,
        evidence=EvidenceMemory(violated_rate=2.0, violated_load=8.0),
        supply=SupplyMemory(start_s=90.0),
    )
    memory = replace(learned, subject=decide_held(learned, INTENT).memory.subject)
    while_set = decide_held(memory, set_to(0)).memory
    after = decide_held(while_set, INTENT)

    assert (after.memory.subject, after.memory.evidence) == (memory.subject, memory.evidence)
    for name in ("start_s", "failed_orders"):
        assert getattr(after.memory.supply, name) == getattr(memory.supply, name)
    assert (after.replicas, after.reason) == (1, "OutOfBounds")  # from 0, as far as the bounds ask


def decide_held(memory, wanted):
    return decide(memory, PARAMS, wanted, ScalingObservation(900, 0))


def test_after_a_restart_a_number_that_is_set_to_none_stays_none():
    decision = decide(ScalingMemory(), PARAMS, set_to(0), ScalingObservation(0, 0))

    assert (decision.replicas, decision.previous) == (0, 0)


def test_a_number_that_is_set_counts_as_no_failed_order():
    memory, now = ScalingMemory(replicas=1, supply=SupplyMemory(ready=1, settled_ready=1)), 0.0
    for step in range(400):
        now += 15
        wanted = set_to(3 if step < 200 else 8)
        decision = decide(memory, PARAMS, wanted, ScalingObservation(now, 1))
        memory = decision.memory

    assert memory.supply.failed_orders == 0
