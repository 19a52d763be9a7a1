"""The real engine behind the real server: a random tiny Llama on CPU, through the command line."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.support.engine_process import EngineProcess, engine_process, eventually

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(served_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    flags = ("--kv-cache-bytes", str(8 << 20), "--max-num-seqs", "8", "--drain-seconds", "0.3")
    with engine_process(served_model, tmp_path_factory.mktemp("whole") / "log", *flags) as running:
        yield running


def greedy(model: Path, ids: list[int], count: int) -> list[int]:
    """What transformers generates from the same checkpoint."""
    import torch

    reference = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.inference_mode():
        output = reference.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=count,
            min_new_tokens=count, do_sample=False,
        )  # fmt: skip
    return [int(token) for token in output[0, len(ids) :]]


def test_greedy_tokens_are_those_of_transformers(whole: EngineProcess, served_model: Path) -> None:
    ids = list(range(40, 70))
    answer = whole.complete(ids, max_tokens=12, temperature=0, ignore_eos=True, skip_special_tokens=False)
    expected = whole.post("/detokenize", {"tokens": greedy(served_model, ids, 12)})
    assert answer.json()["choices"][0]["text"] == expected.json()["prompt"]


def test_a_chat_reports_usage_and_finish_reason(whole: EngineProcess) -> None:
    answer = whole.chat("the quick brown fox", max_tokens=9, temperature=0, ignore_eos=True).json()
    assert answer["usage"]["completion_tokens"] == 9
    assert answer["choices"][0]["finish_reason"] == "length"


def test_a_seed_makes_an_answer_repeatable_and_its_n_different(whole: EngineProcess) -> None:
    fields: dict[str, Any] = {"max_tokens": 24, "seed": 7, "n": 3, "ignore_eos": True, "logprobs": 1}
    first, second = (whole.complete("the dog", **fields).json()["choices"] for _ in range(2))
    assert [choice["text"] for choice in first] == [choice["text"] for choice in second]
    assert len({choice["text"] for choice in first}) == 3


def test_choice_i_has_the_seed_plus_i_whatever_n_and_company(whole: EngineProcess) -> None:
    fields: dict[str, Any] = {"max_tokens": 16, "ignore_eos": True}
    choices = whole.complete("the dog", n=3, seed=41, **fields).json()["choices"]
    alone = [whole.complete("the dog", seed=41 + i, **fields).json()["choices"][0] for i in range(3)]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert [choice["text"] for choice in choices] == [choice["text"] for choice in alone]


def test_preemptions_of_requests_add_up_to_those_of_the_engine(served_model: Path, tmp_path: Path) -> None:
    # 256 tokens of cache for three answers of 200 each: they cannot all stay.
    config = json.loads((served_model / "config.json").read_text())
    token_bytes = 2 * 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    flags = ("--max-model-len", "256", "--kv-cache-bytes", str(257 * token_bytes))
    with engine_process(served_model, tmp_path / "log", *flags) as small:
        answer = small.complete("the quick brown fox", n=3, max_tokens=200, ignore_eos=True)

        assert answer.json()["usage"]["completion_tokens"] == 600
        total = small.metric("vllm:num_preemptions_total")
        assert total >= 1
        assert small.metric("vllm:request_num_preemptions_sum") == total
        assert small.metric("vllm:request_num_preemptions_count") == 3
        assert small.metric("vllm:request_num_preemptions_bucket", le="20.0") == 3


def test_a_repeated_prompt_comes_from_the_prefix_cache(whole: EngineProcess) -> None:
    prompt = "over the lazy dog and the other dog " * 5
    usages = [whole.complete(prompt, max_tokens=1).json()["usage"] for _ in range(2)]
    assert usages[1]["prompt_tokens_details"]["cached_tokens"] >= 16


def test_a_repeated_prompt_with_another_salt_is_computed_again(whole: EngineProcess) -> None:
    prompt = "jumps over the lazy fox and the other dog " * 5
    usages = [
        whole.complete(prompt, max_tokens=1, cache_salt=salt).json()["usage"] for salt in ("a", "b", "a")
    ]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached[:2] == [0, 0]
    assert cached[2] >= 16


def test_every_sampling_parameter_reaches_an_answer(whole: EngineProcess) -> None:
    answer = whole.complete(
        "the", max_tokens=5, temperature=0.7, top_p=0.9, top_k=20, min_p=0.01, presence_penalty=0.5,
        frequency_penalty=0.5, repetition_penalty=1.1, seed=1, logprobs=5, ignore_eos=True,
    )  # fmt: skip
    assert answer.status_code == 200
    assert len(answer.json()["choices"][0]["logprobs"]["token_logprobs"]) == 5


def test_a_burst_of_mixed_requests_leaves_the_engine_idle_and_its_audit_content(whole: EngineProcess) -> None:
    def ask(number: int) -> int:
        prompt = [5 + (number * 7 + i) % 300 for i in range(1 + number * 5)]
        return whole.complete(prompt, max_tokens=1 + number % 17, n=1 + number % 3, seed=number).status_code

    with ThreadPoolExecutor(12) as pool:
        assert set(pool.map(ask, range(36))) == {200}
    eventually(whole.quiet, "nothing left")
    time.sleep(0.5)  # the audit begins after 0.2 s of silence
    assert whole.ready()


def test_leaving_in_mid_stream_frees_the_blocks(whole: EngineProcess) -> None:
    with whole.stream("the quick brown fox", max_tokens=480, ignore_eos=True) as lines:
        next(lines)
    eventually(whole.quiet, "nothing left")
    assert whole.metric("vllm:request_success_total", finished_reason="abort") == 1


def test_sigterm_lets_it_finish_and_exit_with_zero(whole: EngineProcess) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(whole.complete, "the quick", max_tokens=300, ignore_eos=True)
        eventually(lambda: whole.metric("vllm:num_requests_running") == 1, "running")
        whole.terminate()
        answer = running.result()
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert whole.wait() == 0
    assert "Traceback" not in whole.log.read_text()
