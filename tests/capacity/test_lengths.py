"""Lengths of prompts and answers, and what becomes of a replica's queue and room with them."""

from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.linear_steps import LinearSteps
from benchmarks.open_loop import max_rate, open_loop
from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.load.latency import simulate_open
from tangram.capacity.load.traffic import open_traffic, uniforms
from tangram.capacity.sizing import SizingRequest, size
from tangram.capacity.sizing.assess import mean_context
from tangram.catalog import known_model
from tangram.fleet import Lengths, Objective, Shape
from tangram.fleet.lengths import MOST_CLASSES, MOST_P90, USUAL_SIGMA, around, counted, fixed

# About an 8B model on one H100, in seconds.
STEPS = LinearSteps(step=0.01, sequence=1.5e-5, context=2e-8, prompt=2.2e-5)
LIMITS = EngineLimits(max_running=64)


def wide(mean):
    return Lengths(mean, 2.2 * mean)


@given(mean=st.floats(1, 1e6), ratio=st.floats(1, MOST_P90))
def test_a_mean_and_a_p90_are_those_of_the_lengths(mean, ratio):
    lengths = Lengths(mean, ratio * mean)

    assert lengths.quantile(0.9) == pytest.approx(lengths.p90, rel=1e-3)
    assert 0 <= lengths.sigma < 1.2816


@pytest.mark.parametrize(("ratio", "sigma"), [(1.0, 0.0), (1.5, 0.3702), (2.0, USUAL_SIGMA), (2.27, 1.2292)])
def test_the_spread_follows_from_the_p90(ratio, sigma):
    assert Lengths(1000, 1000 * ratio).sigma == pytest.approx(sigma, abs=2e-3)


def test_drawn_lengths_have_the_mean_and_the_p90_asked_for():
    uniform, lengths = uniforms(4), Lengths(1000, 1400)
    drawn = sorted(lengths.quantile(next(uniform)) for _ in range(50_000))

    assert fmean(drawn) == pytest.approx(1000, rel=0.01)
    assert drawn[45_000] == pytest.approx(1400, rel=0.01)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 50)), min_size=1, max_size=12))
def test_counted_lengths_keep_their_mean_and_percentiles(pairs):
    lengths = counted(pairs)
    every = sorted(tokens for tokens, count in pairs for _ in range(count))

    mean = fmean(every)
    assert lengths.mean == pytest.approx(mean)
    assert lengths.p90 == every[-(-9 * len(every) // 10) - 1]
    assert lengths.cv2 == pytest.approx(fmean((t / mean - 1) ** 2 for t in every), rel=1e-6, abs=1e-9)


def test_many_different_lengths_become_few_classes_that_say_the_same():
    pairs = [(tokens, 1 + tokens % 7) for tokens in range(1, 20_001)]
    lengths, every = counted(pairs), [t for t, count in pairs for _ in range(count)]
    mean = fmean(every)

    assert len(lengths.counts) < 2 * MOST_CLASSES
    assert lengths.mean == pytest.approx(mean)
    assert lengths.p90 == pytest.approx(every[9 * len(every) // 10], rel=0.03)
    assert lengths.cv2 == pytest.approx(fmean((t / mean - 1) ** 2 for t in every), rel=1e-3)


@pytest.mark.parametrize("pairs", [[], [(5, 0)]])
def test_without_a_request_there_are_no_lengths(pairs):
    with pytest.raises(ValueError, match="no length"):
        counted(pairs)


def test_a_number_means_lengths_around_it():
    usual = around(1000), around(200)

    assert open_loop(STEPS, LIMITS, 1000, 200, 5.0) == open_loop(STEPS, LIMITS, *usual, 5.0)
    assert open_traffic(50, 1.0, 1000, 200, 1.0, 3) == open_traffic(50, 1.0, *usual, 1.0, 3)


@pytest.mark.parametrize(("prompt", "answer"), [(1000, 200), (4000, 60), (300, 400)])
def test_what_varies_less_waits_less_and_one_replica_carries_more(prompt, answer):
    peak = open_loop(STEPS, LIMITS, prompt, answer, 0.0).peak_rate
    kinds = [(kind(prompt), kind(answer)) for kind in (fixed, around, wide)]
    waits = [open_loop(STEPS, LIMITS, *each, 0.85 * peak).ttft_s.p90 for each in kinds]
    rates = [max_rate(STEPS, LIMITS, *each, ttft=Objective(90, 1e3 * waits[1])) for each in kinds]

    assert waits == sorted(waits)
    assert rates == sorted(rates, reverse=True)
    assert waits[0] < 0.95 * waits[1]


@pytest.mark.parametrize("kind", [fixed, wide])
def test_first_tokens_are_nearer_to_the_simulation_than_with_the_usual_lengths(kind):
    """Mean of |predicted / simulated - 1| of the mean TTFT, beside that of lengths with P90 = 2 x mean."""
    ours, usual = [], []
    for prompt, answer in ((4000, 60), (1000, 200)):
        lengths = kind(prompt), kind(answer)
        peak = open_loop(STEPS, LIMITS, *lengths, 0.0).peak_rate
        for used in (0.7, 0.85):
            simulated = simulate_open(STEPS, LIMITS, *lengths, used * peak, requests=4000)[0].ttft_s.mean
            found = open_loop(STEPS, LIMITS, *lengths, used * peak).ttft_s.mean
            before = open_loop(STEPS, LIMITS, prompt, answer, used * peak).ttft_s.mean
            ours.append(abs(found / simulated - 1))
            usual.append(abs(before / simulated - 1))

    assert fmean(ours) < 0.2
    assert fmean(ours) < 0.7 * fmean(usual)


def test_answers_that_are_alike_need_less_room():
    chat = SizingRequest(1024, 256, 4.0, ttft_ms=500, tpot_ms=40, max_model_len=4096)
    alike = replace(chat, input_tokens=fixed(1024), output_tokens=fixed(256))
    model, among = known_model("llama-3.1-8b"), [Shape("H100-80GB-SXM", "1g.10gb", 1, "int4")]

    (usual,) = size(model, chat, among=among).rows
    (same,) = size(model, alike, among=among).rows

    assert mean_context(alike) == 1024 + 128
    assert mean_context(chat) == pytest.approx(1024 + 128 * 1.8244, rel=1e-3)
    assert same.concurrent == pytest.approx(2 * usual.concurrent, abs=1)  # P90 is half as long
    assert same.max_rate > usual.max_rate


def test_the_longest_request_to_accept_covers_the_lengths():
    model = known_model("llama-3.1-8b")

    assert SizingRequest(fixed(1024), fixed(256), 1.0).model_length(model) == 2048
    assert SizingRequest(1024, 256, 1.0).model_length(model) == 8192
    assert SizingRequest(counted([(100, 98), (9000, 2)]), fixed(1), 1.0).model_length(model) == 16384
