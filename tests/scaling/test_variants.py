"""Replicas of two shapes behind one Service: each gets an equal part of the requests."""

from dataclasses import replace
from itertools import accumulate
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.capacity.load.simulate import simulate
from tangram.capacity.load.traffic import open_traffic
from tangram.fleet import Decision, Objective, Traffic
from tangram.fleet.lengths import around
from tangram.scaling.law import LawState, after_plan, observation_of
from tangram.scaling.outlook.replica_capacity import CapacityCorrection, ReplicaCapacity
from tangram.scaling.sample import Window
from tangram.shell.measure.predicted_capacities import CapacityInputs, PredictedCapacities
from tests.scaling.test_law import CHAT, LAW, capacity, observation, sample
from tests.support.fleet import FACTS_8B, intent, shape, workload

OLD, NEW = shape(), shape(sku="A100-80GB-SXM")
COUNTED = LawState(shape=OLD)


def scaled(factor):
    """Return the capacity of a shape on which a replica carries `factor` times as much."""
    return lambda prompt, answer: capacity(prompt, answer).corrected(CapacityCorrection(factor))


def seen(reading, *others, **changes):
    """Return an observation in which replicas of other shapes are ready, too."""
    shapes = frozenset({OLD, NEW}) if others else frozenset({OLD})
    return observation(reading, **{"shapes": shapes, "beside": others, **changes})


def decided(*others, state=COUNTED, reading=None, **changes):
    return LAW.step(state, seen(reading or sample(630.0), *others, **changes))[1]


CAPACITIES_ON = {OLD: capacity, NEW: scaled(0.5)}
STARTS_ON = {OLD: 60.0, NEW: 90.0}


def of_workloads(*workloads, state=COUNTED, recorded=None):
    return observation_of(
        state,
        CHAT,
        workloads,
        None,
        at=630.0,
        recorded=recorded,
        capacity_on=CAPACITIES_ON.get,
        start_s_on=STARTS_ON.get,
    )


def test_an_observation_has_the_capacity_of_the_counted_shape_and_of_others_that_serve():
    seen = of_workloads(workload(CHAT, OLD, 4, available=3), workload(CHAT, NEW, 2, available=1))

    assert (seen.ready, seen.existing, seen.current) == (4, 6, 4)
    assert seen.shapes == {OLD, NEW}
    assert seen.capacity_of is capacity
    assert seen.beside == (CAPACITIES_ON[NEW],)
    assert seen.start_s == 90.0
    assert len(seen.workloads) == 2


def test_replicas_of_another_shape_that_are_not_ready_are_not_beside_the_counted_ones():
    seen = of_workloads(workload(CHAT, OLD, 4, available=4), workload(CHAT, NEW, 2, available=0), recorded=5)

    assert (seen.beside, seen.current, seen.start_s) == ((), 5, 90.0)


def test_a_shape_without_replicas_is_none_that_replicas_have():
    seen = of_workloads(workload(CHAT, OLD, 4, available=4), workload(CHAT, NEW, 0, available=0))

    assert (seen.shapes, seen.start_s) == ({OLD}, 60.0)


def test_the_capacity_is_unknown_while_the_counted_shape_has_no_replicas():
    seen = of_workloads(workload(CHAT, NEW, 2, available=2))

    assert (seen.capacity_of, seen.beside) == (None, (CAPACITIES_ON[NEW],))


def test_beside_weaker_replicas_each_one_counts_as_the_weakest():
    alone, mixed = decided(), decided(scaled(0.5))

    # 10 requests/s of 700 + 150 tokens: of rounded lengths a replica carries 4.9, one of the other shape 2.4.
    assert alone.need.replica_rate == pytest.approx(4.86, abs=0.01)
    assert mixed.need.replica_rate == pytest.approx(4.86 / 2, abs=0.01)
    assert 2 * alone.need.replicas - 1 <= mixed.need.replicas <= 2 * alone.need.replicas + 1


def test_beside_stronger_replicas_the_counted_ones_are_the_weakest():
    assert decided(scaled(2.0)).need == decided().need


@pytest.mark.parametrize("factor", [0.4, 1.0, 2.5])
def test_the_load_that_replicas_are_ordered_for_is_that_of_any_shape(factor):
    rates = [decided(*beside).provisioned.requests_per_second for beside in ((), (scaled(factor),))]

    assert max(rates) <= 1.1 * min(rates) + 1e-9


def test_growth_does_not_wait_for_the_end_of_a_move():
    state, before = LAW.step(COUNTED, seen(sample(630.0), scaled(2.0)))
    _, after = LAW.step(state, seen(sample(645.0, 1800.0), scaled(2.0)))

    assert (after.reason, after.previous) == ("LoadForecast", before.replicas)
    assert after.need.replicas >= 2 * before.need.replicas
    assert after.replicas == min(after.need.replicas, max(2 * before.replicas, before.replicas + 4))
    assert after.provisioned.requests_per_second > 2 * before.provisioned.requests_per_second


def test_replicas_that_are_not_ready_do_not_count():
    assert decided(shapes=frozenset({OLD, NEW})).need == decided().need


def test_a_shape_that_cannot_be_predicted_ends_the_forecast():
    assert decided(None).need is None
    assert decided(lambda _prompt, _answer: None).need is None


def test_a_shape_on_which_no_load_meets_the_objectives_needs_no_further_replicas():
    assert decided(scaled(0.0)).need == decided().need


def test_where_the_ttft_of_the_other_shape_is_out_of_reach_its_tpot_counts():
    def slow(prompt, answer):
        tpot = capacity(prompt, answer).corrected(CapacityCorrection(0.5))
        rates = tuple((percentile, 0.0) for percentile, _ in tpot.rates)
        return ReplicaCapacity(rates, idle_ttft=((99, 4000.0), (90, 3000.0)), without_ttft=tpot)

    decision = decided(slow)

    assert decision.ttft_unreachable == ""
    assert decision.need == decided(scaled(0.5)).need


def trusting(correction, prior):
    capacity = replace(COUNTED.memory.capacity, correction=correction, prior=prior)
    return replace(COUNTED.memory, capacity=capacity)


@pytest.mark.parametrize(("share", "weakest"), [(0.5, 0.5), (2.0, 1.0)])
def test_the_correction_counts_for_the_other_shape_as_far_as_it_warns(share, weakest):
    memory = trusting(CapacityCorrection(share), CapacityCorrection(share))
    decision = decided(scaled(1.0), state=replace(COUNTED, memory=memory))

    assert decision.need.replica_rate == pytest.approx(4.86 * weakest, abs=0.01)


def missed(at, attainment=0.3):
    """Return a reading of many missed requests, over as wide windows as there are."""
    wide = tuple(
        Window(seconds, 10.0 * seconds, 40.0, attainment, attainment, attainment, arrived=10.0 * seconds)
        for seconds in (300.0, 1500.0)
    )
    return replace(
        sample(at),
        ttft_attainment=attainment,
        tpot_attainment=attainment,
        itl_attainment=attainment,
        running=40.0,
        running_mean=40.0,
        wider=wide,
    )


def learned(*others, rounds=60, attainment=0.3, state=COUNTED):
    """Return the state after a quarter of an hour of misses."""
    for step in range(rounds):
        reading = missed(3000.0 + 15.0 * step, attainment)
        state, _ = LAW.step(state, seen(reading, *others, intent=replace(CHAT, max_replicas=4)))
    return state


def of_replicas(memory):
    return (
        memory.capacity.correction,
        memory.capacity.load_misses,
        memory.evidence.violated_rate,
        memory.evidence.violated_load,
        memory.evidence.tpot_reachable,
        memory.evidence.ttft_reachable,
        memory.evidence.episode_rate,
    )


@pytest.mark.parametrize("attainment", [0.3, 1.0])
def test_nothing_about_one_replica_is_learned_from_replicas_of_two_shapes(attainment):
    assert of_replicas(learned(attainment=attainment).memory) != of_replicas(COUNTED.memory)

    mixed = learned(scaled(2.0), attainment=attainment)

    assert of_replicas(mixed.memory) == of_replicas(COUNTED.memory)


def test_misses_of_two_shapes_add_replicas_all_the_same():
    state, replicas = COUNTED, [8]
    for step in range(80):
        ready = {"ready": replicas[-1], "existing": replicas[-1], "current": replicas[-1]}
        reading = replace(missed(3000.0 + 15.0 * step), targets=replicas[-1])
        state, decision = LAW.step(state, seen(reading, scaled(1.0), **ready))
        replicas.append(decision.replicas)

    assert decision.need.replicas < 8 < replicas[-1]


def test_after_two_shapes_evidence_begins_anew():
    """As many replicas are ready as before, but windows reach back to those of the other shape."""
    mixed = learned(scaled(2.0))
    at = 3000.0 + 15.0 * 60
    state, _ = LAW.step(mixed, seen(missed(at)))

    assert of_replicas(state.memory) == of_replicas(COUNTED.memory)
    assert state.memory.supply.stable_since == at
    for step in range(1, 12):
        state, _ = LAW.step(state, seen(missed(at + 15.0 * step)))
    assert of_replicas(state.memory) != of_replicas(COUNTED.memory)


def test_a_violation_of_the_old_shape_is_forgotten_with_it():
    violated = learned()
    assert violated.memory.evidence.episode_rate > 0
    moved = Decision(
        "uid",
        True,
        "",
        "",
        "",
        "",
        "",
        "",
        desired=3,
        facts=None,
        shape=NEW,
        placed=3,
        predicted_tpot_ms=None,
    )
    state = after_plan(violated, moved, frozenset({NEW}))
    state, _ = LAW.step(state, observation(missed(9000.0, 1.0), shapes=frozenset({NEW})))

    assert state.memory.evidence.violated_rate is None


CAPACITIES = st.lists(st.floats(0.05, 3.0), min_size=4, max_size=4).map(
    lambda steps: ReplicaCapacity(tuple(zip((99, 95, 90, 50), accumulate(steps), strict=True)))
)


@given(
    counted=CAPACITIES,
    other=CAPACITIES,
    share_of_counted=st.floats(0.0, 1.0),
    arrived=st.floats(60.0, 6000.0),
    share=st.floats(0.1, 2.0),
    spread=st.floats(0.0, 1.5),
)
@settings(deadline=None)
def test_no_more_requests_miss_behind_a_random_router_than_the_law_predicts(
    counted, other, share_of_counted, arrived, share, spread
):
    memory = trusting(CapacityCorrection(share, spread), CapacityCorrection(share))
    need = decided(
        lambda *_: other,
        state=replace(COUNTED, memory=memory),
        reading=sample(630.0, arrived),
        capacity_of=lambda *_: counted,
    ).need

    shapes = (
        counted.corrected(CapacityCorrection(share, spread)),
        other.corrected(CapacityCorrection(min(share, 1.0), spread)),
    )
    replicas_of_counted = round(share_of_counted * need.replicas)
    parts = replicas_of_counted / need.replicas, 1 - replicas_of_counted / need.replicas

    def missed_per_second(rate):
        of_each = (shape.missed_share(rate / need.replicas) for shape in shapes)
        return rate * sum(part * share for part, share in zip(parts, of_each, strict=True))

    really = need.load.mean_of(missed_per_second) / need.load.mean_of(lambda rate: rate)
    assert need.missed_share >= really - 1e-9


def test_simulated_replicas_of_two_shapes_miss_no_more_than_the_law_predicts():
    """Two H100s and two A100s behind a random router."""
    m = intent(
        uri="image:///m/8b",
        ttft=Objective(95, 1000),
        tpot=Objective(95, 60),
        traffic=Traffic(None, around(700), around(150)),
    )
    inputs = CapacityInputs(facts={m.uid: FACTS_8B})
    predicted = [PredictedCapacities().of(m, at, inputs) for at in (OLD, NEW)]
    strong, weak = (of_mixture(700.0, 150.0) for of_mixture in predicted)
    both = replace(strong, beside=weak)

    def simulated(per_replica):
        """Return the share of requests that miss, when each of the four gets so many per second."""
        requests = open_traffic(8000, 4 * per_replica, around(700), around(150), 1.0, seed=3)
        router, sent = Random(7), [[], [], [], []]
        for request in requests:
            router.choice(sent).append(request)
        missed = 0
        for engine, own in zip((predicted[0], predicted[0], predicted[1], predicted[1]), sent, strict=True):
            times = simulate(engine.steps, engine.limits, own)
            missed += sum(t > 1.0 or p > 0.06 for t, p in zip(times.ttft_s, times.tpot_s, strict=True))
        return missed / len(requests)

    overloaded = 1.3 * both.rate_at(95)
    used_fully = (strong.rate_at(95) + weak.rate_at(95)) / 2  # the Service does not use each fully

    assert both.rate_at(95) == weak.rate_at(95) < 0.65 * used_fully
    assert simulated(0.9 * both.rate_at(95)) <= 0.01
    assert 0.3 < simulated(overloaded) <= both.missed_share(overloaded)
    assert simulated(used_fully) > 0.3
