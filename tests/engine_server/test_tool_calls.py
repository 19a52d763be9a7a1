"""Tools and reasoning over HTTP, by the `openai` client; the engine repeats what the template renders."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.support.engine_process import EngineProcess, engine_process
from tests.support.served_model import write_model

# The answer is what the messages say. The marks of the format stand where they are never rendered.
TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}"
    "{% endfor %}{% endfor %}</s>{{ tools | length if tools else '' }}"
    "{% if false %}<tool_call></think>{% endif %}"
)
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("f", "g")
]
ANSWER = (
    "<think>\nH\u00f6?\n</think>\n\nYes.\n"
    '<tool_call>\n{"name": "f", "arguments": {"a": "\U0001f389"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    folder = tmp_path_factory.mktemp("tools")
    model = write_model(folder / "model")
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    with engine_process(model, folder / "log", fake={}) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: EngineProcess) -> Iterator[openai.OpenAI]:
    with (
        httpx.Client(trust_env=False) as http,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", http_client=http, max_retries=0) as client,
    ):
        yield client


def said(client: openai.OpenAI, content: str = ANSWER, **fields: Any) -> Any:
    messages: Any = [{"role": "user", "content": content}]
    return client.chat.completions.create(model="tiny", messages=messages, **fields)


def test_an_answer_has_reasoning_content_and_calls(client: openai.OpenAI) -> None:
    answer = said(client, tools=TOOLS)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.reasoning_content == "H\u00f6?"
    assert choice.message.content == "Yes."
    calls = [(call.type, call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert calls == [("function", "f", '{"a": "\U0001f389"}'), ("function", "g", "{}")]
    assert len({call.id for call in choice.message.tool_calls}) == 2
    reasoning = answer.usage.completion_tokens_details.reasoning_tokens
    assert 0 < reasoning < answer.usage.completion_tokens


def test_a_streamed_answer_has_the_same_parts(client: openai.OpenAI) -> None:
    whole = said(client, tools=TOOLS)
    with client.chat.completions.stream(
        model="tiny",
        messages=[{"role": "user", "content": ANSWER}],
        tools=TOOLS,
        stream_options={"include_usage": True},
    ) as stream:
        deltas = [e.chunk.choices[0].delta for e in stream if e.type == "chunk" and e.chunk.choices]
        final = stream.get_final_completion()
    message, expected = final.choices[0].message, whole.choices[0].message
    assert (message.content, final.choices[0].finish_reason) == (expected.content, "tool_calls")
    assert [call.function.arguments for call in message.tool_calls or ()] == [
        call.function.arguments for call in expected.tool_calls
    ]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "H\u00f6?"
    assert final.usage is not None
    assert final.usage.completion_tokens_details == whole.usage.completion_tokens_details
    named = [
        call for delta in deltas for call in delta.tool_calls or () if call.function and call.function.name
    ]
    assert [(call.index, call.function.name) for call in named if call.function] == [(0, "f"), (1, "g")]
    assert sum(len(delta.tool_calls or ()) for delta in deltas) > 4  # arguments come in pieces


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "none", "tools": TOOLS}], ids=str)
def test_calls_are_text_where_the_client_wants_none(fields: dict[str, Any], client: openai.OpenAI) -> None:
    choice = said(client, **fields).choices[0]
    assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
    assert choice.message.content.startswith("Yes.\n<tool_call>")


def test_logprobs_are_of_all_tokens_also_of_those_of_a_call(client: openai.OpenAI) -> None:
    whole = said(client, tools=TOOLS, logprobs=True)
    count = whole.usage.completion_tokens - 1  # the end token is no text
    assert len(whole.choices[0].logprobs.content) == count
    chunks = said(client, tools=TOOLS, logprobs=True, stream=True)
    choices = [chunk.choices[0] for chunk in chunks]
    assert sum(len(choice.logprobs.content) for choice in choices if choice.logprobs) == count


def test_one_call_alone_and_no_reasoning_where_that_is_asked_for(client: openai.OpenAI) -> None:
    message = said(
        client, tools=TOOLS, parallel_tool_calls=False, extra_body={"include_reasoning": False}
    ).choices[0].message  # fmt: skip
    assert [call.function.name for call in message.tool_calls] == ["f"]
    assert not hasattr(message, "reasoning_content")


def test_a_conversation_goes_on_with_calls_and_results(client: openai.OpenAI) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages: Any = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "result"},
    ]
    answer = client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS)
    assert answer.choices[0].message.content == 'x{"name": "f", "arguments": {"a": 1}}result'


def test_the_tools_reach_the_template(server: EngineProcess) -> None:
    def rendered(**fields: Any) -> str:
        tokens = server.post("/tokenize", {"messages": [{"role": "user", "content": "x"}], **fields}).json()[
            "tokens"
        ]
        return str(server.post("/detokenize", {"tokens": tokens}).json()["prompt"])

    assert (rendered(), rendered(tools=TOOLS)) == ("x</s>", "x</s>2")


@pytest.fixture(scope="module")
def channels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """A server whose template has the marks of gpt-oss."""
    folder = tmp_path_factory.mktemp("channels")
    model = write_model(folder / "model")
    config = json.loads((model / "tokenizer_config.json").read_text())
    template = TEMPLATE.replace("<tool_call></think>", "<|channel|>")
    (model / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    with engine_process(model, folder / "log", fake={}) as running:
        yield running


@pytest.mark.parametrize(
    ("fields", "content", "calls", "finish"),
    [
        ({"tools": TOOLS}, "Soon.", [("f", '{"a": 1}')], "tool_calls"),
        ({"tools": TOOLS, "tool_choice": "none"}, 'Soon.\n\n{"a": 1}', [], "stop"),
        ({}, 'Soon.\n\n{"a": 1}', [], "stop"),
        ({"tools": TOOLS, "include_reasoning": False}, "Soon.", [("f", '{"a": 1}')], "tool_calls"),
    ],
    ids=["tools", "no call is wanted", "no tools", "no reasoning is wanted"],
)
def test_the_channels_of_an_answer_are_its_reasoning_content_and_calls(
    fields: dict[str, Any], content: str, calls: list[Any], finish: str, channels: EngineProcess
) -> None:
    text = (
        "<|channel|>analysis<|message|>Hm\u00f6?<|end|><|start|>assistant<|channel|>commentary<|message|>Soon."
        "<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
        '{"a": 1}'
    )
    whole = channels.chat(text, **fields).json()
    choice, reasoning = whole["choices"][0], "" if "include_reasoning" in fields else "Hm\u00f6?"
    message = choice["message"]
    made = [call["function"] for call in message.get("tool_calls", ())]
    assert (message["content"], choice["finish_reason"]) == (content, finish)
    assert [(call["name"], call["arguments"]) for call in made] == calls
    assert message.get("reasoning_content", "") == reasoning
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] > 4
    streamed = channels.chat(text, stream=True, **fields).text.splitlines()
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in streamed if line.startswith("data: {")]
    assert "".join(delta.get("content") or "" for delta in deltas) == content
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == reasoning
    parts = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
    assert "".join(part.get("arguments", "") for part in parts) == "".join(made for _, made in calls)


def test_a_result_of_a_megabyte_is_a_named_error(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "x"}, {"role": "tool", "content": "result " * (150 << 10)}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS)
    assert refused.value.code == "context_length_exceeded"
