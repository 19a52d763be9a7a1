"""The clairvoyant cover and the search by attainment, against searches that try everything."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.autoscaling.oracle import ScheduleFamily, cheapest_schedule, clairvoyant_cover
from tests.support.examples import examples

needs = st.lists(st.integers(0, 3), min_size=1, max_size=14)


def least_cost(need, start, stop, initial):
    """The least replica bins of all covers, by dynamic programming over the replicas of each bin."""
    costs = {initial: 0}
    for place, least in enumerate(need):
        ends = len(need) - place
        costs = {
            count: min(
                cost + start * max(0, count - before) + min(stop, ends) * max(0, before - count)
                for before, cost in costs.items()
            )
            + count
            for count in range(least, 4)
        }
    return min(costs.values())


@given(needs, st.integers(0, 4), st.integers(0, 3), st.integers(0, 3))
@examples(100)
def test_no_cover_costs_less(need, start, stop, initial):
    cover = clairvoyant_cover(need, bin_s=1, start_s=start, stop_s=stop, initial=initial)

    assert cover.replica_s == least_cost(need, start, stop, initial)


@given(needs, st.integers(0, 4), st.integers(0, 3))
@settings(deadline=None)
def test_a_cover_serves_the_need_with_replicas_that_were_ordered_in_time(need, start, initial):
    cover = clairvoyant_cover(need, bin_s=1, start_s=start, initial=initial)
    on_at_start = min(initial, cover.ready[0])

    assert all(ready >= count for ready, count in zip(cover.ready, need, strict=True))
    # What is ready was ordered for the whole time that it takes to start, or was there at the start.
    for place, ready in enumerate(cover.ready):
        since = range(max(0, place - start), place + 1)
        assert ready <= min(cover.ordered[at] for at in since)
    assert cover.starts == sum(max(0, b - a) for a, b in pairwise([on_at_start, *cover.ready]))


def test_a_gap_is_bridged_if_a_start_costs_as_much():
    def ready(gap):
        need = [1, *[0] * gap, 1]
        return clairvoyant_cover(need, bin_s=15, start_s=120).ready[1:-1]

    assert ready(8) == (1,) * 8
    assert ready(9) == (0,) * 9


def test_a_start_is_ordered_ahead_and_paid():
    cover = clairvoyant_cover([1] * 12 + [3] * 4, bin_s=15, start_s=100)

    assert cover.ready == (1,) * 12 + (3,) * 4
    assert cover.ordered == (1,) * 5 + (3,) * 11
    assert (cover.starts, cover.replica_s) == (2, 15 * (16 + 2 * (4 + 7)))
    assert cover.cost(price_per_hour=3.6) == pytest.approx(cover.replica_s / 1000)


def test_at_least_the_minimum_is_on():
    assert clairvoyant_cover([0, 0, 4, 0], bin_s=15, start_s=15, min_replicas=2).ready == (2, 2, 4, 2)


# -- attainment --------------------------------------------------------------------------------------------


def family_of(attainment_of, *, usd_of=lambda scale: scale, step=0.005, start=1.0, highest=16.0):
    """Return schedules of one bin, whose replicas are their scale in steps, and a list of those replayed."""
    replays = []

    def replay(schedule):
        replays.append(schedule[0])
        return usd_of(schedule[0] * step), attainment_of(schedule[0] * step)

    family = ScheduleFamily(
        lambda scale: (round(scale / step),), replay, start=start, step=step, highest=highest
    )
    return family, replays


def by_power(exponent, misses=0.02):
    return lambda scale: 1 - min(1.0, misses / scale**exponent)


@pytest.mark.parametrize("attainment_of", [by_power(2), by_power(6), lambda scale: 1 - 0.5 ** (5 * scale)])
@pytest.mark.parametrize("attainment", [0.95, 0.99, 0.999])
def test_the_cheapest_schedule_reaches_the_attainment_and_one_at_a_hundredth_less_does_not(
    attainment_of, attainment
):
    family, replays = family_of(attainment_of)

    best = cheapest_schedule([family], attainment)

    assert best.attainment == attainment_of(best.scale) >= attainment
    assert attainment_of(best.scale * 0.985) < attainment
    assert len(replays) <= 8


def test_all_attainments_share_the_replays():
    family, replays = family_of(by_power(4))
    for attainment in (0.95, 0.99, 0.999):
        cheapest_schedule([family], attainment)
    before = list(replays)

    for attainment in (0.999, 0.95, 0.99):
        cheapest_schedule([family], attainment)

    assert replays == before
    assert len(replays) <= 12


def test_the_cheapest_family_wins_and_a_dear_one_is_replayed_once():
    cheap, _ = family_of(by_power(3, misses=0.03))
    dear, of_dear = family_of(by_power(3), usd_of=lambda scale: 3 * scale)

    best = cheapest_schedule([dear, cheap], 0.99)

    assert best in cheap.replayed
    assert len(of_dear) == 1


def test_a_family_that_starts_dear_wins_where_its_misses_fall_faster():
    flat, _ = family_of(by_power(1))
    steep, _ = family_of(by_power(8), usd_of=lambda scale: 2 * scale)

    best = cheapest_schedule([flat, steep], 0.999)

    assert best in steep.replayed
    assert best.usd == pytest.approx(2 * 20 ** (1 / 8), rel=0.015)


def test_an_attainment_that_no_schedule_reaches_is_told():
    family, replays = family_of(lambda scale: 0.5)

    assert cheapest_schedule([family], 0.99) is None
    assert len(replays) <= 6


def test_the_least_fixed_number_is_found():
    def fixed(most):
        return family_of(by_power(3, misses=13.5), step=1, start=5, highest=most)[0]

    assert cheapest_schedule([fixed(50)], 0.95).scale == 7  # 13.5 / 7**3 = 0.039, with 6 it is 0.0625
    assert cheapest_schedule([fixed(50)], 0.99).scale == 12
    assert cheapest_schedule([fixed(11)], 0.99) is None


@given(st.lists(st.floats(0.5, 1), min_size=64, max_size=64), st.integers(1, 64), st.floats(0.5, 1))
@settings(deadline=None)
def test_a_search_over_chance_ends_with_the_cheapest_replay_that_reaches(attainments, start, attainment):
    family, _ = family_of(lambda replicas: attainments[round(replicas) - 1], step=1, start=start, highest=64)

    best = cheapest_schedule([family], attainment)

    reached = [entry.usd for entry in family.replayed if entry.attainment >= attainment]
    assert (best.usd if best else None) == min(reached, default=None)
