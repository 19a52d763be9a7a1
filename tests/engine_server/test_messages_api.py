"""/v1/messages beyond what the recorded exchanges of the SDK show."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tangram_engine.serve.dialects import messages_reply
from tests.support.dialect_servers import ANSWER, SCHEMA, repeating_server
from tests.support.engine_process import EngineProcess, eventually

USER = {"role": "user", "content": "x"}
TOOLS = [{"name": name, "input_schema": SCHEMA} for name in ("f", "g")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    folder = tmp_path_factory.mktemp("messages")
    (folder / "keys").write_text("k" * 8)
    flags = ("--api-key-file", str(folder / "keys"), "--max-num-seqs", "1", "--max-queued-requests", "0")
    with repeating_server(folder, *flags, step_seconds=0.002) as running:
        yield running


def said(server: EngineProcess, path: str = "/v1/messages", **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "max_tokens": 300, "messages": [USER], **fields}
    return server.post(path, body, headers={"x-api-key": "k" * 8})


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-api-key": "k" * 8}, 200),
        ({"Authorization": "Bearer " + "k" * 8}, 200),
        ({"x-api-key": "other"}, 401),
        ({"x-api-key": "k" * 8, "Authorization": "Bearer other"}, 401),
        ({}, 401),
    ],
)
def test_a_key_may_stand_in_anthropics_header(
    headers: dict[str, str], status: int, server: EngineProcess
) -> None:
    body = {"model": "tiny", "max_tokens": 1, "messages": [USER]}
    answer = server.post("/v1/messages", body, headers=headers)
    assert answer.status_code == status
    if status == 401:
        assert answer.json()["error"]["type"] == "authentication_error"
    chat = server.post("/v1/chat/completions", body, headers={"x-api-key": "k" * 8})
    assert chat.status_code == 401


@pytest.mark.parametrize(
    ("fields", "kinds", "stop_reason"),
    [
        ({}, ["thinking", "text", "tool_use", "tool_use"], "tool_use"),
        ({"tool_choice": {"type": "none"}}, ["thinking", "text"], "end_turn"),
        (
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            ["thinking", "text", "tool_use"],
            "tool_use",
        ),
        (
            {"thinking": {"type": "adaptive", "display": "omitted"}},
            ["text", "tool_use", "tool_use"],
            "tool_use",
        ),
        ({"thinking": {"type": "disabled"}}, ["thinking", "text", "tool_use", "tool_use"], "tool_use"),
    ],
    ids=str,
)
def test_an_answer_has_the_blocks_that_the_fields_ask_for(
    fields: dict[str, Any], kinds: list[str], stop_reason: str, server: EngineProcess
) -> None:
    answer = said(server, messages=[{"role": "user", "content": ANSWER}], tools=TOOLS, **fields).json()
    assert [block["type"] for block in answer["content"]] == kinds
    assert answer["stop_reason"] == stop_reason


@pytest.mark.parametrize(
    "written", ['{"a": 1,}', '{"a":' * 2000 + "1" + "}" * 2000, '{"a": 1e999}', '{"a": NaN}', "[]", "\ud800"]
)
def test_arguments_that_are_no_object_stay_text(written: str) -> None:
    assert messages_reply._input(written) == {"arguments": written}


def test_an_answer_ends_with_the_context_where_max_tokens_reaches_beyond(server: EngineProcess) -> None:
    words = {"role": "user", "content": "<think></think>" + "the quick brown fox " * 25}
    answer = said(server, messages=[words], system="x" * 300, max_tokens=100_000).json()
    usage = answer["usage"]
    assert answer["stop_reason"] == "model_context_window_exceeded"
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["output_tokens"] == 512
    assert said(server, messages=[words], max_tokens=5).json()["stop_reason"] == "max_tokens"


def test_an_answer_goes_on_with_the_assistants_message_at_the_end(server: EngineProcess) -> None:
    prefill = {"role": "assistant", "content": [{"type": "text", "text": "<think></think>the"}]}
    fields: Any = {"messages": [USER, prefill]}
    answer = said(server, max_tokens=40, **fields).json()
    # The engine repeats its prompt, which ends with the message, and not behind it.
    assert answer["content"][0]["text"].startswith("x<think></think>thex")
    counted = said(server, "/v1/messages/count_tokens", **fields).json()
    usage = answer["usage"]
    assert counted["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_tokens_are_counted_as_the_answer_counts_them(server: EngineProcess) -> None:
    fields: Any = {"messages": [{"role": "user", "content": "the dog"}], "tools": TOOLS, "system": "be"}
    counted = server.post(
        "/v1/messages/count_tokens", {"model": "tiny", **fields}, headers={"x-api-key": "k" * 8}
    ).json()
    assert counted == {"input_tokens": said(server, max_tokens=1, **fields).json()["usage"]["input_tokens"]}


def test_a_full_queue_and_a_client_that_leaves_are_as_for_a_chat(
    server: EngineProcess, tmp_path: Path
) -> None:
    def metric(name: str, **labels: str) -> float:
        return server.metric(name, **labels)

    long = {"role": "user", "content": "<think></think>" + "the dog " * 40}
    body = {"model": "tiny", "max_tokens": 400, "messages": [long], "stream": True}
    url, headers = f"{server.url}/v1/messages", {"x-api-key": "k" * 8}
    with (
        httpx.Client(trust_env=False, timeout=30) as client,
        client.stream("POST", url, json=body, headers=headers) as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines) == "event: message_start"
        refused = said(server)
        assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
        assert refused.headers["Retry-After"]
    eventually(lambda: metric("vllm:num_requests_running") == 0, "the request ends")
    assert metric("tangram:requests_rejected_total", reason="queue_full") == 1
    assert metric("vllm:request_success_total", finished_reason="abort") == 1


def test_a_system_message_may_stand_anywhere(server: EngineProcess) -> None:
    messages = [
        {"role": "system", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
    ]
    answer = said(server, system=[{"type": "text", "text": "0"}], messages=messages).json()
    assert json.dumps(answer["content"][0]["text"]) == '"0ab"'
