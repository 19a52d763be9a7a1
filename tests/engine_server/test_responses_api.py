"""/v1/responses by the official `openai` client; the engine repeats what the template renders."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.dialect_servers import ANSWER, REASONING, SCHEMA, openai_client, repeating_server
from tests.support.engine_process import EngineProcess

TOOLS: Any = [
    {"type": "function", "name": name, "parameters": SCHEMA, "strict": False, "description": "d"}
    for name in ("f", "g")
]
KINDS_OF_EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.reasoning_text.delta",
    "response.reasoning_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    *(
        [
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
        ]
        * 2
    ),
    "response.completed",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with repeating_server(tmp_path_factory.mktemp("responses")) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: EngineProcess) -> Iterator[openai.OpenAI]:
    with openai_client(server) as client:
        yield client


def test_a_response_has_reasoning_text_and_calls(client: openai.OpenAI) -> None:
    response = client.responses.create(model="tiny", input=ANSWER, tools=TOOLS, metadata={"a": "b"})
    assert (response.status, response.error, response.incomplete_details) == ("completed", None, None)
    reasoning, message, *calls = response.output
    assert reasoning.type == "reasoning"
    assert reasoning.content is not None
    assert reasoning.content[0].text == REASONING
    assert message.type == "message"
    assert response.output_text == "Yes."
    assert [(call.type, call.name, call.arguments) for call in calls] == [  # type: ignore[union-attr]
        ("function_call", "f", '{"a": "\U0001f389"}'),
        ("function_call", "g", "{}"),
    ]
    assert len({item.id for item in response.output}) == 4
    assert (response.metadata, response.store, response.tools[0].name) == ({"a": "b"}, False, "f")  # type: ignore[attr-defined,union-attr]
    usage = response.usage
    assert usage is not None
    assert 0 < usage.output_tokens_details.reasoning_tokens < usage.output_tokens
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


def test_a_stream_has_the_events_that_the_client_assembles(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="tiny", input=ANSWER, tools=TOOLS)
    events = list(client.responses.create(model="tiny", input=ANSWER, tools=TOOLS, stream=True))
    final = events[-1].response  # type: ignore[union-attr]
    with client.responses.stream(model="tiny", input=ANSWER, tools=TOOLS) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        assert stream.get_final_response().output_text == snapshots[-1] == whole.output_text
    kinds = [event.type for event in events]
    assert [kind for at, kind in enumerate(kinds) if at == 0 or kinds[at - 1] != kind] == KINDS_OF_EVENTS
    assert [event.sequence_number for event in events] == list(range(len(events)))

    def contents(response: Any) -> list[Any]:
        return [item.to_dict() | {"id": "", "call_id": ""} for item in response.output]

    assert contents(final) == contents(whole)
    assert final.usage.to_dict() | {"input_tokens_details": None} == whole.usage.to_dict() | {  # type: ignore[union-attr]
        "input_tokens_details": None
    }


def test_max_output_tokens_makes_a_response_incomplete(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="tiny", input="the quick brown fox", max_output_tokens=2)
    events = list(client.responses.create(model="tiny", input="the quick", max_output_tokens=2, stream=True))
    for response in (whole, events[-1].response):  # type: ignore[union-attr]
        assert response.status == "incomplete"
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.output[0].status == "incomplete"  # type: ignore[union-attr]
    assert events[-1].type == "response.incomplete"


def test_a_conversation_goes_on_from_the_output_with_results(client: openai.OpenAI) -> None:
    first = client.responses.create(model="tiny", input=ANSWER, tools=TOOLS)
    results: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": f"<{item.name}>"}
        for item in first.output
        if item.type == "function_call"
    ]
    history: Any = [{"role": "user", "content": "x"}, *(item.to_dict() for item in first.output), *results]
    answer = client.responses.create(model="tiny", input=history, instructions="be", tools=TOOLS)
    # One turn of the assistant: the template writes its reasoning, text and calls.
    assert answer.output_text == (
        f'bex({REASONING})Yes.{{"name": "f", "arguments": {{"a": "\U0001f389"}}}}'
        '{"name": "g", "arguments": {}}<f><g>'
    )


def test_logprobs_are_those_of_the_text_streamed_and_whole(client: openai.OpenAI) -> None:
    asked: Any = {
        "model": "tiny",
        "input": ANSWER,
        "tools": TOOLS,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
    }
    whole = client.responses.create(**asked)
    events = list(client.responses.create(**asked, stream=True))

    def logprobs(response: Any) -> list[Any]:
        (text,) = [item.content[0] for item in response.output if item.type == "message"]
        return [entry.to_dict() for entry in text.logprobs]

    deltas = [event for event in events if event.type == "response.output_text.delta"]
    streamed = [entry for event in deltas for entry in event.logprobs]
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    expected = logprobs(whole)
    assert b"".join(bytes(entry["bytes"]) for entry in expected).strip() == b"Yes."
    assert all(len(entry["top_logprobs"]) == 2 for entry in expected)
    assert logprobs(events[-1].response) == expected  # type: ignore[union-attr]
    for entries in (streamed, done.logprobs):
        assert [entry.to_dict() for entry in entries] == expected
    assert client.responses.create(model="tiny", input="x").output[0].content[0].logprobs == []  # type: ignore[union-attr]


def test_what_a_stream_keeps_of_logprobs_is_bounded(server: EngineProcess, tmp_path: Path) -> None:
    body = {"model": "tiny", "input": "x" * 50, "include": ["message.output_text.logprobs"], "stream": True}
    with repeating_server(tmp_path, "--max-body-bytes-in-flight", str(100_000)) as small:
        kinds = [one.post("/v1/responses", body | {"top_logprobs": 20}).text for one in (server, small)]
    assert "response.completed" in kinds[0]
    assert "response.completed" not in kinds[1]
    assert '"type":"error"' in kinds[1]
