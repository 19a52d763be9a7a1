"""Traffic from a description: a request rate that is piecewise linear over time, burstiness and lengths."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tangram.capacity.load.traffic import SimulatedRequest, Tokens, gap, lengths_of, uniforms
from tangram.catalog import InputError
from tangram.simulator.traffic.trace import Trace

MAX_REQUESTS = 2_000_000


@dataclass(frozen=True, slots=True)
class RatePoint:
    """The request rate at one instant; between two points it is linear."""

    at_s: float
    requests_per_second: float


@dataclass(frozen=True, slots=True)
class TrafficDescription:
    """Requests over time. Two points at one instant are a jump of the rate. Lengths: a number is a mean."""

    rates: tuple[RatePoint, ...]  # sorted by time; traffic begins at the first and ends at the last
    input_tokens: Tokens
    output_tokens: Tokens
    cv: float = 1.0  # of the gaps between requests, at a constant rate: 1 is Poisson

    @property
    def expected_requests(self) -> float:
        """The integral of the rate."""
        return sum(_area(begin, end) for begin, end in pairwise(self.rates))


def generated(description: TrafficDescription, seed: int) -> Trace:
    """Return requests as described. Raises `InputError` for rates that are none, or for too many requests.

    Arrivals are a renewal process in operational time, the integral of the rate: burstiness is the same at
    every rate. Prompt and answer lengths are drawn independently of each other.
    """
    _check(description)
    stream = 3 * seed
    prompts, answers = lengths_of(description.input_tokens), lengths_of(description.output_tokens)
    prompt_draws, answer_draws = uniforms(stream + 1), uniforms(stream + 2)
    return Trace(
        tuple(
            SimulatedRequest(
                at,
                max(1, round(prompts.quantile(next(prompt_draws)))),
                max(1, round(answers.quantile(next(answer_draws)))),
            )
            for at in _arrivals(description, stream)
        )
    )


def _arrivals(description: TrafficDescription, stream: int) -> Iterator[float]:
    """Yield the instants at which the integral of the rate reaches the sums of gaps of mean 1."""
    draws, before = uniforms(stream), 0.0
    due = gap(next(draws), 1.0, description.cv)
    for begin, end in pairwise(description.rates):
        area = _area(begin, end)
        while due < before + area:
            yield begin.at_s + _seconds_until(due - before, begin, end)
            due += gap(next(draws), 1.0, description.cv)
        before += area


def _area(begin: RatePoint, end: RatePoint) -> float:
    return (end.at_s - begin.at_s) * (begin.requests_per_second + end.requests_per_second) / 2


def _seconds_until(area: float, begin: RatePoint, end: RatePoint) -> float:
    """Return the time after `begin` in which the integral of the rate reaches `area`."""
    rate = begin.requests_per_second
    slope = (end.requests_per_second - rate) / (end.at_s - begin.at_s)
    root = math.sqrt(max(0.0, rate * rate + 2 * slope * area))
    return min(end.at_s - begin.at_s, 2 * area / (rate + root))


def _check(description: TrafficDescription) -> None:
    rates = description.rates
    if len(rates) < 2:
        raise InputError("rates", "have fewer than two points")
    for point in rates:
        if not (math.isfinite(point.at_s) and point.at_s >= 0):
            raise InputError("rates", f"an instant is {point.at_s}, not at least 0 seconds")
        if not (math.isfinite(point.requests_per_second) and point.requests_per_second >= 0):
            raise InputError("rates", f"a rate is {point.requests_per_second}, not at least 0")
    if any(begin.at_s > end.at_s for begin, end in pairwise(rates)):
        raise InputError("rates", "are not sorted by time")
    expected = description.expected_requests
    if expected > MAX_REQUESTS:
        raise InputError("rates", f"give about {expected:.0f} requests, more than {MAX_REQUESTS:,}")
