"""Whatever becomes of a request, the engine goes on and its blocks return."""

import logging
import random

import pytest
import torch

from tangram_engine.checkpoint import CheckpointError
from tangram_engine.run import OutOfMemory
from tangram_engine.sample.params import SamplingParams
from tangram_engine.schedule import Request


@pytest.mark.parametrize(
    ("prompt", "params"),
    [
        ((), {}),
        ((199,), {}),
        ((-1,), {}),
        ((5,) * 256, {}),
        ((5,), {"max_tokens": 0}),
        ((5,), {"temperature": float("nan")}),
        ((5,), {"temperature": -1.0}),
        ((5,), {"repetition_penalty": 0.0}),
        ((5,), {"frequency_penalty": float("inf")}),
        ((5,), {"logprobs": 21}),
    ],
)
def test_a_request_that_cannot_run_ends_with_an_error_and_hurts_nobody(engine, run, greedy, prompt, params):
    one = engine()
    good = greedy("good", [5, 6, 7])
    bad = Request("bad", prompt, SamplingParams(**({"max_tokens": 4} | params)), arrival=0.0)
    outputs = run(one, [good, bad])
    assert [output.finish for output in outputs["bad"]] == ["error"]
    assert [output.finish for output in outputs["good"]] == [None] * 7 + ["length"]


@pytest.mark.parametrize("lag", [0, 1])
def test_logits_that_are_not_finite_end_only_their_request(engine, run, greedy, monkeypatch, lag):
    one = engine(lag=lag)
    compute = one._runner.decoder.logits

    def spoilt(hidden, out=None):
        logits = compute(hidden, out)
        if len(logits) == 3:
            logits[1] = float("nan")
        return logits

    monkeypatch.setattr(one._runner.decoder, "logits", spoilt)
    outputs = run(one, [greedy(name, [5, 6, number]) for number, name in enumerate("abc")])
    assert sorted(outputs[name][-1].finish for name in "abc") == ["error", "length", "length"]


@pytest.mark.parametrize(("budget", "lag"), [(64, 0), (8, 0), (8, 1)])
def test_a_request_whose_numbers_overflow_poisons_nobody_beside_or_after_it(engine, run, greedy, budget, lag):
    one = engine(lag=lag, max_num_batched_tokens=budget, kv_cache_bytes=64 * 4096, max_model_len=64)
    good = [greedy(f"good {n}", [5, 6, 7 + n] * (1 + 4 * n), 6) for n in range(3)]
    clean = run(one, good)
    one._runner.decoder.weights.embedding[77] = float("nan")
    bad = [greedy(f"bad {n}", [9 + n, 77] * (3 + 7 * n), 6) for n in range(3)]
    for _ in range(3):
        outputs = run(one, [bad[0], good[0], bad[1], good[1], good[2], bad[2]])
        for request in good:
            tokens = [output.token for output in outputs[request.id]]
            assert tokens == [output.token for output in clean[request.id]]
        assert [outputs[request.id][-1].finish for request in bad] == ["error"] * 3


def test_an_id_in_use_is_refused_and_the_first_request_goes_on(engine, greedy):
    one = engine()
    one.add(greedy("a", [5, 6], 2))
    one.add(greedy("a", [7, 8], 2))
    finishes = []
    while one.has_work():
        finishes += [output.finish for output in one.step()[0]]
    assert finishes == ["error", None, "length"]


@pytest.mark.parametrize("lag", [0, 1])
def test_a_failure_of_the_whole_step_raises(engine, greedy, monkeypatch, lag):
    one = engine(lag=lag)
    one.add(greedy("a", [5, 6]))
    monkeypatch.setattr(one._runner.decoder, "forward", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        one.step()
    assert not one.abort("a")  # it ended with the step


@pytest.mark.parametrize("lag", [0, 1])
def test_aborts_at_any_time_return_every_block(engine, greedy, lag):
    one, chance = engine(lag=lag, max_model_len=64, kv_cache_bytes=40_000), random.Random(3)
    alive = set()
    for number in range(120):
        if chance.random() < 0.5:
            prompt = [5] * chance.randint(1, 30) + [chance.randrange(3, 199)]
            one.add(greedy(str(number), prompt, chance.randint(1, 20)))
            alive.add(str(number))
        if alive and chance.random() < 0.3:
            name = chance.choice(sorted(alive))
            assert one.abort(name)
            assert not one.abort(name)
            alive.discard(name)
        outputs, stats = one.step()
        alive -= {output.request_id for output in outputs if output.finish}
        assert stats.running + stats.waiting == len(alive)
        one.audit()
    for name in alive:
        assert one.abort(name)
    while one.has_work():  # a step in flight is the last to use its blocks
        assert one.step()[0] == []


def test_statistics_count_what_happened(engine, greedy):
    one = engine(max_num_batched_tokens=8)
    one.add(greedy("a", [5] * 10, 3))
    stats = []
    while one.has_work():
        stats.append(one.step()[1])
    assert [s.batch_tokens for s in stats] == [8, 2, 1, 1]
    assert [s.prompt_tokens for s in stats] == [8, 2, 0, 0]
    assert [s.prefix_queries for s in stats] == [10, 0, 0, 0]
    assert [s.kv_used_blocks for s in stats] == [3, 3, 3, 0]
    one.add(greedy("b", [5] * 10, 1))
    assert one.step()[1].prefix_hits == 8


def test_too_small_a_pool_is_refused_with_the_length_that_would_work(engine):
    with pytest.raises(OutOfMemory, match="largest workable max_model_len is 36"):
        engine(kv_cache_bytes=9 * 4 * 2 * 2 * 32 * 4)
    engine(kv_cache_bytes=9 * 4 * 2 * 2 * 32 * 4, max_model_len=36)


def test_more_positions_than_the_model_has_are_refused(engine):
    with pytest.raises(CheckpointError, match="max_position_embeddings, 256"):
        engine(max_model_len=257)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_runs_and_says_so(engine, run, greedy, dtype):
    one = engine(dtype=dtype)
    outputs = run(one, [greedy("a", range(3, 40)), greedy("b", [9])])
    assert one.info.dtype == dtype
    assert outputs["a"][-1].finish == outputs["b"][-1].finish == "length"


def test_torch_keeps_to_the_threads_it_was_given(engine):
    engine()
    assert torch.get_num_threads() == 1


def test_errors_are_logged_with_the_request_and_the_reason(engine, run, caplog):
    with caplog.at_level(logging.ERROR):
        run(engine(), [Request("bad", (), SamplingParams(max_tokens=1), arrival=0.0)])
    assert "request bad" in caplog.text
    assert "prompt has 0 tokens" in caplog.text
