"""The table of waits: what must hold between its entries, and that the simulation makes it."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.queueing_table import LOADS, PREFILL, SLOPE, SLOTS, VARIABILITY, check, keys, row
from tangram.capacity.load.queueing import COLUMNS, BatchClass, Curve, row_key, table

classes = st.builds(BatchClass, st.floats(1, 2000), st.floats(0, 1), st.floats(0, 1))
variabilities = st.floats(0, 8)


def waits(curve: Curve, load: float) -> list[float]:
    return [curve.wait(load, column) for column in range(len(COLUMNS))]


def test_every_entry_is_there_with_a_number_for_every_column() -> None:
    stored = table()

    assert set(stored.rows) == {row_key(*key) for key in keys()}
    for texts in stored.rows.values():
        for text in texts:
            rows = [[float(number) for number in row.split()] for row in text.split(",")]
            assert len(rows) == len(LOADS)
            assert all(len(row) == len(COLUMNS) and all(map(math.isfinite, row)) for row in rows)


@pytest.mark.parametrize("key", [(1.0, 1.0, 0.8, 0.9), (2.0, 64.0, 0.8, 0.65)])
def test_the_simulation_makes_the_entry_again(key: tuple[float, float, float, float]) -> None:
    assert row(*key) == table().rows[row_key(*key)]


@settings(max_examples=200, deadline=None)
@given(classes, variabilities, st.floats(0, 0.9999), st.floats(0, 0.9999))
def test_more_load_never_shortens_the_wait(batch: BatchClass, cv: float, one: float, other: float) -> None:
    curve = table().curve(cv, batch)

    less, more = waits(curve, min(one, other)), waits(curve, max(one, other))

    assert all(low <= high + 1e-9 for low, high in zip(less, more, strict=True))


@settings(max_examples=100, deadline=None)
@given(classes, variabilities)
def test_without_load_nobody_waits_and_at_the_peak_there_is_no_bound(batch: BatchClass, cv: float) -> None:
    curve = table().curve(cv, batch)

    assert waits(curve, 0.0) == [0.0] * len(COLUMNS)
    assert curve.wait(0.9999, 0) > 20 * curve.wait(0.97, 0) > 0
    assert waits(curve, 1.0) == [math.inf] * len(COLUMNS)


@settings(max_examples=200, deadline=None)
@given(classes, variabilities, st.floats(0, 1))
def test_percentiles_are_in_order(batch: BatchClass, cv: float, load: float) -> None:
    _, *percentiles = waits(table().curve(cv, batch), load)

    assert percentiles == sorted(percentiles)


@pytest.mark.parametrize("slope", SLOPE)
@pytest.mark.parametrize("prefill", PREFILL)
def test_more_slots_shorten_the_wait_in_times_between_departures(slope: float, prefill: float) -> None:
    means = [table().curve(1.0, BatchClass(slots, slope, prefill)).wait(0.8, 0) for slots in SLOTS]

    assert all(more <= less * 1.05 for less, more in pairwise(means))


@pytest.mark.parametrize("slots", SLOTS)
def test_arrivals_that_vary_more_wait_longer(slots: float) -> None:
    means = [table().curve(cv, BatchClass(slots, 0.5, 0.35)).wait(0.8, 0) for cv in (*VARIABILITY, 8.0)]

    assert means == sorted(means)


def test_one_slot_with_answers_alone_waits_as_in_m_g_1() -> None:
    # Lengths vary by 0.907, so (1 + 0.82) / 2 services are in the way of each; the table counts in services.
    used = 0.7

    wait = table().curve(1.0, BatchClass(1, 0.2, 0.05)).wait(used, 0)

    assert wait == pytest.approx(used / (1 - used) * (1 + 0.824) / 2, rel=0.15)


def test_the_check_of_the_generator_sees_a_table_that_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.queueing_table.SEED", 5)
    monkeypatch.setattr("benchmarks.queueing_table.REQUESTS", 500)
    monkeypatch.setattr("benchmarks.queueing_table.REQUESTS_NEAR_PEAK", 500)

    assert check(1) == 1
