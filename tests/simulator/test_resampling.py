"""A trace cut, scaled and resampled: what is kept of it."""

from collections import Counter
from statistics import fmean

import pytest

from tangram.capacity.load.traffic import SimulatedRequest, open_traffic
from tangram.simulator.traffic.resampling import at_rate, resampled, time_warped, window
from tangram.simulator.traffic.trace import Trace


@pytest.fixture(scope="module")
def trace() -> Trace:
    """One hour at 2 requests per second, then one at 6."""
    calm = open_traffic(7_200, 2.0, 500, 100, 1.0, seed=1)
    busy = open_traffic(21_600, 6.0, 500, 100, 1.0, seed=4)
    later = [SimulatedRequest(3600 + r.arrival_s, r.input_tokens, r.output_tokens) for r in busy]
    return Trace((*calm, *later), tuple(str(place % 3) for place in range(28_800)))


def _per_half_hour(trace: Trace) -> list[int]:
    counts = Counter(int(request.arrival_s // 1800) for request in trace.requests)
    return [counts[part] for part in range(4)]


def test_a_window_begins_at_zero_and_ends_before_its_end() -> None:
    whole = Trace(tuple(SimulatedRequest(float(at), at + 1, 1) for at in range(10)))

    part = window(whole, 3.0, 6.0)

    assert part.requests == tuple(SimulatedRequest(at - 3.0, int(at) + 1, 1) for at in (3.0, 4.0, 5.0))


@pytest.mark.parametrize("factor", [0.25, 1.0, 1.5, 3.0])
def test_another_rate_has_so_many_times_the_requests_at_the_same_times(trace: Trace, factor: float) -> None:
    scaled = at_rate(trace, factor, seed=3)

    parts = [
        more / before for more, before in zip(_per_half_hour(scaled), _per_half_hour(trace), strict=True)
    ]
    assert parts == pytest.approx([factor] * 4, rel=0.05)
    arrivals = [request.arrival_s for request in scaled.requests]
    assert arrivals == sorted(arrivals)
    assert 0.0 <= arrivals[0] <= arrivals[-1] <= trace.duration_s
    assert len(scaled.clients) == len(scaled.requests)
    assert scaled == at_rate(trace, factor, seed=3)


def test_a_rate_factor_of_one_changes_nothing(trace: Trace) -> None:
    assert at_rate(trace, 1.0, seed=5) == trace


def test_warped_time_keeps_the_requests_and_divides_their_instants(trace: Trace) -> None:
    faster = time_warped(trace, 4.0)

    assert faster.duration_s == pytest.approx(trace.duration_s / 4)
    assert [r.input_tokens for r in faster.requests] == [r.input_tokens for r in trace.requests]


def test_seed_zero_is_the_trace_itself(trace: Trace) -> None:
    assert resampled(trace, 0) is trace


def test_other_seeds_keep_the_course_of_the_rate_and_differ_within(trace: Trace) -> None:
    drawn = [resampled(trace, seed) for seed in range(1, 6)]

    means = [fmean(parts) for parts in zip(*map(_per_half_hour, drawn), strict=True)]
    assert means == pytest.approx(_per_half_hour(trace), rel=0.08)
    assert len({one.requests for one in drawn}) == 5
    assert drawn[0] == resampled(trace, 1)
    for one in drawn:
        arrivals = [request.arrival_s for request in one.requests]
        assert arrivals == sorted(arrivals)
        assert arrivals[0] >= 0.0
