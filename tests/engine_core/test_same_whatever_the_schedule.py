"""How a request is scheduled changes nothing but rounding.

Two runs are compared token by token, and their log-probabilities to 1e-4, up to the first place where
the two most likely tokens are closer than rounding; the share of requests cut short there is bounded.
"""

import random
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tangram_engine.checkpoint import read_checkpoint
from tangram_engine.run.memory import block_bytes

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4
FEW = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
FAMILIES = ["llama", "qwen2-tied", "qwen3"]


def prompt_of(length, seed):
    return torch.randint(3, 199, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def assert_same(first, second):
    assert first.keys() == second.keys()
    cut = sum(not same_until_unclear(first[name], second[name]) for name in first)
    assert cut <= len(first) // 8


def same_until_unclear(first, second):
    """Compare; False if a near tie ended the comparison early."""
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        clear = one.top_logprobs[0][1] - one.top_logprobs[1][1] > 2 * TOLERANCE
        if not clear and one.token != other.token:
            return False
        assert one.token == other.token
        assert one.logprob == pytest.approx(other.logprob, abs=TOLERANCE)
        assert one.finish == other.finish
    return True


def each_alone(engine, run, requests, **options):
    """Every request in an engine of its own past: no company, no cache, no chunks."""
    outputs = {}
    for request in requests:
        outputs |= run(engine(max_num_batched_tokens=256, **options), [request])
    return outputs


@FEW
@given(length=st.integers(2, 120), budget=st.integers(1, 40), variant=st.sampled_from(FAMILIES))
def test_chunked_is_unchunked(engine, run, greedy, length, budget, variant):
    requests = [greedy("a", prompt_of(length, length))]
    chunked = engine(variant, max_num_batched_tokens=budget, max_num_seqs=1)
    assert_same(run(chunked, requests), each_alone(engine, run, requests, variant=variant))


@FEW
@given(shared=st.integers(1, 90), own=st.integers(1, 30), variant=st.sampled_from(FAMILIES))
def test_cached_is_cold(engine, run, greedy, shared, own, variant):
    common = prompt_of(shared, 1)
    warm = engine(variant)
    run(warm, [greedy("before", common + prompt_of(own, 2))])
    request = greedy("a", common + prompt_of(own, 3))
    outputs = run(warm, [request])
    assert outputs["a"][0].cached_tokens == shared // 4 * 4
    assert_same(outputs, each_alone(engine, run, [request], variant=variant))


@FEW
@given(lengths=st.lists(st.integers(1, 70), min_size=7, max_size=7), variant=st.sampled_from(FAMILIES))
def test_batched_is_alone(engine, run, greedy, lengths, variant):
    requests = [greedy(str(n), prompt_of(length, n), count=4 + n) for n, length in enumerate(lengths)]
    assert_same(run(engine(variant), requests), each_alone(engine, run, requests, variant=variant))


@pytest.mark.parametrize("variant", FAMILIES)
def test_preempted_is_not(checkpoint, engine, run, greedy, variant):
    requests = [greedy(str(n), prompt_of(20 + n, n), count=40) for n in range(6)]
    spec = read_checkpoint(checkpoint(variant)[0]).spec
    crowded = engine(variant, max_model_len=80, kv_cache_bytes=26 * block_bytes(spec, 4, torch.float32))
    preemptions = 0
    outputs = {request.id: [] for request in requests}
    for request in requests:
        crowded.add(request)
    while crowded.has_work():
        tokens, stats = crowded.step()
        preemptions += stats.preemptions
        for output in tokens:
            outputs[output.request_id].append(output)
    assert preemptions > 0
    assert_same(outputs, each_alone(engine, run, requests, variant=variant))


PARAMETERS = [
    {},
    {"ignore_eos": False, "stop_token_ids": tuple(range(3, 199, 5))},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    {"temperature": 0.9, "top_p": 0.8, "seed": 3, "logprobs": None},
    {"temperature": 1.2, "top_k": 20, "frequency_penalty": 0.5, "logprobs": 1},  # seeded by its id
    {"logprobs": None},
]


def random_trace(chance):
    """Shared and own prompt tokens, tokens to make, parameters, steps until the next, abort after."""
    return [
        (
            chance.choice([0, 4, 8]),
            chance.randint(1, 6),
            chance.randint(12, 30),
            chance.choice(PARAMETERS),
            chance.choice([0, 0, 1, 3]),
            chance.choice([None, None, None, chance.randint(0, 20)]),
        )
        for _ in range(10)
    ]


def test_one_step_behind_is_in_step(checkpoint, engine, greedy):
    spec = read_checkpoint(checkpoint()[0]).spec
    crowded = {"max_model_len": 48, "kv_cache_bytes": 13 * block_bytes(spec, 4, torch.float32)}
    crowded |= {"max_num_seqs": 5, "max_num_batched_tokens": 16}
    engines = [engine(lag=lag, **crowded) for lag in (0, 1)]
    seen = Counter()

    for seed in range(4):
        trace = random_trace(random.Random(seed))
        first, second = (run_trace(one, greedy, trace, seen) for one in engines)
        for name, (*_, abort_after) in enumerate(trace):
            one, other = first[str(name)], second[str(name)]
            assert one == other or abort_after is not None
            assert all(a == b for a, b in zip(one, other, strict=False))
    assert min(seen[what] for what in ("preemptions", "stop", "length", "aborted")) > 4, seen


def run_trace(engine, greedy, trace, seen):
    """Per request its tokens, finish reasons and rounded log-probabilities."""
    outputs = {str(number): [] for number in range(len(trace))}
    aborts = {}

    def step():
        for name in [name for name, steps in aborts.items() if not steps]:
            seen["aborted"] += engine.abort(name)
            del aborts[name]
        aborts.update({name: steps - 1 for name, steps in aborts.items()})
        tokens, stats = engine.step()
        engine.audit()
        seen["preemptions"] += stats.preemptions
        for output in tokens:
            seen[output.finish] += 1
            likely = None if output.logprob is None else round(output.logprob, 3)
            outputs[output.request_id].append((output.token, output.finish, likely, len(output.top_logprobs)))

    for number, (shared, own, count, params, wait, abort_after) in enumerate(trace):
        name = str(number)
        engine.add(greedy(name, [7] * shared + prompt_of(own, number), count, **params))
        if abort_after is not None:
            aborts[name] = abort_after
        for _ in range(wait):
            step()
    while engine.has_work():
        step()
    return outputs


def test_a_seed_gives_the_same_tokens_in_any_company(engine, run, greedy):
    def sampled(name, prompt, seed):
        return greedy(name, prompt, 12, temperature=0.9, top_p=0.9, top_k=40, seed=seed)

    wanted = sampled("a", prompt_of(10, 1), seed=1234)
    others = [sampled(str(n), prompt_of(5 + n, n), seed=n) for n in range(5)]
    alone = run(engine(), [wanted])["a"]
    company = run(engine(max_num_batched_tokens=16), [*others, wanted])["a"]
    assert [output.token for output in alone] == [output.token for output in company]
    other_seed = run(engine(), [sampled("a", prompt_of(10, 1), seed=1235)])["a"]
    assert [output.token for output in alone] != [output.token for output in other_seed]
