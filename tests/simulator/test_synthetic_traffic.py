"""Traffic generated from a description has the rates, burstiness and lengths that it states."""

import math
from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from tangram.catalog import InputError
from tangram.fleet.lengths import fixed
from tangram.simulator.traffic.synthetic_traffic import RatePoint, TrafficDescription, generated


def _description(*points: tuple[float, float], cv: float = 1.0) -> TrafficDescription:
    return TrafficDescription(tuple(RatePoint(*point) for point in points), 400, fixed(50), cv)


def test_the_rate_follows_its_line() -> None:
    trace = generated(_description((0, 0), (1000, 20), (1000, 2), (3000, 2)), seed=1)

    arrivals = [request.arrival_s for request in trace.requests]
    counts = [sum(b <= at < e for at in arrivals) for b, e in ((0, 500), (500, 1000), (1000, 3000))]
    assert counts == pytest.approx([2500, 7500, 4000], rel=0.06)
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] <= 3000


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gaps_vary_as_stated(cv: float) -> None:
    trace = generated(_description((10, 5), (20_010, 5), cv=cv), seed=2)

    gaps = [after.arrival_s - before.arrival_s for before, after in pairwise(trace.requests)]
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.08)


def test_lengths_are_drawn_around_their_means() -> None:
    trace = generated(_description((0, 10), (5000, 10)), seed=3)

    assert fmean(request.input_tokens for request in trace.requests) == pytest.approx(400, rel=0.03)
    assert {request.output_tokens for request in trace.requests} == {50}


def test_a_seed_is_its_traffic() -> None:
    description = _description((0, 1), (100, 1))

    assert generated(description, 4) == generated(description, 4)
    assert generated(description, 4) != generated(description, 5)


@pytest.mark.parametrize(
    ("points", "problem"),
    [
        ([(0, 1)], "have fewer than two points"),
        ([(0, 1), (math.nan, 1)], "an instant is nan"),
        ([(0, 1), (9, -1)], "a rate is -1"),
        ([(5, 1), (4, 1)], "are not sorted by time"),
        ([(0, 1000), (10_000, 1000)], "give about 10000000 requests, more than 2,000,000"),
    ],
)
def test_rates_that_are_none_are_refused(points: list[tuple[float, float]], problem: str) -> None:
    with pytest.raises(InputError) as caught:
        generated(_description(*points), seed=1)

    assert problem in str(caught.value)
