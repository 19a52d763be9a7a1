"""What clients ask to see of prompts: echo, log-probabilities, token ids; answers that continue a message."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.engine_process import EngineProcess

PROMPT = "the quick é dog"  # é is two tokens


def ids_of(server: EngineProcess, text: str) -> list[int]:
    return list(server.post("/tokenize", {"prompt": text}).json()["tokens"])


def choice_of(answer: Any) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["choices"][0])


@pytest.mark.parametrize(("most", "max_tokens"), [(0, 0), (1, 1), (2, 3)])
@pytest.mark.parametrize("by_ids", [False, True])
def test_an_echoed_prompt_is_scored_as_evaluations_read_it(
    most: int, max_tokens: int, by_ids: bool, server: EngineProcess
) -> None:
    ids = ids_of(server, PROMPT)
    answer = server.complete(
        ids if by_ids else PROMPT, echo=True, logprobs=most, max_tokens=max_tokens, temperature=0
    )
    choice, count = choice_of(answer), len(ids)
    shown = choice["logprobs"]
    assert choice["text"].startswith(PROMPT)
    assert choice["finish_reason"] == "length"
    assert answer.json()["usage"]["completion_tokens"] == max_tokens
    assert {len(column) for column in shown.values()} == {count + max_tokens}
    # Nothing predicts the first token; the fake engine gives the one at position p the value -p.
    assert shown["token_logprobs"][:count] == [None, *(-float(p) for p in range(1, count))]
    assert shown["top_logprobs"][0] is None
    assert all(len(top) >= max(most, 1) for top in shown["top_logprobs"][1:])
    for position, top in enumerate(shown["top_logprobs"][1:count], 1):
        assert top[shown["tokens"][position]] in (-float(position), -1.0)
    places = [choice["text"][at:] for at in shown["text_offset"]]
    spelt = zip(shown["tokens"], places, strict=True)
    assert all(place.startswith(token) for token, place in spelt if not token.startswith("bytes:"))


def test_an_echo_is_the_prompt_and_the_answer_streamed_or_not(server: EngineProcess) -> None:
    fields = {"echo": True, "max_tokens": 3, "n": 2, "return_token_ids": True}
    whole = server.complete([PROMPT, "fox"], **fields).json()["choices"]
    answers = [server.complete(text, max_tokens=3).json()["choices"][0]["text"] for text in (PROMPT, "fox")]
    shown = [text + answer for text, answer in zip([PROMPT, "fox"], answers, strict=True) for _ in range(2)]
    assert [choice["text"] for choice in whole] == shown
    texts, ids = [""] * 4, [list[int]() for _ in range(4)]
    prompts: list[int] = []
    with server.stream([PROMPT, "fox"], **fields) as lines:  # type: ignore[arg-type]
        for line in lines:
            if line.startswith("data: {"):
                choice = json.loads(line[6:])["choices"][0]
                texts[choice["index"]] += choice["text"]
                ids[choice["index"]] += choice["token_ids"]
                if "prompt_token_ids" in choice:
                    prompts.append(choice["index"])
    assert texts == [choice["text"] for choice in whole]
    assert ids == [choice["token_ids"] for choice in whole]
    assert sorted(prompts) == [0, 2]  # once for each prompt
    assert [len(own) for own in ids] == [3] * 4


def test_prompt_logprobs_have_the_form_of_vllm(server: EngineProcess) -> None:
    ids = ids_of(server, "the dog")
    scored = choice_of(server.complete("the dog", prompt_logprobs=2, max_tokens=1))["prompt_logprobs"]
    assert scored[0] is None
    assert len(scored) == len(ids)
    own = scored[1].pop(str(ids[1]))
    assert own == {"logprob": -1.0, "rank": 2, "decoded_token": " dog"}
    assert [(name, entry["rank"]) for name, entry in scored[1].items()] == [("0", 1), ("1", 2)]
    whole = server.chat("the dog", prompt_logprobs=0, max_tokens=1).json()
    assert "prompt_logprobs" not in whole["choices"][0]
    assert len(whole["prompt_logprobs"]) == whole["usage"]["prompt_tokens"]
    assert all(len(entry) == 1 for entry in whole["prompt_logprobs"][1:])
    alone = choice_of(server.complete("the", prompt_logprobs=1, max_tokens=1))
    assert alone["prompt_logprobs"] == [None]


def test_a_chat_has_token_ids_streamed_or_not(server: EngineProcess) -> None:
    whole = server.chat("the dog", max_tokens=4, return_token_ids=True).json()
    ids = whole["choices"][0]["token_ids"]
    assert len(ids) == 4
    assert len(whole["prompt_token_ids"]) == whole["usage"]["prompt_tokens"]
    assert "token_ids" not in server.chat("the dog", max_tokens=4).text
    lines = server.chat("the dog", max_tokens=4, return_token_ids=True, stream=True).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", ())] == ids


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"echo": True, "logprobs": 1, "stream": True}, "echo"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1, "echo": True}, "max_tokens"),
        ({"bad_words": [""]}, "bad_words.0"),
        ({"bad_words": ["x"] * 65}, "bad_words"),
        ({"bad_words": ["x" * 257]}, "bad_words.0"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_its_name(
    fields: dict[str, Any], param: str, server: EngineProcess
) -> None:
    answer = server.complete("the dog", **({"max_tokens": 1} | fields))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_scores_that_no_memory_holds_are_refused(start: Any) -> None:
    server = start("--max-body-bytes-in-flight", str(4 << 20), num_blocks=4096, max_model_len=4096)
    answer = server.complete([5] * 1200, prompt_logprobs=20, max_tokens=1)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt_logprobs")
    assert server.complete([5] * 600, prompt_logprobs=20, max_tokens=1).status_code == 200
    assert server.quiet()


def test_an_answer_continues_the_last_message(server: EngineProcess) -> None:
    messages = [{"role": "user", "content": "the"}, {"role": "assistant", "content": "quick "}]

    def rendered(**fields: Any) -> str:
        tokens = server.post("/tokenize", {"messages": messages, **fields}).json()["tokens"]
        return str(server.post("/detokenize", {"tokens": tokens}).json()["prompt"])

    assert rendered() == "<s><|user|>the\n<|assistant|>quick \n<|assistant|>"
    assert rendered(continue_final_message=True) == "<s><|user|>the\n<|assistant|>quick "
    body = {"model": "tiny", "messages": messages, "continue_final_message": True, "max_tokens": 1}
    assert server.post("/v1/chat/completions", body).json()["usage"]["prompt_tokens"] == len(
        ids_of(server, "<s><|user|>the\n<|assistant|>quick ")
    )
    both = server.post("/v1/chat/completions", body | {"add_generation_prompt": True})
    assert (both.status_code, both.json()["error"]["param"]) == (400, "continue_final_message")


def test_health_answers_while_the_scores_of_a_large_prompt_are_written(start: Any) -> None:
    server = start(num_blocks=4096, max_model_len=8192)
    latencies = []
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.complete, [5] * 8000, prompt_logprobs=20, max_tokens=1)
        while not answer.done():
            begin = time.monotonic()
            assert server.get("/health").status_code == 200
            latencies.append(time.monotonic() - begin)
            time.sleep(0.005)
    assert len(choice_of(answer.result())["prompt_logprobs"]) == 8000
    assert len(latencies) > 20  # a part of the whole: all of it takes longer on a busy machine
    assert max(latencies) < max(0.05, sum(latencies) / 4)
