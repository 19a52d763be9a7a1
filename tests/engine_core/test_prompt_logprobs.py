"""Log-probabilities of prompts are those of transformers, however the prompt is computed."""

import pytest
import torch

from tangram_engine.config import EngineConfig
from tangram_engine.kernels.ops import reference_ops
from tangram_engine.run import LLMEngine

MOST = 3


def prompt_of(length, seed):
    return torch.randint(3, 199, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def assert_those_of_transformers(model, prompt, outputs):
    """The first token carries them, and no other one."""
    assert [output.prompt_logprobs for output in outputs[1:]] == [None] * (len(outputs) - 1)
    with torch.inference_mode():
        logits = model(torch.tensor([prompt])).logits[0, :-1]
    expected = logits.float().log_softmax(-1)
    found = list(outputs[0].prompt_logprobs.tokens())
    assert len(found) == len(prompt) - 1
    for position, token in enumerate(found):
        own = expected[position, prompt[position + 1]]
        assert token.logprob == pytest.approx(own.item(), abs=1e-4)
        assert token.rank == pytest.approx(int((expected[position] > own).sum()) + 1, abs=1)  # of near ties
        values, _ = expected[position].topk(MOST)
        assert [value for _, value in token.top] == pytest.approx(values.tolist(), abs=1e-4)
        for name, value in token.top:
            assert value == pytest.approx(expected[position, name].item(), abs=1e-4)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("budget", [9, 64])
def test_they_are_those_of_transformers_in_chunks_and_beside_others(
    checkpoint, engine, run, greedy, budget, lag
):
    one = engine(lag=lag, max_num_batched_tokens=budget, max_num_seqs=4)
    prompts = {"a": prompt_of(41, 1), "b": prompt_of(10, 2), "c": prompt_of(2, 3)}
    scored = [greedy(name, prompt, prompt_logprobs=MOST) for name, prompt in prompts.items()]
    outputs = run(one, [greedy("before", prompt_of(30, 4)), *scored])
    assert outputs["before"][0].prompt_logprobs is None
    for name, prompt in prompts.items():
        assert_those_of_transformers(checkpoint()[1], prompt, outputs[name])
    assert not one._prompt_logprobs


def test_the_prefix_cache_hides_no_position(checkpoint, engine, run, greedy):
    one, prompt = engine(), prompt_of(30, 1)
    for name in ("first", "again"):
        run(one, [greedy(name, prompt)])
        outputs = run(one, [greedy(f"scored {name}", prompt, prompt_logprobs=MOST)])[f"scored {name}"]
        assert outputs[0].cached_tokens == 0
        assert_those_of_transformers(checkpoint()[1], prompt, outputs)
    assert run(one, [greedy("last", prompt)])["last"][0].cached_tokens == 28


def test_a_preempted_prompt_is_scored_once(checkpoint, greedy):
    config = EngineConfig(
        checkpoint()[0], device="cpu", max_num_seqs=6, max_num_batched_tokens=16, block_size=4,
        kv_cache_bytes=90 << 10, max_model_len=80,
    )  # fmt: skip
    for ops in (None, reference_ops()):
        one = LLMEngine(config, lag=1, ops=ops)
        prompts = {str(n): prompt_of(20 + n, n) for n in range(6)}
        outputs = {name: [] for name in prompts}
        for name, prompt in prompts.items():
            one.add(greedy(name, prompt, count=40, prompt_logprobs=MOST))
        while one.has_work():
            for output in one.step()[0]:
                outputs[output.request_id].append(output)
        assert any(output.preemptions for found in outputs.values() for output in found)
        for name, prompt in prompts.items():
            assert_those_of_transformers(checkpoint()[1], prompt, outputs[name])
        one.audit()


def test_a_prompt_of_one_token_has_none(engine, run, greedy):
    assert run(engine(), [greedy("a", [5], prompt_logprobs=MOST)])["a"][0].prompt_logprobs is None


def test_logits_of_a_few_positions_exist_at_a_time(engine, run, greedy, monkeypatch):
    one, sizes = engine(max_num_seqs=8), []
    logits = one._runner.decoder.logits
    monkeypatch.setattr(
        one._runner.decoder,
        "logits",
        lambda hidden, *more: (sizes.append(len(hidden)), logits(hidden, *more))[1],
    )
    run(one, [greedy("a", prompt_of(60, 1), prompt_logprobs=MOST)])
    assert max(sizes) == 2  # a quarter of the rows that may be sampled
    assert sum(sizes) == 59 + 8


@pytest.mark.parametrize("lag", [0, 1])
def test_an_aborted_request_leaves_nothing_behind(engine, greedy, lag):
    one = engine(lag=lag, max_num_batched_tokens=8, max_num_seqs=2)
    for steps in range(5):
        one.add(greedy("a", prompt_of(17, 1), prompt_logprobs=MOST))  # the last chunk has one token
        for _ in range(steps):
            one.step()
        one.abort("a")
        while one.has_work():
            one.step()
        assert not one._prompt_logprobs
