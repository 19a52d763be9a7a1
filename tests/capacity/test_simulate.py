"""The step simulation: what must hold of it whatever is served."""

import math
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.linear_steps import LinearSteps
from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.load.simulate import SimResult, simulate
from tangram.capacity.load.traffic import SimulatedRequest, gap, open_traffic, uniforms
from tangram.fleet.lengths import around
from tests.support.simulated_requests import BLOCK, limits, traffic

steps = st.sampled_from(
    [
        LinearSteps(step=1.0),
        LinearSteps(step=0.7, sequence=0.11, context=0.003, prompt=0.05),
        LinearSteps(step=0.7, sequence=0.11, context=0.003, prompt=0.05, windows=(20, 45)),
    ]
)
loop = st.one_of(st.none(), st.integers(1, 15))


@settings(max_examples=100, deadline=None)
@given(traffic(), limits, steps, loop)
def test_every_request_is_served_once_and_its_first_token_comes_before_its_last(
    requests: list[SimulatedRequest], engine: EngineLimits, times: LinearSteps, concurrency: int | None
) -> None:
    result = simulate(times, engine, requests, concurrency)

    assert sorted(result.admitted) == list(range(len(requests)))
    for queue, first, last in zip(result.queue_s, result.ttft_s, result.e2e_s, strict=True):
        assert 0 <= queue < first <= last + 1e-9
    assert result.duration_s == pytest.approx(_busy(result) + _idle(result))


@settings(max_examples=100, deadline=None)
@given(traffic(), limits, steps)
def test_every_token_is_computed_in_a_step(
    requests: list[SimulatedRequest], engine: EngineLimits, times: LinearSteps
) -> None:
    result = simulate(times, engine, requests)

    prompts = sum(request.input_tokens for request in requests)
    assert result.prefill_tokens == prompts if not result.preemptions else result.prefill_tokens > prompts
    longest = max(request.output_tokens for request in requests)
    budget = engine.max_batched_tokens
    assert result.steps >= max(longest, math.ceil(prompts / budget))
    assert result.mean_running <= engine.max_running + 1e-9


@settings(max_examples=120, deadline=None)
@given(traffic(), limits, steps, loop)
def test_the_cache_never_holds_more_blocks_than_it_has(
    requests: list[SimulatedRequest], engine: EngineLimits, times: LinearSteps, concurrency: int | None
) -> None:
    result = simulate(times, engine, requests, concurrency)

    largest = max(-(-(r.input_tokens + r.output_tokens - 1) // BLOCK) for r in requests)
    assert result.peak_blocks >= largest
    if engine.kv_blocks is not None:
        assert result.peak_blocks <= engine.kv_blocks
    else:
        assert result.preemptions == 0


@settings(max_examples=100, deadline=None)
@given(traffic(), limits, steps, loop)
def test_who_comes_first_is_admitted_first(
    requests: list[SimulatedRequest], engine: EngineLimits, times: LinearSteps, concurrency: int | None
) -> None:
    result = simulate(times, engine, requests, concurrency)

    assert list(result.admitted) == sorted(result.admitted)


@settings(max_examples=120, deadline=None)
@given(traffic(), limits, steps, loop)
def test_leaping_over_steps_gives_what_taking_each_gives(
    requests: list[SimulatedRequest], engine: EngineLimits, times: LinearSteps, concurrency: int | None
) -> None:
    leaps = simulate(times, engine, requests, concurrency)
    each = simulate(times, engine, requests, concurrency, steps_at_once=1)

    assert (leaps.steps, leaps.preemptions, leaps.peak_blocks, leaps.prefill_tokens) == (
        each.steps,
        each.preemptions,
        each.peak_blocks,
        each.prefill_tokens,
    )
    assert leaps.ttft_s == pytest.approx(each.ttft_s, rel=1e-9)
    assert leaps.e2e_s == pytest.approx(each.e2e_s, rel=1e-9)
    assert leaps.mean_running == pytest.approx(each.mean_running, rel=1e-9)


@pytest.mark.parametrize("arrival", [0.3, 0.6, 0.8, 1.1, 1.9])
def test_who_comes_when_a_step_ends_is_seen_however_sums_are_rounded(arrival: float) -> None:
    requests = [SimulatedRequest(0.0, 1, 40), SimulatedRequest(arrival, 1, 1)]
    found = [
        simulate(LinearSteps(step=0.1), EngineLimits(4, 64, None, BLOCK), requests, None, steps_at_once=most)
        for most in (1, 1000)
    ]

    assert [result.ttft_s[1] for result in found] == pytest.approx([0.1, 0.1])


def test_one_request_takes_its_chunks_and_a_step_per_token() -> None:
    times = LinearSteps(step=1.0, sequence=0.1, prompt=0.01)

    result = simulate(times, EngineLimits(max_batched_tokens=100), [SimulatedRequest(3.0, 250, 5)])

    assert result.ttft_s == pytest.approx((3 * 1.0 + 250 * 0.01,))
    assert result.tpot_s == pytest.approx((1.1,))
    assert result.steps == 7
    assert result.utilisation == pytest.approx(9.9 / 12.9)


def test_a_prompt_beside_a_decode_delays_it_by_what_the_prompt_costs() -> None:
    times = LinearSteps(step=1.0, prompt=0.01)

    result = simulate(times, EngineLimits(), [SimulatedRequest(0.0, 100, 11), SimulatedRequest(4.5, 300, 1)])

    assert result.ttft_s == pytest.approx((2.0, (5.0 - 4.5) + 1.0 + 3.0))
    assert result.e2e_s[0] == pytest.approx(2.0 + 10 * 1.0 + 3.0)


def test_the_request_that_came_last_gives_its_blocks_back_and_is_computed_again() -> None:
    engine = EngineLimits(max_running=2, kv_tokens=16, block_tokens=4)

    result = simulate(LinearSteps(), engine, [SimulatedRequest(0.0, 4, 10), SimulatedRequest(0.0, 4, 6)])

    # Both prompts fill a block. The fourth takes the last two; then one of them is in the way.
    assert result.preemptions == 1
    assert result.e2e_s[0] == pytest.approx(10.0)
    assert result.e2e_s[1] > 10.0
    assert result.peak_blocks <= 4


def test_a_request_that_can_never_fit_is_refused() -> None:
    engine = EngineLimits(kv_tokens=64, block_tokens=16)

    with pytest.raises(ValueError, match="needs 5 KV blocks, the cache has 4"):
        simulate(LinearSteps(), engine, [SimulatedRequest(0.0, 60, 6)])


@pytest.mark.parametrize(("prompt", "answer"), [(0, 1), (1, 0)])
def test_a_request_of_no_tokens_is_refused(prompt: int, answer: int) -> None:
    with pytest.raises(ValueError, match="at least one token"):
        simulate(LinearSteps(), EngineLimits(), [SimulatedRequest(0.0, prompt, answer)])


def test_nothing_to_serve_takes_no_time() -> None:
    result = simulate(LinearSteps(), EngineLimits(), [])

    assert (result.duration_s, result.utilisation, result.ttft_s) == (0.0, 0.0, ())


@pytest.mark.parametrize("used", [0.3, 0.5, 0.7])
def test_prompts_of_one_length_one_at_a_time_wait_as_in_m_d_1(used: float) -> None:
    requests = _poisson(30_000, rate=used, prompt=100, answer=1)

    result = simulate(LinearSteps(step=0.0, prompt=0.01), EngineLimits(max_running=1), requests)

    assert fmean(result.queue_s) == pytest.approx(used / (2 * (1 - used)), rel=0.06)  # Pollaczek-Khinchine


def test_prompts_one_at_a_time_wait_as_lindley_says() -> None:
    requests = open_traffic(5000, 0.9 / 3.0, 300, 1, 2.0, seed=6)
    requests = [replace(request, output_tokens=1) for request in requests]

    result = simulate(
        LinearSteps(step=0.0, prompt=0.01), EngineLimits(max_running=1, max_batched_tokens=10**6), requests
    )

    waits = [0.0]
    for request, following in pairwise(requests):
        gap_s = following.arrival_s - request.arrival_s
        waits.append(max(0.0, waits[-1] + 0.01 * request.input_tokens - gap_s))
    assert result.queue_s == pytest.approx(waits, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("slots", "used"), [(4, 0.7), (16, 0.85)])
def test_answers_that_do_not_disturb_each_other_wait_as_in_m_m_c(slots: int, used: float) -> None:
    # Exponential (geometric) answers of 400 steps on average; a step is short against them.
    uniform = uniforms(5)
    answers = [max(1, round(-400 * math.log(next(uniform)))) for _ in range(20_000)]
    arrivals = _poisson(len(answers), rate=used * slots / 400, prompt=1, answer=1)
    requests = [SimulatedRequest(a.arrival_s, 1, n) for a, n in zip(arrivals, answers, strict=True)]

    result = simulate(LinearSteps(step=1.0), EngineLimits(max_running=slots), requests)

    assert fmean(result.queue_s) == pytest.approx(_erlang_c_wait(slots, used, 400.0), rel=0.15)


def test_more_load_never_shortens_the_wait() -> None:
    times = LinearSteps(step=0.02, sequence=0.0002, prompt=0.00005)
    engine = EngineLimits(max_running=32)

    waits = [
        fmean(simulate(times, engine, open_traffic(2500, rate, 500, 100, 1.0, seed=9)).ttft_s)
        for rate in (1, 2, 4, 8, 11, 12, 13, 16)
    ]

    assert waits == sorted(waits)
    assert waits[-1] > 50 * waits[0]


def test_running_requests_follow_littles_law() -> None:
    requests = open_traffic(5000, 5.0, 400, 80, 1.0, seed=2)

    result = simulate(LinearSteps(step=0.02, prompt=0.0001), EngineLimits(), requests)

    residence = [e2e - queue for e2e, queue in zip(result.e2e_s, result.queue_s, strict=True)]
    assert result.mean_running == pytest.approx(sum(residence) / result.duration_s, rel=1e-9)


def test_a_closed_loop_keeps_its_number_of_requests_outstanding() -> None:
    result = simulate(LinearSteps(), EngineLimits(), [SimulatedRequest(0.0, 10, 20)] * 300, concurrency=10)

    assert result.mean_running == pytest.approx(10, rel=0.06)  # each is replaced a step late


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 2.0, 4.0])
def test_gaps_have_the_mean_and_variation_asked_for(cv: float) -> None:
    uniform = uniforms(3)
    gaps = [gap(next(uniform), 2.0, cv) for _ in range(200_000)]

    mean = fmean(gaps)
    deviation = math.sqrt(fmean((value - mean) ** 2 for value in gaps))
    assert mean == pytest.approx(2.0, rel=0.03)
    assert deviation / mean == pytest.approx(cv, rel=0.1, abs=1e-9)


def test_lengths_have_the_mean_asked_for_and_a_p90_of_twice_that() -> None:
    uniform = uniforms(4)
    lengths = sorted(around(1000).quantile(next(uniform)) for _ in range(100_000))

    assert fmean(lengths) == pytest.approx(1000, rel=0.02)
    assert lengths[90_000] == pytest.approx(2000, rel=0.02)


def test_the_same_seed_gives_the_same_traffic_on_every_machine() -> None:
    # The first outputs of SplitMix64 seeded with 0, as its authors publish them.
    stream = uniforms(0)

    assert next(stream) * 2**64 == pytest.approx(0xE220A8397B1DCDAF, rel=1e-12)
    assert next(stream) * 2**64 == pytest.approx(0x6E789E6AA1B965F4, rel=1e-12)


def _poisson(count: int, rate: float, prompt: int, answer: int) -> list[SimulatedRequest]:
    uniform, now, requests = uniforms(13), 0.0, []
    for _ in range(count):
        now -= math.log(next(uniform)) / rate
        requests.append(SimulatedRequest(now, prompt, answer))
    return requests


def _erlang_c_wait(servers: int, used: float, service: float) -> float:
    offered = used * servers
    terms = [offered**k / math.factorial(k) for k in range(servers)]
    last = offered**servers / math.factorial(servers) / (1 - used)
    return last / (sum(terms) + last) * service / (servers * (1 - used))


def _busy(result: SimResult) -> float:
    return result.prefill_s + result.decode_s


def _idle(result: SimResult) -> float:
    return result.duration_s - _busy(result)
