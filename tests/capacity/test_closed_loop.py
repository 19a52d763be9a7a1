"""The closed loop in closed form, judged by the step simulation."""

from statistics import fmean, median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.linear_steps import LinearSteps
from tangram.capacity.load.closed_loop import closed_loop
from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.load.simulate import simulate
from tangram.capacity.load.traffic import SimulatedRequest, uniforms

# About an 8B model on one H100, in seconds.
STEPS = LinearSteps(step=0.01, sequence=1.5e-5, context=2e-8, prompt=2.2e-5)
LIMITS = EngineLimits(max_running=512)
SHAPES = [
    (prompt, answer, concurrency)
    for prompt, answer in ((1024, 256), (1024, 1024), (4096, 256), (2000, 100), (12_000, 300))
    for concurrency in (4, 16, 64)
]


def _measured(
    prompt: int, answer: int, concurrency: int, waves: int, counted_from: int, limits: EngineLimits = LIMITS
) -> tuple[float, float]:
    """Mean TTFT and TPOT of a benchmark whose lengths vary between 80 % and 100 %, as clients draw them."""
    uniform = uniforms(3)
    requests = [
        SimulatedRequest(
            0.0, round(prompt * (1 - 0.2 * next(uniform))), round(answer * (1 - 0.2 * next(uniform)))
        )
        for _ in range(concurrency * waves)
    ]
    result = simulate(STEPS, limits, requests, concurrency)
    first = concurrency * counted_from
    return fmean(result.ttft_s[first:]), fmean(result.tpot_s[first:])


def test_after_a_warm_up_it_is_what_the_simulation_says() -> None:
    ttft_errors, tpot_errors = [], []
    for prompt, answer, concurrency in SHAPES:
        ttft, tpot = _measured(prompt, answer, concurrency, waves=18, counted_from=6)
        loop = closed_loop(STEPS, LIMITS, 0.9 * prompt, 0.9 * answer, concurrency)
        ttft_errors.append(abs(loop.ttft_s / ttft - 1))
        tpot_errors.append(abs(loop.tpot_s / tpot - 1))

    assert median(ttft_errors) < 0.05
    assert max(ttft_errors) < 0.20
    assert median(tpot_errors) < 0.05
    assert max(tpot_errors) < 0.10


@pytest.mark.parametrize("prompt", [128, 1024, 8192])
@pytest.mark.parametrize("concurrency", [1, 2, 4])
def test_a_request_among_few_waits_for_the_others_alone(prompt: int, concurrency: int) -> None:
    """Its own prompt is over before it decodes, and alone it misses no step."""
    ttft, tpot = _measured(prompt, 64, concurrency, waves=40, counted_from=6)
    loop = closed_loop(STEPS, LIMITS, 0.9 * prompt, 0.9 * 64, concurrency)

    assert loop.tpot_s == pytest.approx(tpot, rel=0.02)
    assert loop.ttft_s == pytest.approx(ttft, rel=0.12)


def test_of_ten_waves_without_a_warm_up_the_first_is_a_burst() -> None:
    errors = []
    for prompt, answer, concurrency in SHAPES:
        ttft, _ = _measured(prompt, answer, concurrency, waves=10, counted_from=0)
        loop = closed_loop(STEPS, LIMITS, 0.9 * prompt, 0.9 * answer, concurrency, burst=0.1)
        errors.append(abs(loop.ttft_s / ttft - 1))

    assert median(errors) < 0.08
    assert max(errors) < 0.25


def test_a_single_wave_is_all_burst() -> None:
    for prompt, answer, concurrency in ((1024, 256, 64), (4096, 256, 64), (1024, 1024, 128)):
        ttft, tpot = _measured(prompt, answer, concurrency, waves=1, counted_from=0)
        loop = closed_loop(STEPS, LIMITS, 0.9 * prompt, 0.9 * answer, concurrency, burst=1.0)

        assert loop.ttft_s == pytest.approx(ttft, rel=0.1)
        assert loop.tpot_s == pytest.approx(tpot, rel=0.1)


@pytest.mark.parametrize("kv_tokens", [None, 14_000])
def test_who_has_no_slot_waits_for_one(kv_tokens: int | None) -> None:
    limits = EngineLimits(max_running=16, kv_tokens=kv_tokens)

    ttft, tpot = _measured(1024, 256, 48, waves=20, counted_from=8, limits=limits)
    loop = closed_loop(STEPS, limits, 0.9 * 1024, 0.9 * 256, 48)

    assert loop.running <= 16
    assert loop.ttft_s == pytest.approx(ttft, rel=0.15)
    assert loop.tpot_s == pytest.approx(tpot, rel=0.1)


def test_prompts_that_fill_every_step_are_the_bottleneck_and_not_the_slots() -> None:
    limits = EngineLimits(max_running=512, max_batched_tokens=1024)

    ttft, tpot = _measured(4096, 64, 128, waves=20, counted_from=8, limits=limits)
    loop = closed_loop(STEPS, limits, 0.9 * 4096, 0.9 * 64, 128)

    assert loop.decoding < 64
    assert loop.ttft_s == pytest.approx(ttft, rel=0.1)
    assert loop.tpot_s == pytest.approx(tpot, rel=0.1)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 20_000),
    st.integers(1, 2000),
    st.integers(1, 600),
    st.floats(0, 1),
    st.sampled_from([None, 30_000, 10**6]),
)
def test_one_request_more_is_no_faster_for_anybody_and_requests_are_conserved(
    prompt: int, answer: int, concurrency: int, burst: float, kv_tokens: int | None
) -> None:
    limits = EngineLimits(kv_tokens=kv_tokens)

    loop = closed_loop(STEPS, limits, prompt, answer, concurrency, burst)
    more = closed_loop(STEPS, limits, prompt, answer, concurrency + 1, burst)
    warm = closed_loop(STEPS, limits, prompt, answer, concurrency)

    assert more.tpot_s >= loop.tpot_s * (1 - 1e-3)
    assert more.ttft_s >= loop.ttft_s * 0.95  # a step more or less of the burst
    assert 0 < loop.decoding <= loop.running <= concurrency
    residence = warm.ttft_s + (answer - 1) * warm.tpot_s
    assert warm.rate * residence == pytest.approx(concurrency, rel=1e-6)
