"""A replica that takes requests while it runs: it does what the simulation of all requests at once does."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.linear_steps import LinearSteps
from tangram.capacity.load.engine_events import EngineEvent, EngineEventKind, EngineEvents
from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.load.prefix_cache import BLOCK_TOKENS, PrefixCache
from tangram.capacity.load.replica_simulation import EngineGauges, ReplicaSimulation
from tangram.capacity.load.simulate import simulate
from tangram.capacity.load.traffic import SimulatedRequest
from tests.support.simulated_requests import BLOCK, limits, traffic

steps = st.sampled_from(
    [
        LinearSteps(step=1.0),
        LinearSteps(step=0.7, sequence=0.11, context=0.003, prompt=0.05, windows=(20, 45)),
    ]
)


def _serve(
    replica: ReplicaSimulation, requests: list[SimulatedRequest], interval: float
) -> list[tuple[float, list[EngineEvent]]]:
    """Send each request in the interval in which it arrives; return the end and events of each interval."""
    unsent, seen, now = list(requests), [], 0.0
    while unsent or not replica.is_idle:
        now += interval
        while unsent and unsent[0].arrival_s < now:
            request = unsent.pop(0)
            replica.send(request, request.arrival_s)
        replica.advance(now)
        seen.append((now, replica.events.until(now) if replica.events else []))
    return seen


@settings(max_examples=100, deadline=None)
@given(traffic(), limits, steps, st.sampled_from([0.5, 3.3, 15.0, 400.0]))
def test_requests_sent_while_it_runs_are_served_as_if_all_were_known_before(
    requests: list[SimulatedRequest], engine: EngineLimits, times: LinearSteps, interval: float
) -> None:
    replica = ReplicaSimulation(times, engine)

    _serve(replica, requests, interval)

    result = simulate(times, engine, requests)
    served = [replica.request_times(number) for number in range(len(requests))]
    assert [s.first_token_s - s.arrival_s for s in served] == pytest.approx(result.ttft_s, rel=1e-9)
    assert [s.finished_s - s.arrival_s for s in served] == pytest.approx(result.e2e_s, rel=1e-9)
    assert sum(s.preemptions for s in served) == replica.preemptions == result.preemptions
    assert (replica.steps, replica.peak_blocks) == (result.steps, result.peak_blocks)


@settings(max_examples=100, deadline=None)
@given(traffic(), limits, steps, st.sampled_from([0.5, 3.3, 15.0]))
def test_events_are_those_of_the_requests_and_no_interval_sees_a_later_one(
    requests: list[SimulatedRequest], engine: EngineLimits, times: LinearSteps, interval: float
) -> None:
    replica = ReplicaSimulation(times, engine, events=EngineEvents())

    intervals = _serve(replica, requests, interval)

    assert replica.events is not None
    leftover = replica.events.until(math.inf)
    for end, events in intervals:
        assert all(event.at <= end for event in events)
    events = [*(event for _, events in intervals for event in events), *leftover]
    assert all(one.at <= other.at for one, other in pairwise(events))
    gaps = [event for event in events if event.kind is EngineEventKind.TOKEN_GAPS]
    assert sum(gap.request for gap in gaps) == sum(request.output_tokens - 1 for request in requests)
    seconds = [last - first for first, last in zip(replica.first, replica.last, strict=True)]
    assert sum(gap.request * gap.seconds for gap in gaps) == pytest.approx(sum(seconds), abs=1e-6)
    first = {e.request: e.at for e in events if e.kind is EngineEventKind.FIRST_TOKEN}
    assert [first[number] for number in range(len(requests))] == replica.first
    last = {e.request: e.at for e in events if e.kind is EngineEventKind.FINISHED}
    assert [last[number] for number in range(len(requests))] == replica.last


def test_tokens_of_steps_that_ended_are_counted_while_a_long_answer_runs() -> None:
    replica = ReplicaSimulation(LinearSteps(step=0.1), EngineLimits(), events=EngineEvents())
    replica.send(SimulatedRequest(0.0, 1, 1000), 0.0)

    counts = []
    for scrape in (15.02, 30.02):
        replica.advance(scrape)
        assert replica.events is not None
        counts.append(
            sum(e.request for e in replica.events.until(scrape) if e.kind is EngineEventKind.TOKEN_GAPS)
        )

    assert counts == [149, 150]


def test_a_step_that_has_begun_is_taken_whole_and_the_next_is_not_begun() -> None:
    replica = ReplicaSimulation(LinearSteps(step=1.0), EngineLimits())
    replica.send(SimulatedRequest(0.0, 1, 100), 0.0)

    replica.advance(4.5)

    assert (replica.now, replica.steps) == (5.0, 5)
    assert replica.gauges(4.5) == EngineGauges(running=1, waiting=0, kv_usage=0.0)


def test_gauges_count_what_waits_and_the_blocks_that_running_requests_hold() -> None:
    replica = ReplicaSimulation(LinearSteps(), EngineLimits(max_running=1, kv_tokens=160, block_tokens=BLOCK))
    for _ in range(3):
        replica.send(SimulatedRequest(0.0, 16, 20), 0.0)

    replica.advance(1.0)

    assert replica.gauges(1.0) == EngineGauges(running=1, waiting=2, kv_usage=4 / 40)
    finish = replica.drain()
    assert replica.gauges(finish + 1.0) == EngineGauges(running=0, waiting=0, kv_usage=0.0)


def test_a_lost_replica_leaves_the_requests_that_have_not_finished() -> None:
    replica = ReplicaSimulation(LinearSteps(), EngineLimits())
    for answer in (2, 50, 3):
        replica.send(SimulatedRequest(0.0, 1, answer), 0.0)

    replica.advance(10.0)

    assert replica.unfinished() == [1]
    assert (replica.outstanding, replica.is_idle) == (1, False)


def test_a_request_that_waits_for_too_long_expires_and_the_next_one_is_served() -> None:
    replica = ReplicaSimulation(LinearSteps(), EngineLimits(max_running=1), max_wait_s=15.0)
    for at in (0.0, 1.0, 9.0):
        replica.send(SimulatedRequest(at, 1, 20), at)

    replica.drain()

    served = [not math.isnan(first) for first in replica.first]
    assert served == [True, False, True]
    assert replica.is_idle
    assert replica.unfinished() == []


def test_a_prompt_with_a_cached_beginning_computes_the_rest() -> None:
    times = LinearSteps(step=0.0, prompt=0.001)
    replica = ReplicaSimulation(times, EngineLimits(), prefixes=PrefixCache(None))
    prompt = 3 * BLOCK_TOKENS
    replica.send(SimulatedRequest(0.0, prompt, 1, (1, 2, 3)), 0.0)
    replica.send(SimulatedRequest(50.0, prompt, 1, (1, 2, 9)), 50.0)
    replica.send(SimulatedRequest(90.0, prompt, 1, (1, 2, 3)), 90.0)

    replica.drain()

    ttft = [first - arrival for first, arrival in zip(replica.first, replica.arrival, strict=True)]
    assert ttft == pytest.approx([1.536, 0.512, 0.001])  # the last token is computed to sample from


def test_the_least_recently_used_prefix_is_evicted_from_its_end() -> None:
    cache = PrefixCache(4 * BLOCK_TOKENS)

    cache.store((1, 2, 3))
    cache.store((7, 8))

    assert cache.cached_tokens((1, 2, 3)) == 2 * BLOCK_TOKENS
    assert cache.cached_tokens((7, 8, 9)) == 2 * BLOCK_TOKENS
    assert cache.cached_tokens((2, 3)) == BLOCK_TOKENS


def test_a_request_that_can_never_fit_is_refused_when_it_is_sent() -> None:
    replica = ReplicaSimulation(LinearSteps(), EngineLimits(kv_tokens=64, block_tokens=16))

    with pytest.raises(ValueError, match="needs 5 KV blocks, the cache has 4"):
        replica.send(SimulatedRequest(0.0, 60, 6), 0.0)

    assert replica.is_idle
