"""A predicted capacity is corrected by two numbers that explain the misses at the loads of replicas."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.fleet import Objectives
from tangram.scaling import CapacityMemory, capacity_correction
from tangram.scaling.outlook.load_misses import LoadMisses
from tangram.scaling.outlook.load_outlook import LoadOutlook
from tangram.scaling.outlook.replica_capacity import CapacityCorrection, ReplicaCapacity
from tests.scaling.test_feed_forward import CHAT, PARAMS, outlook, sample, sharp

# A P99 at 10 requests/s. Misses double with each third of that.
SMOOTH = ReplicaCapacity(((99, 10.0), (95, 17.74), (90, 21.07), (50, 28.81)))
LOADS = (5.0, 8.0, 11.0, 14.0, 18.0)

OBJECTIVES, TPOT_ALONE = CHAT.objectives, Objectives(None, CHAT.tpot)


def after(minutes, reading, memory=None, *, ready=3, known=None, every_s=60.0, objectives=OBJECTIVES):
    memory = memory or CapacityMemory(compared_at=0.0)
    for minute in range(minutes):
        rate = None if reading.arrived is None else reading.arrived / 60
        memory = capacity_correction.corrected(
            memory,
            PARAMS,
            known or outlook(),
            reading,
            rate,
            objectives=objectives,
            reachable=objectives,
            ready=ready,
            now=every_s * (minute + 1),
        )
    return memory


def lived(missed_share, *, hours=6, known=None, loads=LOADS):
    """Return the memory after minutes at these loads of one replica, which miss as `missed_share` says."""
    known = known or replace(outlook(), capacity=SMOOTH)
    memory = CapacityMemory()
    for minute in range(60 * hours):
        load = loads[minute // 10 % len(loads)]
        if minute % 10 < 2:  # misses count at the mean load of two minutes: skip that of the change
            memory = replace(memory, loads=())
        reading = sample(load, attainment=1 - missed_share(load))
        memory = capacity_correction.corrected(
            memory,
            PARAMS,
            known,
            reading,
            load,
            objectives=OBJECTIVES,
            reachable=OBJECTIVES,
            ready=1,
            now=60.0 * minute,
        )
    return memory


def smooth(load, share=1.0):
    """Return a reading at a load of each of three replicas that carry this share of the prediction."""
    return sample(3 * load, attainment=1 - SMOOTH.corrected(CapacityCorrection(share)).missed_share(load))


def predicted(memory, load):
    """Return the share of misses at a load of one replica, as corrected."""
    corrected = SMOOTH.corrected(memory.correction)
    return corrected.missed_share(load)


@pytest.mark.parametrize("share", [0.3, 0.5, 1.0, 1.5])
def test_the_misses_at_a_constant_load_are_predicted_within_two_hours(share):
    memory = after(120, smooth(10.0, share), known=replace(outlook(), capacity=SMOOTH))

    assert predicted(memory, 10.0) == pytest.approx(
        SMOOTH.corrected(CapacityCorrection(share)).missed_share(10.0), rel=0.2
    )


@pytest.mark.parametrize(("share", "spread"), [(0.5, 0.0), (0.8, 0.3), (1.2, 0.6), (1.5, 0.0), (1.6, 1.0)])
def test_the_misses_at_every_load_are_predicted_after_hours_of_many_loads(share, spread):
    real = SMOOTH.corrected(CapacityCorrection(share, spread))
    loads = [share * load for load in LOADS]

    memory = lived(real.missed_share, hours=8, loads=loads)

    for load in loads:
        assert predicted(memory, load) == pytest.approx(real.missed_share(load), rel=0.5)


def test_a_model_that_is_wrong_by_far_is_corrected_within_minutes():
    far_off = replace(outlook(), capacity=SMOOTH.corrected(CapacityCorrection(100.0)))

    memory = after(6, smooth(22.0), known=far_off)

    assert far_off.capacity.corrected(memory.correction).missed_share(22.0) > 0.08


@pytest.mark.parametrize("factor", [3.0, 30.0, 300.0])
def test_a_model_with_a_knee_that_is_wrong_by_far_is_corrected_within_minutes(factor):
    reading = sample(3 * 5.5, attainment=0.2)

    memory = after(6, reading, known=replace(outlook(), capacity=sharp(5.0 * factor)))

    assert sharp(5.0 * factor).corrected(memory.correction).missed_share(5.5) > 0.5


def test_misses_between_two_minutes_count_where_windows_are_shorter():
    known, params = (
        replace(outlook(), capacity=sharp(50.0)),
        replace(PARAMS, window_s=20.0, scrape_interval_s=5.0),
    )
    memory = CapacityMemory()
    for now in range(-20, 65, 5):
        reading = sample(6.0, attainment=0.2 if 10 <= now <= 50 else 0.99)
        memory = capacity_correction.corrected(
            memory,
            params,
            known,
            reading,
            6.0,
            objectives=OBJECTIVES,
            reachable=OBJECTIVES,
            ready=1,
            now=float(now),
        )

    assert known.capacity.corrected(memory.correction).missed_share(6.0) > 0.3


def test_a_model_that_is_right_is_left_alone():
    memory = lived(SMOOTH.missed_share)

    assert memory.correction.trusted_share == pytest.approx(1.0, abs=0.1)
    assert memory.correction.load_spread <= 0.2


def test_one_burst_does_not_outweigh_hours():
    memory = lived(SMOOTH.missed_share)

    burst = after(1, sample(5.0, attainment=0.5), memory, ready=1, known=replace(outlook(), capacity=SMOOTH))

    assert predicted(burst, 5.0) < 2 * predicted(memory, 5.0)


def test_misses_behind_a_queue_count_at_the_load_that_made_it():
    queue = sample(1.0, attainment=0.2, waiting=50.0)
    memory = after(1, sample(12.0, attainment=0.2, waiting=50.0))

    for _ in range(20):
        memory = after(1, queue, replace(memory, compared_at=0.0))
    ended = after(1, sample(1.0), replace(memory, compared_at=0.0))
    over = after(1, sample(1.0), replace(ended, compared_at=0.0))

    assert memory.queued_load == ended.queued_load == pytest.approx(12.0 / 3 / 1.96)
    assert over.queued_load < 0.2


def test_misses_behind_a_queue_that_is_over_count_at_the_load_that_made_it():
    memory = after(1, sample(12.0, attainment=0.2, waiting=50.0), CapacityMemory(compared_at=0.0))
    memory = corrected(memory, sample(1.0, attainment=0.2, waiting=50.0), now=90.0)

    memory = corrected(memory, sample(1.0, attainment=0.4), now=120.0)

    assert memory.queued_load == pytest.approx(12.0 / 3 / 1.96)
    assert not corrected(memory, sample(1.0), now=180.0).is_queued


def test_misses_behind_a_queue_that_began_while_nothing_was_read_teach_nothing():
    memory = after(5, sample(9.0, attainment=1.0))

    for now in (600.0, 660.0):
        memory = corrected(memory, sample(9.0, attainment=0.2, waiting=50.0), now=now)

    assert sum(memory.load_misses.misses) == 0.0
    assert memory.correction.trusted_share >= 1.0
    memory = corrected(memory, sample(9.0, attainment=0.2), now=720.0)  # none waits any more, but these did
    assert sum(memory.load_misses.misses) == 0.0
    memory = corrected(memory, sample(9.0, attainment=0.5), now=780.0)
    assert sum(memory.load_misses.misses) == pytest.approx(0.5 * 540, rel=0.01)


def test_a_minute_in_which_a_burst_and_a_queue_begin_teaches_nothing():
    memory = after(2, sample(0.1, attainment=1.0))
    before = sum(memory.load_misses.misses)

    burst = corrected(memory, sample(9.0, attainment=0.4, waiting=5.0), now=180.0)
    again = corrected(burst, sample(9.0, attainment=0.4, waiting=5.0), now=240.0)

    assert sum(burst.load_misses.misses) == pytest.approx(before)
    assert burst.missed.misses == pytest.approx(540), "they are misses all the same"
    assert sum(again.load_misses.misses) > before + 100


def test_replicas_of_a_clock_that_was_set_back_are_forgotten():
    memory = corrected(CapacityMemory(compared_at=990.0), sample(9.0), now=1000.0, ready=9)

    memory = corrected(memory, sample(9.0), now=100.0, ready=2)

    assert memory.serving == ((100.0, 2),)


def test_the_first_reading_counts_nothing_because_its_window_began_before_the_requests():
    memory = corrected(CapacityMemory(), sample(9.0, attainment=0.2), now=30.0)

    assert memory.load_misses == LoadMisses()
    assert corrected(memory, sample(9.0, attainment=0.2), now=89.0).load_misses == LoadMisses()
    assert sum(corrected(memory, sample(9.0, attainment=0.2), now=90.0).load_misses.misses) > 0


def test_misses_count_at_the_load_of_the_replicas_that_served_and_not_of_those_just_ready():
    memory = CapacityMemory(compared_at=0.0)
    for now, ready in ((15.0, 1), (30.0, 1), (45.0, 1), (60.0, 5)):
        memory = corrected(memory, sample(12.0, attainment=0.2), now=now, ready=ready)

    assert memory.loads == (pytest.approx(12.0 / 2 / 1.96),)


def corrected(memory, reading, *, now, ready=3):
    rate = reading.arrived / 60
    return capacity_correction.corrected(
        memory,
        PARAMS,
        outlook(),
        reading,
        rate,
        objectives=OBJECTIVES,
        reachable=OBJECTIVES,
        ready=ready,
        now=now,
    )


def test_readings_within_a_minute_count_once():
    assert after(6, sample(9.0), every_s=19.0).load_misses == after(1, sample(9.0)).load_misses


def test_what_was_recorded_stays_until_requests_say_otherwise():
    recorded = CapacityCorrection(0.5, 0.6)
    memory = CapacityMemory(correction=recorded, prior=recorded)

    idle = after(60, replace(sample(0.0), arrived=0.0, requests=0.0), memory)

    assert idle.correction == recorded


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1), st.floats(0, 1e5)), max_size=12),
    st.floats(1e-6, 1e6),
)
def test_whatever_is_read_both_numbers_stay_within_their_bounds(readings, predicted):
    known = LoadOutlook(outlook().history, ReplicaCapacity(((99, predicted), (50, 2 * predicted))))
    memory = CapacityMemory()
    for rate, attainment, waiting in readings:
        memory = after(
            1,
            sample(rate, attainment=attainment, waiting=waiting),
            replace(memory, compared_at=0.0),
            known=known,
        )

    assert 1e-4 <= memory.correction.trusted_share <= 2.0
    assert 0.0 <= memory.correction.load_spread <= 1.5


def test_a_model_by_which_no_load_meets_the_p99_is_corrected_in_units_of_the_objective():
    capacity = ReplicaCapacity(((99, 0.0), (95, 6.0), (90, 10.0), (50, 18.0)))
    real = capacity.corrected(CapacityCorrection(0.5))

    memory = lived(real.missed_share, known=replace(outlook(), capacity=capacity), loads=(3.0, 4.0, 5.0, 6.0))

    assert memory.corrected_at == 90
    corrected = capacity.corrected(memory.correction)
    for load in (4.0, 5.0, 6.0):
        assert corrected.missed_share(load) == pytest.approx(real.missed_share(load), rel=0.3)


def test_loads_in_other_units_are_not_compared_and_the_correction_goes_on():
    strict = ReplicaCapacity(((99, 0.1), (95, 6.0), (90, 21.0), (50, 29.0)))
    before = after(60, smooth(10.0, 0.5), known=replace(outlook(), capacity=SMOOTH))

    memory = after(
        1, smooth(10.0, 0.5), replace(before, compared_at=0.0), known=replace(outlook(), capacity=strict)
    )

    assert (before.corrected_at, memory.corrected_at) == (99, 90)
    assert sum(memory.load_misses.requests) < 2 * 30 * 60
    assert memory.prior == before.correction


def test_misses_of_a_ttft_out_of_reach_do_not_correct_what_a_replica_carries():
    known = replace(outlook(), capacity=SMOOTH)
    missed = replace(sample(30.0, attainment=0.3), tpot_attainment=SMOOTH.missed_share(0.0))
    before = after(60, missed, known=known)
    good = replace(sample(30.0, attainment=0.3), tpot_attainment=1.0)

    memory = after(1, good, replace(before, compared_at=0.0), known=known, objectives=TPOT_ALONE)

    assert before.correction.trusted_share < 0.5
    assert memory.corrected_for == TPOT_ALONE
    assert memory.correction.trusted_share >= 1.0


LOW, HALF, FULL = 1.0, 6.0, 10.0
"""Loads of one replica that carries 10 requests/s at P99: a tenth, more than half, all."""


def with_unavoidable(load, share=0.03):
    return share + (1 - share) * SMOOTH.missed_share(load)


def test_misses_at_low_load_are_no_reason_for_a_replica():
    memory = lived(with_unavoidable, loads=(LOW, 2.0, HALF, FULL))

    assert memory.correction.unavoidable_share == pytest.approx(0.03, rel=0.2)
    for load in (LOW, HALF, FULL):
        assert predicted(memory, load) == pytest.approx(with_unavoidable(load), rel=0.3)
    without = SMOOTH.corrected(memory.correction._replace(unavoidable_share=0.0))
    assert without.missed_share(HALF) < 0.01, "by load alone"


@pytest.mark.parametrize(
    ("missed_share", "loads"),
    [
        (with_unavoidable, (HALF,)),
        (with_unavoidable, (HALF, 1.3 * HALF)),
        (lambda _load: 0.9, (LOW, 2.0, HALF, FULL)),
        (lambda load: 0.9 if load > 4 else 0.015 * load, (LOW, 2.0, HALF, FULL)),
        (SMOOTH.missed_share, (LOW, 2.0, HALF, FULL)),
    ],
    ids=[
        "one load",
        "neighbouring loads",
        "overload at every load",
        "overload at what the model calls half",
        "hardly any miss",
    ],
)
def test_misses_are_unavoidable_only_where_far_higher_loads_miss_no_more(missed_share, loads):
    assert lived(missed_share, hours=1, loads=loads).correction.unavoidable_share < 0.002


def test_misses_that_are_rarer_than_400_requests_show_are_found_among_more_of_them():
    counts = LoadMisses()
    for load, requests, share in ((0.1, 400.0, 0.008), (0.3, 8000.0, 0.008), (0.8, 2000.0, 0.01)):
        counts = counts.counted(load, requests, share)

    memory = after(1, sample(), CapacityMemory(load_misses=counts, compared_at=0.0))

    assert 0.004 < memory.correction.unavoidable_share <= 0.01


def test_misses_at_low_load_that_chance_explains_are_not_unavoidable():
    counts = LoadMisses().counted(0.1, 150.0, 0.02).counted(0.8, 500.0, 0.0)

    memory = after(1, sample(), CapacityMemory(load_misses=counts, compared_at=0.0))

    assert memory.correction.unavoidable_share == 0.0


def test_other_objectives_have_other_unavoidable_misses():
    memory = lived(with_unavoidable, loads=(LOW, 2.0, HALF, FULL))
    known = replace(outlook(), capacity=SMOOTH)

    other = after(1, sample(5.0), replace(memory, compared_at=0.0), known=known, objectives=TPOT_ALONE)

    assert memory.correction.unavoidable_share > 0.0 == other.correction.unavoidable_share


def test_misses_of_a_burst_that_begins_count_at_its_load_and_those_after_it_at_the_mean():
    quiet = after(1, sample(3.0, attainment=1.0))

    begun = after(1, sample(30.0, attainment=0.5), replace(quiet, compared_at=0.0))
    over = after(1, sample(3.0, attainment=0.5), replace(begun, compared_at=0.0))

    assert begun.queued_load == pytest.approx(30.0 / 3 / 1.96)
    assert over.queued_load == pytest.approx((30.0 + 3.0) / 2 / 3 / 1.96)


def test_one_burst_after_silence_does_not_teach_that_a_replica_carries_next_to_nothing():
    known = replace(outlook(), capacity=SMOOTH)
    memory = after(5, sample(0.0, attainment=1.0), ready=1, known=known)

    burst = after(1, sample(20.0, attainment=0.85), replace(memory, compared_at=0.0), ready=1, known=known)

    assert burst.correction.trusted_share > 0.7
