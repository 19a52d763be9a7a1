"""Tokens that a request favours, excludes or postpones, whatever the step is computed by."""

import pytest

from tangram_engine.config import EngineConfig
from tangram_engine.kernels.ops import reference_ops
from tangram_engine.run.engine import LLMEngine

PROMPT = [5, 9, 11]


@pytest.fixture(scope="module", params=["same step", "one step behind", "recorded steps"])
def one(request, checkpoint):
    lag = 0 if request.param == "same step" else 1
    ops = reference_ops() if request.param == "recorded steps" else None
    config = EngineConfig(checkpoint()[0], device="cpu", max_num_seqs=4, kv_cache_bytes=4 << 20, block_size=4)
    return LLMEngine(config, lag, ops)


def test_a_bias_favours_and_excludes_tokens_and_no_other_request_sees_it(one, run, greedy):
    plain = [output.token for output in run(one, [greedy("plain", PROMPT)])["plain"]]
    got = run(
        one,
        [
            greedy("favoured", PROMPT, logit_bias=((7, 100.0),)),
            greedy("excluded", PROMPT, logit_bias=((plain[0], -100.0),)),
            greedy("allowed", PROMPT, allowed_token_ids=(20, 21)),
            greedy("plain", PROMPT),
        ],
    )
    tokens = {name: [output.token for output in outputs] for name, outputs in got.items()}
    assert tokens["favoured"] == [7] * 8
    assert plain[0] not in tokens["excluded"]
    assert set(tokens["allowed"]) <= {20, 21}
    assert tokens["plain"] == plain
    assert got["favoured"][0].logprob < -1  # of the model, without the bias
    assert not one._biases


def test_no_token_ends_an_answer_before_min_tokens(one, run, greedy):
    params = {"logit_bias": ((7, 100.0),), "stop_token_ids": (7,), "min_tokens": 3}
    outputs = run(one, [greedy("late", PROMPT, count=9, **params)])["late"]
    assert [output.token == 7 for output in outputs] == [False, False, False, True]
    assert outputs[-1].finish == "stop"
    only = run(
        one, [greedy("only", PROMPT, count=9, allowed_token_ids=(7,), stop_token_ids=(7,), min_tokens=3)]
    )
    assert [output.finish for output in only["only"]] == ["stop"]  # nothing else is allowed


def test_the_last_token_of_a_bad_word_does_not_follow_the_others(one, run, greedy):
    plain = [output.token for output in run(one, [greedy("plain", PROMPT)])["plain"]]
    words = {"single": (plain[2],), "pair": tuple(plain[2:4]), "never begun": (198, plain[1])}
    got = run(one, [greedy(name, PROMPT, bad_words=(word,)) for name, word in words.items()])
    tokens = {name: [output.token for output in outputs] for name, outputs in got.items()}
    assert plain[2] not in tokens["single"]
    assert tokens["pair"][:3] == plain[:3]
    assert tokens["pair"][3] != plain[3]
    assert tokens["never begun"] == plain
    behind = greedy("behind the prompt", PROMPT, bad_words=((PROMPT[-1], plain[0]),))
    assert [o.token for o in run(one, [behind])["behind the prompt"]] == plain  # as in vLLM
    assert not one._biases
