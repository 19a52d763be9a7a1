"""Each field of OpenAI's and vLLM's requests is done, refused by its name, or ignored as it cannot matter."""

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from tangram_engine.serve.dialects.messages_request import MessagesRequest
from tangram_engine.serve.dialects.responses_request import ResponsesRequest
from tangram_engine.serve.http import fields
from tangram_engine.serve.http.params import (
    ChatRequest,
    CompletionRequest,
    Message,
    Refusing,
    StreamOptions,
    TokenizeRequest,
)
from tests.support.engine_process import EngineProcess

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": "tiny", "prompt": "the", "max_tokens": 1},
    "/v1/chat/completions": {
        "model": "tiny",
        "messages": [{"role": "user", "content": "the"}],
        "max_tokens": 1,
    },
    "/v1/responses": {"model": "tiny", "input": "the", "max_output_tokens": 1},
    "/v1/messages": {"model": "tiny", "messages": [{"role": "user", "content": "the"}], "max_tokens": 1},
    "/tokenize": {"messages": [{"role": "user", "content": "the"}]},
}
EXCHANGES = Path(__file__).parent / "sdk_exchanges.json"
REFUSED = [
    ("/v1/completions", fields.REFUSED | fields.REFUSED_IN_COMPLETIONS),
    ("/v1/chat/completions", fields.REFUSED | fields.REFUSED_IN_CHATS),
    ("/v1/responses", ResponsesRequest.unsupported),
    ("/tokenize", fields.REFUSED_IN_TOKENIZE),
]
# Documented fields that the engine skips, with the reason why the answer is the same without them.
IGNORED = {
    "metadata": "a label for the caller's own books",
    "prompt_cache_key": "a hint for routing",
    "prompt_cache_options": "a hint for how long prefixes stay cached",
    "prompt_cache_retention": "a hint for how long prefixes stay cached",
    "request_id": "a label; the header x-request-id names a request here",
    "safety_identifier": "a label of the caller's user",
    "session_id": "a label of the caller's conversation",
    "service_tier": "a class of service that OpenAI sells; there is one here",
    "store": "OpenAI's own store of answers; nothing is stored here",
    "user": "a label of the caller's user",
    "guided_decoding_backend": "means something only with a guided field, which is refused",
    "guided_whitespace_pattern": "means something only with a guided field, which is refused",
    "truncation_side": "means something only with truncate_prompt_tokens, which is refused",
    "return_mm_kwargs": "means something only on vLLM's render endpoints",
    "spaces_between_special_tokens": "means something only to tokenizers without tokenizer.json",
    "stream_interval": "how many tokens come in one chunk; a stream may be cut anywhere",
}
IGNORED_IN_CHATS = {
    "media_io_kwargs": "means something only with images or audio, which are refused",
    "mm_processor_kwargs": "means something only with images or audio, which are refused",
    "prediction": "a guess at the answer that may make it faster",
    "verbosity": "a setting of OpenAI's own models",
}
IGNORED_IN_RESPONSES = {
    **{name: IGNORED[name] for name in IGNORED if name.startswith("prompt_cache")},
    **{name: IGNORED[name] for name in ("safety_identifier", "service_tier", "store")},
    "max_tool_calls": "a limit for tools of OpenAI's service, which are refused",
}
IGNORED_IN_MESSAGES = {
    "cache_control": "a hint for what to keep cached",
    "diagnostics": "asks for what Anthropic's service knows of its cache",
    "inference_geo": "where Anthropic's service computes",
    "metadata": IGNORED["metadata"],
    "service_tier": "a class of service that Anthropic sells",
    "speed": "a class of service that Anthropic sells",
    "user_profile_id": "a label of the caller's user",
    "workspace_id": "a label of the caller's own books",
}
MODELS: list[type[Refusing]] = [
    *(CompletionRequest, ChatRequest, ResponsesRequest, MessagesRequest),
    *(Message, StreamOptions, TokenizeRequest),
]
SKIPPED = [
    ("/v1/completions", IGNORED),
    ("/v1/chat/completions", IGNORED | IGNORED_IN_CHATS),
    ("/v1/responses", IGNORED_IN_RESPONSES),
    ("/v1/messages", IGNORED_IN_MESSAGES),
]


def _names(text: str) -> set[str]:
    return set(text.split())


# What vLLM's SamplingParams, chat and completion requests have beyond OpenAI's (protocol.py, 2026).
VLLM = _names(
    "use_beam_search top_k min_p repetition_penalty watermarking length_penalty stop_token_ids ignore_eos "
    "include_stop_str_in_output min_tokens skip_special_tokens spaces_between_special_tokens priority "
    "truncate_prompt_tokens truncation_side prompt_logprobs logprob_token_ids allowed_token_ids bad_words "
    "add_special_tokens response_format structured_outputs request_id session_id return_tokens_as_token_ids "
    "return_token_ids routed_experts_prompt_start return_token_offsets return_mm_kwargs cache_salt "
    "kv_transfer_params ec_transfer_params vllm_xargs repetition_detection thinking_token_budget "
    "stream_interval"
)
VLLM_COMPLETIONS = {"prompt_embeds"}
VLLM_CHATS = _names(
    "include_reasoning echo add_generation_prompt continue_final_message documents chat_template "
    "chat_template_kwargs media_io_kwargs mm_processor_kwargs return_prompt_text"
)
# One of these asks for something, whatever the field.
ASKING: list[Any] = [1, 0, True, False, "required", {"a": 1}, ["x"], 0.5, "none"]


def read_fields(model: type[Refusing]) -> set[str]:
    """The fields whose values count: those of the class that stands under the refusals."""
    return set(model.__base__.__struct_fields__)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("model", "documented", "ignored"),
    [
        (
            CompletionRequest,
            {*completion_create_params.CompletionCreateParamsBase.__annotations__, *VLLM, *VLLM_COMPLETIONS},
            IGNORED.keys(),
        ),
        (
            ChatRequest,
            {*chat_create_params.CompletionCreateParamsBase.__annotations__, *VLLM, *VLLM_CHATS},
            IGNORED.keys() | IGNORED_IN_CHATS.keys(),
        ),
        (
            ResponsesRequest,
            {*response_create_params.ResponseCreateParamsBase.__annotations__, "stream"},
            IGNORED_IN_RESPONSES.keys(),
        ),
        (
            MessagesRequest,
            {*json.loads(EXCHANGES.read_text())["fields"]["/v1/messages"], "stream"},
            IGNORED_IN_MESSAGES.keys(),
        ),
    ],
)
def test_each_documented_field_is_sorted_once(model: Any, documented: set[str], ignored: set[str]) -> None:
    done, refused = read_fields(model), model.unsupported.keys()
    assert documented <= done | refused | ignored, documented - done - refused - ignored
    assert not done & refused
    assert not done & ignored
    assert not refused & ignored


@pytest.mark.parametrize(
    ("path", "name", "neutral"),
    [(path, name, neutral) for path, table in REFUSED for name, neutral in table.items()],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_field_that_is_not_done_is_refused_by_name_unless_it_asks_for_nothing(
    path: str, name: str, neutral: fields.Neutral, server: EngineProcess
) -> None:
    for value in (None, *neutral):
        answer = server.post(path, BODIES[path] | {name: value})
        assert answer.status_code == 200, (value, answer.text)
    value = next(value for value in ASKING if fields.asks(value, neutral))
    answer = server.post(path, BODIES[path] | {name: value})
    assert answer.status_code == 400, value
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")


@pytest.mark.parametrize(("path", "table"), SKIPPED)
def test_fields_that_cannot_matter_and_unknown_ones_are_ignored(
    path: str, table: dict[str, str], server: EngineProcess
) -> None:
    values = {name: {"a": [1, "b"]} for name in [*table, "of_no_api"]}
    assert server.post(path, BODIES[path] | values).status_code == 200


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"messages": [{"role": "user", "content": "x", "audio": {"id": "1"}}]}, "messages.0.audio"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}},
         "stream_options.include_obfuscation"),
        ({"return_token_offsets": 0}, "return_token_offsets"),
        ({"priority": False}, "priority"),
        ({"add_generation_prompt": 1}, "add_generation_prompt"),
        ({"add_special_tokens": "no"}, "add_special_tokens"),
        ({"include_stop_str_in_output": 1}, "include_stop_str_in_output"),
    ],
    ids=str,
)  # fmt: skip
def test_nested_fields_and_near_neutral_values_are_refused_with_their_path(
    value: dict[str, Any], path: str, server: EngineProcess
) -> None:
    answer = server.post("/v1/chat/completions", BODIES["/v1/chat/completions"] | value)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == path


@pytest.mark.parametrize(
    "model",
    [
        CompletionRequest,
        ChatRequest,
        ResponsesRequest,
        MessagesRequest,
        Message,
        StreamOptions,
        TokenizeRequest,
    ],
)
def test_no_model_reads_a_field_that_it_refuses(model: type[Refusing]) -> None:
    assert not read_fields(model) & model.unsupported.keys()


def test_include_stop_str_in_output_shows_the_stop_string_and_nothing_behind_it(
    server: EngineProcess,
) -> None:
    def choice(**extra: Any) -> dict[str, Any]:
        answer = server.complete("the quick brown fox", max_tokens=9, logprobs=0, **extra)
        return dict(answer.json()["choices"][0])

    without = choice(stop="bro")
    shown = choice(stop="bro", include_stop_str_in_output=True)
    assert (without["text"], without["finish_reason"]) == ("the quick ", "stop")
    assert (shown["text"], shown["finish_reason"]) == ("the quick bro", "stop")


def test_no_stop_string_is_looked_for_in_the_first_min_tokens(server: EngineProcess) -> None:
    def text(**extra: Any) -> str:
        return str(
            server.complete("the quick", max_tokens=9, stop="ui", **extra).json()["choices"][0]["text"]
        )

    assert text() == "the q"
    assert text(min_tokens=1) == "the q"
    assert text(min_tokens=2) == "the quickthe q"


def test_include_stop_str_in_output_shows_the_stop_token_where_special_tokens_are_shown(
    server: EngineProcess,
) -> None:
    def text(**extra: Any) -> str:
        return str(server.complete("the</s>", max_tokens=9, **extra).json()["choices"][0]["text"])

    assert text() == "the"
    assert text(skip_special_tokens=False) == "the"
    assert text(include_stop_str_in_output=True) == "the"
    assert text(include_stop_str_in_output=True, skip_special_tokens=False) == "the</s>"


def test_the_generation_prompt_is_left_out_where_that_is_asked_for(server: EngineProcess) -> None:
    def rendered(**extra: Any) -> str:
        tokens = server.post("/tokenize", BODIES["/tokenize"] | extra).json()["tokens"]
        return str(server.post("/detokenize", {"tokens": tokens}).json()["prompt"])

    assert rendered() == "<s><|user|>the\n<|assistant|>"
    assert rendered(add_generation_prompt=False) == "<s><|user|>the\n"
    assert rendered(chat_template_kwargs={"add_generation_prompt": False}) == "<s><|user|>the\n"
    both = {"add_generation_prompt": True, "chat_template_kwargs": {"add_generation_prompt": False}}
    assert rendered(**both) == "<s><|user|>the\n<|assistant|>"
    prompts = [
        server.chat("the", max_tokens=1, add_generation_prompt=wanted).json()["usage"]["prompt_tokens"]
        for wanted in (True, False)
    ]
    assert prompts[0] == prompts[1] + 1
