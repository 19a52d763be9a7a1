"""A trace, varied: cut to a window, at another rate, or resampled by a seed."""

import math
from dataclasses import replace

from tangram.capacity.load.traffic import SimulatedRequest, uniforms
from tangram.simulator.traffic.trace import Trace

JITTER_S = 30.0  # a copy of a request arrives up to this much earlier or later
BLOCK_S = 60.0
NEIGHBOURS = 2  # blocks before and after one that it may be drawn from
_RATE_STREAM, _BLOCK_STREAM = 0x5C4E, 0x6B1A  # of random numbers: choices of one seed are independent


def window(trace: Trace, begin_s: float, end_s: float) -> Trace:
    """Return the requests from `begin_s` up to before `end_s`, with the window's start as the new zero."""
    places = (p for p, request in enumerate(trace.requests) if begin_s <= request.arrival_s < end_s)
    chosen = trace.chosen(places)
    return replace(chosen, requests=tuple(_moved(r, r.arrival_s - begin_s) for r in chosen.requests))


def at_rate(trace: Trace, factor: float, seed: int = 0) -> Trace:
    """Return the trace with `factor` times its requests over the same time.

    Below 1, requests are kept at random (thinning). Above 1, each request is repeated, the fraction at
    random; copies arrive up to `JITTER_S` seconds earlier or later: shorter bursts are spread.
    """
    random = uniforms(_stream(seed, _RATE_STREAM))
    end, repeats = trace.duration_s, math.floor(factor)
    arrivals: list[tuple[float, int]] = []
    for place, request in enumerate(trace.requests):
        more = next(random) < factor - repeats
        for copy in range(repeats + more):
            at = request.arrival_s
            if copy:
                at = min(end, max(0.0, at + JITTER_S * (2 * next(random) - 1)))
            arrivals.append((at, place))
    return _at_instants(trace, arrivals)


def time_warped(trace: Trace, factor: float) -> Trace:
    """Return the requests `factor` times as fast: the order and burstiness are kept, the trace is shorter."""
    return replace(trace, requests=tuple(_moved(r, r.arrival_s / factor) for r in trace.requests))


def resampled(trace: Trace, seed: int) -> Trace:
    """Return the trace as it could have been: a local block bootstrap (Paparoditis and Politis 2002).

    Each minute has the requests of a minute drawn from itself and its two neighbours on either side: the
    course over hours and the bursts within a minute are kept, the order of minutes is not. Seed 0 is the
    trace itself.
    """
    if not seed or not trace.requests:
        return trace
    random = uniforms(_stream(seed, _BLOCK_STREAM))
    blocks: list[list[int]] = [[] for _ in range(int(trace.duration_s // BLOCK_S) + 1)]
    for place, request in enumerate(trace.requests):
        blocks[int(request.arrival_s // BLOCK_S)].append(place)
    arrivals = []
    for block in range(len(blocks)):
        first, last = max(0, block - NEIGHBOURS), min(len(blocks) - 1, block + NEIGHBOURS)
        source = first + int(next(random) * (last - first + 1))
        shift = (block - source) * BLOCK_S
        arrivals += [(trace.requests[place].arrival_s + shift, place) for place in blocks[source]]
    return _at_instants(trace, arrivals)


def _at_instants(trace: Trace, arrivals: list[tuple[float, int]]) -> Trace:
    """Return the requests at places of the trace, each at its new instant, in the order of arrival."""
    ordered = sorted(arrivals)
    chosen = trace.chosen(place for _, place in ordered)
    moved = (_moved(request, at) for request, (at, _) in zip(chosen.requests, ordered, strict=True))
    return replace(chosen, requests=tuple(moved))


def _moved(request: SimulatedRequest, at: float) -> SimulatedRequest:
    return replace(request, arrival_s=at)


def _stream(seed: int, number: int) -> int:
    """Return the seed of one stream of random numbers: consecutive seeds give unrelated streams."""
    return int(next(uniforms(seed)) * (1 << 52)) ^ number
