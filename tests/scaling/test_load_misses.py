"""Requests and misses by the load at which they came."""

import math

import pytest

from tangram.scaling.outlook.load_misses import HALF_LIFE_S, LoadMisses

COUNTS = LoadMisses().counted(0.1, 50.0, 0.2).counted(0.5, 100.0, 0.0).counted(0.9, 200.0, 0.5)


def test_each_class_has_the_mean_load_of_its_requests():
    counts = LoadMisses().counted(0.52, 100.0, 0.0).counted(0.54, 300.0, 0.04)

    seen = []
    counts.log_likelihood(lambda load: seen.append(load) or 0.03)

    assert seen == [pytest.approx(0.535)]
    assert counts.log_likelihood(lambda _load: 0.03) == pytest.approx(
        12 * math.log(0.03) + 388 * math.log(0.97)
    )


def test_fewer_misses_than_an_overload_is_predicted_to_have_are_as_likely_as_those_predicted():
    transient = LoadMisses().counted(2.5, 200.0, 0.6)

    assert transient.log_likelihood(lambda _load: 1.0) == transient.log_likelihood(lambda _load: 0.6)
    assert transient.log_likelihood(lambda _load: 0.6) > transient.log_likelihood(lambda _load: 0.4)
    carried = LoadMisses().counted(2.5, 200.0, 0.01)
    assert carried.log_likelihood(lambda _load: 1.0) < carried.log_likelihood(lambda _load: 0.01) - 100


def test_the_likelihood_of_the_occupied_classes_is_that_of_all():
    occupied = COUNTS.occupied()

    assert occupied == LoadMisses((50.0, 100.0, 200.0), (10.0, 0.0, 100.0), (0.1, 0.5, 0.9))
    assert occupied.log_likelihood(lambda load: load / 2) == COUNTS.log_likelihood(lambda load: load / 2)
    assert LoadMisses().occupied() == COUNTS.faded(math.inf).occupied() == LoadMisses()


def test_the_lowest_loads_are_whole_classes():
    assert COUNTS.lowest(40.0) == (50.0, 10.0, 0.1)
    assert COUNTS.lowest(51.0) == (150.0, 10.0, 0.5)
    assert COUNTS.lowest(1e6) == (350.0, pytest.approx(110.0), 0.9)
    assert LoadMisses().lowest(1.0) == (0.0, 0.0, 0.0)


def test_requests_count_from_a_load_on():
    assert [COUNTS.requests_from(load) for load in (0.0, 0.5, 0.6, 1.0)] == [350.0, 300.0, 200.0, 0.0]


def test_counts_fade_and_loads_stay():
    faded = COUNTS.faded(HALF_LIFE_S)

    assert faded.lowest(1e6) == (175.0, pytest.approx(55.0), 0.9)


@pytest.mark.parametrize("load", [0.0, 1e-9, 1e9])
def test_any_load_has_a_class(load):
    assert LoadMisses().counted(load, 10.0, 0.5).lowest(1e6)[:2] == (10.0, 5.0)
