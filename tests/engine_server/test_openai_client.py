"""The official `openai` client against the server, with an engine whose answers are known in advance."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.support.engine_process import EngineProcess


@pytest.fixture(scope="module")
def client(server: EngineProcess) -> Iterator[openai.OpenAI]:
    import httpx

    with (
        httpx.Client(trust_env=False) as http,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", http_client=http, max_retries=0) as client,
    ):
        yield client


def test_models_lists_the_served_name(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "tangram"


def test_a_model_has_the_fields_that_clients_of_vllm_read(server: EngineProcess, served_model: Path) -> None:
    """vLLM's benchmark client reads `root` of the first model, and others `parent`."""
    cards = [server.get("/v1/models").json()["data"][0], server.get("/v1/models/tiny").json()]
    assert cards[0] == cards[1]
    assert cards[0] | {"created": 0} == {
        "id": "tiny",
        "object": "model",
        "created": 0,
        "owned_by": "tangram",
        "root": str(served_model),
        "parent": None,
        "max_model_len": 512,
    }


def test_a_completion_has_text_usage_and_finish_reason(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="the quick brown fox", max_tokens=8)
    assert answer.choices[0].text == "the quick brown foxthe quick brown fox"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 8)


def test_a_chat_goes_through_the_template(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "dog"}]
    messages = [{"role": "system", "content": "the"}, {"role": "user", "content": parts}]
    answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=200)  # type: ignore[arg-type]
    # The engine repeats its prompt; special tokens (the roles) are no text.
    text = answer.choices[0].message.content or ""
    assert text.startswith("the\ndog\nthe\n")
    assert answer.choices[0].message.role == "assistant"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": None, "refusal": "dog"}, "dog"),
        ({"content": None}, ""),
        ({}, ""),
        ({"content": [{"type": "refusal", "refusal": "dog"}]}, "dog"),
        ({"content": [{"type": "output_text", "text": "dog"}], "refusal": None}, "dog"),
    ],
)
def test_an_assistants_content_may_be_null_or_a_refusal(
    message: dict[str, object], text: str, client: openai.OpenAI
) -> None:
    messages = [{"role": "user", "content": "the"}, {"role": "assistant", **message}]
    answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=20)  # type: ignore[arg-type]
    assert (answer.choices[0].message.content or "").startswith(f"the\n{text}\n")


def test_a_streamed_chat_is_the_same_text_in_pieces(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "h\u00e9llo w\u00f6rld \U0001f389 \u4f60\u597d"}]
    whole = client.chat.completions.create(model="tiny", messages=messages, max_tokens=60, seed=1)  # type: ignore[arg-type]
    stream = client.chat.completions.create(
        model="tiny",
        messages=messages,
        max_tokens=60,
        seed=1,
        stream=True,
        stream_options={"include_usage": True},
    )  # type: ignore[call-overload]
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"


def test_every_chunk_has_the_usage_so_far_where_that_is_asked_for(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "the \U0001f389"}],
        n=2,
        max_tokens=9,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )  # type: ignore[call-overload]
    *chunks, last = stream
    counts: dict[int, list[int]] = {0: [], 1: []}
    for chunk in chunks:
        counts[chunk.choices[0].index].append(chunk.usage.completion_tokens)
        assert chunk.usage.prompt_tokens == last.usage.prompt_tokens
    for of_one in counts.values():
        assert of_one[0] == 0  # the role comes before the first token
        assert of_one == sorted(of_one)
        assert len(of_one) < 10  # some tokens are no text of their own, and count with the next chunk
        assert of_one[-1] == 9
    assert last.usage.completion_tokens == 18


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({"continuous_usage_stats": True}, [1, 2, 2]),
        ({"include_usage": True, "continuous_usage_stats": False}, [None, None, 2]),
        ({"include_usage": None, "continuous_usage_stats": None}, [None, None]),
        ({"include_usage": False, "continuous_usage_stats": True}, [None, None]),
    ],
)
def test_include_usage_false_goes_before_the_usage_of_each_chunk(
    options: dict[str, bool | None], counts: list[int | None], client: openai.OpenAI
) -> None:
    stream = client.completions.create(
        model="tiny", prompt="the quick", max_tokens=2, stream=True, stream_options=options
    )  # type: ignore[call-overload]
    assert [chunk.usage and chunk.usage.completion_tokens for chunk in stream] == counts


def test_n_answers_come_with_their_indices_streamed_and_not(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="tiny", prompt=["the", " dog"], n=2, max_tokens=3)
    assert [(c.index, c.text) for c in whole.choices] == [
        (0, "thethethe"), (1, "thethethe"), (2, " dog dog dog"), (3, " dog dog dog")
    ]  # fmt: skip
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == 2
    assert whole.usage.completion_tokens == 12
    texts = ["", ""]
    finished = []
    for chunk in client.completions.create(model="tiny", prompt="the", n=2, max_tokens=3, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
        if chunk.choices[0].finish_reason:
            finished.append(chunk.choices[0].index)
    assert texts == ["thethethe", "thethethe"]
    assert sorted(finished) == [0, 1]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_across_tokens_ends_the_text_before_it(client: openai.OpenAI, stream: bool) -> None:
    answer = client.completions.create(
        model="tiny", prompt="the quick brown fox", max_tokens=50, stop=["own fo", "zebra"], stream=stream
    )
    if not stream:
        assert answer.choices[0].text == "the quick br"
        assert answer.choices[0].finish_reason == "stop"
        return
    chunks = list(answer)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "the quick br"
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_text_held_back_for_a_stop_string_that_never_comes_is_given_out(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="the quick", max_tokens=2, stop=" quick brown")
    assert answer.choices[0].text == "the quick"
    assert answer.choices[0].finish_reason == "length"


def test_the_end_token_stops_without_becoming_text_unless_it_is_ignored(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="the</s> dog", max_tokens=9)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("the", "stop")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2
    answer = client.completions.create(
        model="tiny", prompt="the</s> dog", max_tokens=3, extra_body={"ignore_eos": True}
    )
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("the dog", "length")


def test_stop_token_ids_stop(client: openai.OpenAI, server: EngineProcess) -> None:
    ids = server.post("/tokenize", {"prompt": "the quick brown"}).json()["tokens"]
    answer = client.completions.create(
        model="tiny", prompt="the quick brown", max_tokens=9, extra_body={"stop_token_ids": [ids[2]]}
    )
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("the quick", "stop")


def test_logprobs_of_completions_line_up_with_the_text(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="the quick \U0001f389", max_tokens=7, logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.text_offset is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs == [-0.25] * 7
    assert logprobs.text_offset[:3] == [0, 3, 9]
    assert logprobs.tokens[:2] == ["the", " quick"]
    assert logprobs.tokens[3:] == ["bytes:\\xf0", "bytes:\\x9f", "bytes:\\x8e", "bytes:\\x89"]
    assert all(len(top) == 2 for top in logprobs.top_logprobs or [])


def test_the_chosen_token_is_among_the_logprobs_of_a_completion_however_few_were_asked_for(
    client: openai.OpenAI,
) -> None:
    answer = client.completions.create(model="tiny", prompt="the quick", max_tokens=2, logprobs=0)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.top_logprobs == [{"the": -0.25}, {" quick": -0.25}]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_chats_carry_the_exact_bytes(client: openai.OpenAI, stream: bool) -> None:
    prompt = "\U0001f389" * 3
    messages = [{"role": "user", "content": prompt}]
    answer = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=14, logprobs=True, top_logprobs=1, stream=stream
    )  # type: ignore[call-overload]
    choices = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
    entries = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    raw = b"".join(bytes(entry.bytes) for entry in entries)
    assert prompt.encode() in raw
    assert all(entry.top_logprobs[0].logprob == -0.25 for entry in entries)
    assert len(entries) == 14


@pytest.mark.parametrize("stream", [False, True])
def test_no_logprob_shows_a_token_that_reaches_into_the_stop_string(
    client: openai.OpenAI, stream: bool
) -> None:
    answer = client.completions.create(
        model="tiny", prompt="the quick brown fox", max_tokens=50, stop="own", logprobs=0, stream=stream
    )
    choices = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
    tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.tokens]
    assert tokens == ["the", " quick"]


def test_a_prompt_seen_before_reports_its_cached_tokens(client: openai.OpenAI) -> None:
    prompt = "the quick brown fox jumps over the lazy dog " * 10
    first = client.completions.create(model="tiny", prompt=prompt, max_tokens=2).usage
    second = client.completions.create(model="tiny", prompt=prompt, max_tokens=2).usage
    assert first is not None
    assert second is not None
    assert first.prompt_tokens_details is not None
    assert second.prompt_tokens_details is not None
    assert first.prompt_tokens_details.cached_tokens == 0
    assert second.prompt_tokens_details.cached_tokens == (second.prompt_tokens - 1) // 16 * 16


@pytest.mark.parametrize("kind", ["completion", "chat"])
def test_a_cached_prompt_shows_only_to_requests_with_its_salt(client: openai.OpenAI, kind: str) -> None:
    def cached(salt: str | None) -> int:
        text = f"the secret of a {kind}: the quick brown fox jumps over the lazy dog"
        extra = {} if salt is None else {"cache_salt": salt}
        if kind == "chat":
            usage = client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": text}], max_tokens=1, extra_body=extra
            ).usage
        else:
            usage = client.completions.create(model="tiny", prompt=text, max_tokens=1, extra_body=extra).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        return usage.prompt_tokens_details.cached_tokens or 0

    assert [cached(salt) for salt in ("tenant a", None, "tenant b")] == [0, 0, 0]
    assert all(cached(salt) > 0 for salt in ("tenant a", None, "tenant b"))


def test_without_max_tokens_a_completion_has_16_tokens_at_most(client: openai.OpenAI) -> None:
    usage = client.completions.create(model="tiny", prompt="the quick").usage
    assert usage is not None
    assert usage.completion_tokens == 16


def test_without_max_tokens_the_answer_of_a_chat_may_fill_the_context(client: openai.OpenAI) -> None:
    usage = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "the quick"}]
    ).usage
    assert usage is not None
    assert usage.total_tokens == 512


def test_the_clients_errors_have_their_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt-9", prompt="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="tiny", prompt="x" * 600)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as much:
        client.completions.create(model="tiny", prompt="x", max_tokens=512)
    assert much.value.param == "max_tokens"


@pytest.mark.parametrize(
    "text", ["a\n\ndata: [DONE]\n\nb", "\r\n\r\n: c", "x\u2028y\u2029z\u0085", 'quote " \\ \x00\x1b']
)
def test_no_text_of_a_model_can_break_the_event_stream(
    text: str, client: openai.OpenAI, server: EngineProcess
) -> None:
    count = server.post("/tokenize", {"prompt": text}).json()["count"]
    chunks = client.completions.create(model="tiny", prompt=text, max_tokens=count, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == text
    with server.stream(text, max_tokens=count) as lines:
        assert all(line.startswith("data: ") or line == "" for line in lines)
