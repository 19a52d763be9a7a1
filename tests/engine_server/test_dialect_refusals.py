"""What /v1/responses and /v1/messages refuse: a 4xx that names the field as the client wrote it."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.dialect_servers import SCHEMA, repeating_server
from tests.support.engine_process import EngineProcess

MEBIBYTE = "x " * (1 << 19)
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
FUNCTION = {"type": "function", "name": "f", "parameters": SCHEMA}
TOOL = {"name": "f", "input_schema": SCHEMA}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "x"}
TOOL_USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
TOOL_RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "x"}
USER = {"role": "user", "content": "x"}


def item(**fields: Any) -> dict[str, Any]:
    return {"input": [USER, fields]}


def turn(*blocks: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [USER, {"role": role, "content": list(blocks)}]}


def past(block: Any) -> dict[str, Any]:
    return turn(block, role="assistant")


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"a": value}
    return value


RESPONSES: list[tuple[dict[str, Any], str, str]] = [
    ({"input": []}, "input", ""),
    ({"input": 3}, "input", ""),
    ({"input": [3]}, "input.0", "object"),
    ({"previous_response_id": "resp_1"}, "previous_response_id", "not supported"),
    ({"conversation": "conv_1"}, "conversation", "not supported"),
    ({"background": True}, "background", "not supported"),
    ({"top_logprobs": 2}, "top_logprobs", "include"),
    ({"include": ["message.output_text.logprobs"], "top_logprobs": 21}, "top_logprobs", "20"),
    ({"truncation": "auto"}, "truncation", "not supported"),
    (item(type="item_reference", id="rs_1"), "input.1.type", "item_reference"),
    (item(type="web_search_call", id="ws_1"), "input.1.type", "web_search_call"),
    (item(type="made_up"), "input.1.type", "made_up"),
    (item(content="x"), "input.1.role", "missing"),
    (item(role="tool", content="x"), "input.1.role", "tool"),
    (
        item(role="user", content=[{"type": "input_image", "image_url": "x"}]),
        "input.1.content.0.type",
        "input_image",
    ),
    (item(role="user", content=[{"type": "input_text"}]), "input.1.content.0.text", "missing"),
    (item(type="function_call_output", call_id="c", output="x"), "input.1.call_id", "no call"),
    (item(type="function_call_output", output="x"), "input.1.call_id", "missing"),
    ({"input": [CALL, {"type": "function_call_output", "call_id": "c"}]}, "input.1.output", "missing"),
    (item(type="function_call", call_id="c"), "input.1.name", "missing"),
    ({"tools": [{"type": "web_search"}]}, "tools.0.type", "web_search"),
    ({"tools": [{"type": "function"}]}, "tools.0.name", "missing"),
    *(({"tools": [FUNCTION | {"name": name}]}, "tools.0.name", "") for name in ("a b", 'a"b', "a\nb", "")),
    ({"tools": [FUNCTION | {"name": f"f{n}"} for n in range(5000)]}, "tools", "512"),
    ({"input": [CALL, RESULT | {"output": MEBIBYTE}]}, "input", "context"),
    ({"input": [CALL | {"name": 'f"\n', "arguments": "{"}, RESULT]}, "input", "no JSON object"),
    (
        {"tools": [FUNCTION | {"parameters": {"$ref": "#"}}], "tool_choice": "required"},
        "tool_choice",
        "no text",
    ),
    ({"tools": [FUNCTION, FUNCTION]}, "tools", "same name"),
    ({"tools": [FUNCTION | {"description": MEBIBYTE}]}, "tools", "bytes"),
    ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name", "tools"),
    ({"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type", "allowed_tools"),
    ({"tool_choice": "required"}, "tool_choice", "needs tools"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", "missing"),
    ({"text": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "text.format", "not"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", "xml"),
    ({"text": {"format": {"type": "json_object"}}, "tools": [FUNCTION]}, "text.format", "tools"),
    ({"reasoning": {"effort": "high"}}, "reasoning.effort", "template"),
    ({"max_output_tokens": 0}, "max_output_tokens", ""),
    ({"max_output_tokens": 1 << 20}, "max_output_tokens", "context"),
    ({"metadata": {"a": "x" * 513}}, "metadata", "512"),
    ({"input": MEBIBYTE}, "input", "context"),
    ({"instructions": MEBIBYTE}, "input", "context"),
    ({"input": nested(70)}, "input", "64 levels"),
]
MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens: is missing"),
    ({"max_tokens": 0}, "max_tokens: "),
    ({"messages": []}, "messages: "),
    ({"messages": [3]}, "messages.0: "),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role: "),
    (past({"type": "thinking", "thinking": "x"}), "messages.1.content: must be text"),
    ({"messages": [USER, {"role": "assistant", "content": []}]}, "messages.1.content: must be text"),
    (turn({"type": "image", "source": {}}), 'messages.1.content.0.type "image"'),
    (turn({"type": "document", "source": {}}), 'messages.1.content.0.type "document"'),
    (turn({"type": "made_up"}), 'messages.1.content.0.type "made_up"'),
    (turn({"type": "text"}), "messages.1.content.0.text: is missing"),
    (turn({"type": "tool_result", "tool_use_id": "t"}), "messages.1.content.0.tool_use_id: names no call"),
    (turn({"type": "tool_result"}), "messages.1.content.0.tool_use_id: is missing"),
    (past({"type": "tool_use", "id": "t", "name": "f", "input": 3}), "messages.1.content.0.input: "),
    (past({"type": "tool_use", "id": "t", "input": {}}), "messages.1.content.0.name: is missing"),
    (past({"type": "redacted_thinking", "data": "x"}), "messages.1.content.0.type"),
    ({"system": [{"type": "image"}]}, 'system.0.type "image"'),
    ({"tools": [{"type": "web_search_20260101", "name": "f"}]}, 'tools.0.type "web_search_20260101"'),
    ({"tools": [{"name": "f"}]}, "tools.0.input_schema: is missing"),
    *(({"tools": [TOOL | {"name": name}]}, "tools.0.name: ") for name in ("a b", 'a"b', "a\nb", "")),
    ({"tools": [TOOL | {"name": f"f{n}"} for n in range(5000)]}, "tools: Expected"),
    (
        {"messages": [USER, TOOL_USE, {"role": "user", "content": [TOOL_RESULT | {"content": MEBIBYTE}]}]},
        "This model's maximum context length",
    ),
    (
        {"tools": [TOOL | {"input_schema": {"$ref": "#"}}], "tool_choice": {"type": "any"}},
        "tool_choice: no text is allowed",
    ),
    ({"tools": [TOOL, TOOL]}, "tools: two tools"),
    ({"tools": [TOOL | {"description": MEBIBYTE}]}, "tools: at most"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name: "),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name: is missing"),
    ({"tool_choice": {"type": "any"}}, "tool_choice: needs tools"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "output_config.format: "),
    ({"output_config": {"effort": "high"}}, "output_config.effort: "),
    ({"stop_sequences": [""]}, "stop_sequences.0: "),
    ({"container": "c"}, "container is not supported"),
    ({"mcp_servers": [{"type": "url"}]}, "mcp_servers is not supported"),
    ({"thinking": {"type": "loud"}}, "thinking.type: "),
    ({"system": MEBIBYTE}, "This model's maximum context length"),
    ({"system": nested(70)}, "The body is refused as JSON: "),
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with repeating_server(tmp_path_factory.mktemp("refusals")) as running:
        yield running
        assert running.quiet()


def test_a_response_is_refused_by_the_path_that_the_client_wrote(server: EngineProcess) -> None:
    for fields, param, words in RESPONSES:
        answer = server.post("/v1/responses", {"model": "tiny", "input": "x", **fields})
        assert answer.status_code == 400, (str(fields)[:200], answer.text)
        error = answer.json()["error"]
        assert (error["param"], error["type"]) == (param, "invalid_request_error"), error
        assert words in error["message"], error


def test_a_message_is_refused_by_anthropics_error_object(server: EngineProcess) -> None:
    for fields, message in MESSAGES:
        answer = server.post("/v1/messages", {"model": "tiny", "messages": [USER], "max_tokens": 5, **fields})
        assert answer.status_code == 400, (str(fields)[:200], answer.text)
        error = answer.json()
        assert error["error"]["message"].startswith(message), (error, message)
        assert error["error"]["type"] == "invalid_request_error"
        assert error["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("GET", "/v1/messages/batches", 404, "not_found_error"),
        ("POST", "/v1/messages/count_tokens", 415, "invalid_request_error"),
    ],
)
def test_every_error_below_messages_has_anthropics_form(
    method: str, path: str, status: int, kind: str, server: EngineProcess
) -> None:
    with httpx.Client(trust_env=False) as client:
        answer = client.request(method, server.url + path, content=b"x" if method == "POST" else None)
    assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)


def test_an_error_in_the_middle_of_a_stream_is_the_last_event(server: EngineProcess, start: Any) -> None:
    token = server.post("/tokenize", {"prompt": "zz"}).json()["tokens"][0]
    one = start(crash_token=token, step_seconds=0.05)
    with httpx.Client(trust_env=False, timeout=30) as client:

        def lines(path: str, body: dict[str, Any]) -> Iterator[list[Any]]:
            with client.stream(
                "POST", one.url + path, json={"model": "tiny", "stream": True, **body}
            ) as response:
                it = response.iter_lines()
                yield [next(it) for _ in range(6)]
                yield list(it)

        first = lines("/v1/messages", {"messages": [USER | {"content": "the dog " * 20}], "max_tokens": 300})
        second = lines("/v1/responses", {"input": "the dog " * 20, "max_output_tokens": 300})
        next(first)
        next(second)
        one.complete("zz")
        message, response = ([line for line in next(it) if line] for it in (first, second))
    assert message[-2] == "event: error"
    assert json.loads(message[-1].removeprefix("data: "))["error"]["type"] == "overloaded_error"
    assert response[-2] == "event: error"
    error = json.loads(response[-1].removeprefix("data: "))
    assert (error["type"], error["code"]) == ("error", "engine_died")
    numbers = [
        json.loads(line.removeprefix("data: "))["sequence_number"]
        for line in response
        if line.startswith("data")
    ]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
