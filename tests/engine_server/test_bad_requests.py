"""Whatever clients send, they get OpenAI's error object with the field at fault, and the server goes on."""

import gzip
import json
import socket
from typing import Any

import pytest

from tests.support.engine_process import EngineProcess, eventually

GOOD: dict[str, Any] = {"model": "tiny", "prompt": "the", "max_tokens": 2}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "the"}], "max_tokens": 2}
HUGE = 10**400

# fields, the path the error must name
COMPLETION_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model"),
    ({"model": 5}, "model"),
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": {}}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [320]}, "prompt"),
    ({"prompt": [2**31]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": ["a"] * 65}, "prompt"),
    ({"prompt": [5] * 512}, "prompt"),
    ({"prompt": "x" * 3_000_000}, "prompt"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"n": True}, "n"),
    ({"n": "2"}, "n"),
    ({"n": 2**63}, "n"),
    ({"n": 1.5}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 2**31}, "max_tokens"),
    ({"max_tokens": HUGE}, "max_tokens"),
    ({"max_tokens": 512}, "max_tokens"),
    ({"max_tokens": "9"}, "max_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": 1e308}, "temperature"),
    ({"temperature": HUGE}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.01}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"seed": 2**63}, "seed"),
    ({"seed": "x"}, "seed"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": ["a"] * 100_000}, "stop"),
    ({"stop": [""]}, "stop.0"),
    ({"stop": ["a", 1]}, "stop.1"),
    ({"stop": ["x" * 257]}, "stop.0"),
    ({"stop": "x" * 257}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop_token_ids": [-1]}, "stop_token_ids.0"),
    ({"stream": "yes"}, "stream"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"echo": 1}, "echo"),
    ({"suffix": "x"}, "suffix"),
    ({"best_of": 3}, "best_of"),
    ({"best_of": 2, "n": 1}, "best_of"),
    ({"prompt": ["a"] * 33, "n": 2}, "n"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"guided_regex": "(a+)+"}, "guided_regex"),
    ({"min_tokens": 5}, "min_tokens"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {"320": 1}}, "logit_bias"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [320]}, "allowed_token_ids"),
    ({"allowed_token_ids": [5] * 16385}, "allowed_token_ids"),
    ({"allowed_token_ids": [5], "structured_outputs": {"regex": "a"}}, "allowed_token_ids"),
    ({"min_tokens": 3, "ignore_eos": True}, "min_tokens"),
    ({"min_tokens": -1, "ignore_eos": True}, "min_tokens"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"cache_salt": 5}, "cache_salt"),
    ({"cache_salt": "x" * 1025}, "cache_salt"),
]
CALLING = {"role": "assistant", "content": ""}
CHAT_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": ["hi"]}, "messages.0"),
    ({"messages": [{"content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "user"}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
    (
        {"messages": [CALLING | {"tool_calls": [{}]}]},
        "messages.0.tool_calls.0.function",
    ),
    ({"messages": [{"role": "user", "content": "x"}] * 5000}, "messages"),
    ({"messages": [{"role": "user", "content": "x" * 600}]}, "messages"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": 512}, "max_completion_tokens"),
    ({"max_tokens": 512}, "max_tokens"),
    ({"max_tokens": 512, "max_completion_tokens": None}, "max_tokens"),
    ({"top_logprobs": 5}, "top_logprobs"),
    ({"logprobs": 1}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"tools": [{"type": "function"}]}, "tools.0.function"),
    ({"tools": [{"type": "function", "function": {"name": 'say "hi"'}}]}, "tools.0.function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}] * 2}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(2000)]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "f", "description": "x" * (1 << 20)}}]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),  # the template takes none
    ({"tools": 5}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "all"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice.function.name"),
    ({"documents": [{"text": "x"}]}, "documents"),  # likewise
    ({"reasoning_effort": "low"}, "reasoning_effort"),
    ({"reasoning_effort": "much"}, "reasoning_effort"),
    ({"functions": [{}], "function_call": {"name": "f"}}, "functions"),
    (
        {"messages": [CALLING | {"content": None, "tool_calls": [{}]}]},
        "messages.0.tool_calls.0.function",
    ),
    ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages.0.tool_calls"),
    (
        {"messages": [CALLING | {"tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
        "messages",
    ),
    ({"messages": [{"role": "tool", "tool_call_id": "1"}]}, "messages.0.content"),
    ({"messages": [{"role": "assistant", "content": None, "audio": {"id": "a"}}]}, "messages.0.audio"),
    ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": "x", "files": ["y" * (1 << 20)]}]}, "messages.0.files"),
    ({"messages": [{"role": "user", "content": "x", "id": 1 << 64}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "refusal", "text": "x"}]}]}, "messages.0.content"),
    ({"response_format": {"type": "json"}}, "response_format.type"),
    ({"chat_template": "{{ 1 }}"}, "chat_template"),
    ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs.messages"),
    ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self"),
    ({"chat_template_kwargs": {"raise_exception": "x"}}, "chat_template_kwargs.raise_exception"),
    ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
    ({"messages": [{"role": "user", "content": [{"type": "x" * 300_000}]}]}, "messages.0.content"),
    ({"chat_template_kwargs": {"documents": 1}}, "chat_template_kwargs.documents"),
    ({"chat_template_kwargs": {"level": 1 << 64}}, "chat_template_kwargs.level"),
]


def refused(response: Any, status: int = 400) -> dict[str, Any]:
    """The error object, after checking that it is one."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert 0 < len(error["message"]) <= 1000  # also where a library quotes a value of the body
    assert "Traceback" not in error["message"]
    return dict(error)


@pytest.mark.parametrize(("fields", "path"), COMPLETION_FIELDS, ids=lambda value: str(value)[:50])
def test_a_bad_field_of_a_completion_is_named(
    fields: dict[str, Any], path: str, server: EngineProcess
) -> None:
    begin = server.processor_seconds()
    assert refused(server.post("/v1/completions", GOOD | fields))["param"] == path
    assert server.processor_seconds() - begin < 2


@pytest.mark.parametrize(("fields", "path"), CHAT_FIELDS, ids=lambda value: str(value)[:50])
def test_a_bad_field_of_a_chat_is_named(fields: dict[str, Any], path: str, server: EngineProcess) -> None:
    assert refused(server.post("/v1/chat/completions", CHAT | fields))["param"] == path


def test_the_older_role_of_a_tools_answer_is_refused_by_name(server: EngineProcess) -> None:
    messages = [{"role": "function", "name": "f", "content": "r"}]
    error = refused(server.post("/v1/chat/completions", CHAT | {"messages": messages}))
    assert (error["param"], error["code"]) == ("messages.0.role", "unsupported_parameter")
    assert 'role "function", the older name of "tool", is not supported' in error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "me", "unheard_of": {"a": [1]}},
        {"best_of": 1, "echo": False, "suffix": None, "logit_bias": {}, "min_tokens": 0},
        {"min_tokens": 2, "stop": "x", "stop_token_ids": [5]},
        {"stream_options": None, "stream": False},
        {"response_format": {"type": "text"}},
        {"stop": None, "n": None, "temperature": None, "seed": None, "logprobs": None},
        {"top_k": -1, "min_p": 0, "seed": -5, "temperature": 0},
        {"stop": []},
    ],
    ids=str,
)
def test_unknown_fields_and_neutral_values_are_accepted(
    fields: dict[str, Any], server: EngineProcess
) -> None:
    response = server.post("/v1/completions", GOOD | fields)
    assert response.status_code == 200, response.text


BODIES: dict[str, bytes] = {
    "empty": b"",
    "cut": b'{"model": "tiny", "prompt": "th',
    "no object": b"[]",
    "a number": b"5",
    "null": b"null",
    "NaN": b'{"model": "tiny", "prompt": "x", "temperature": NaN}',
    "Infinity": b'{"model": "tiny", "prompt": "x", "temperature": Infinity}',
    "bad UTF-8": b'{"model": "tiny", "prompt": "\xff\xfe"}',
    "UTF-16": json.dumps(GOOD).encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf" + json.dumps(GOOD).encode(),
    "lone surrogate": b'{"model": "tiny", "prompt": "\\ud800"}',
    "raw NUL in a string": b'{"model": "tiny", "prompt": "\x00"}',
    "same key twice": b'{"model": "tiny", "prompt": "x", "prompt": "y"}',
    "100,000 brackets": b"[" * 100_000,
    "deep inside a field": b'{"model": "tiny", "prompt": "x", "a": ' + b"[" * 500 + b"]" * 500 + b"}",
    "deep and closed": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_that_is_no_good_json_is_refused(body: bytes, server: EngineProcess) -> None:
    response = server.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert refused(response)["code"] == "invalid_json"


def test_a_number_that_no_float_holds_is_refused_in_a_field_of_no_api(server: EngineProcess) -> None:
    body = b'{"model": "tiny", "messages": [{"role": "user", "content": "x", "weights": [1, 1e999]}]}'
    response = server.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    assert refused(response)["param"] == "messages.0.weights.1"


def test_a_number_of_10000_digits_is_refused_by_its_field(server: EngineProcess) -> None:
    body = b'{"model": "tiny", "prompt": "x", "n": ' + b"9" * 10_000 + b"}"
    response = server.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert refused(response)["param"] == "n"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tokenize", {}, None),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "messages"),
        ("/tokenize", {"prompt": "x", "add_special_tokens": 1}, "add_special_tokens"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens.0"),
        ("/detokenize", {"tokens": [2**31]}, "tokens.0"),
        ("/detokenize", {"tokens": ["1"]}, "tokens.0"),
    ],
    ids=str,
)
def test_bad_requests_for_tokens_are_refused(
    path: str, body: dict[str, Any], field: str | None, server: EngineProcess
) -> None:
    assert refused(server.post(path, body))["param"] == field


def test_tokenize_and_detokenize_are_inverse_and_know_the_chat_template(server: EngineProcess) -> None:
    ids = server.post("/tokenize", {"prompt": "the quick \U0001f389"}).json()
    assert ids["count"] == len(ids["tokens"]) == 7
    assert server.post("/detokenize", {"tokens": ids["tokens"]}).json()["prompt"] == "the quick \U0001f389"
    chat = server.post("/tokenize", {"messages": [{"role": "user", "content": "the"}]}).json()["tokens"]
    text = server.post("/detokenize", {"tokens": chat}).json()["prompt"]
    assert text == "<s><|user|>the\n<|assistant|>"
    assert server.post("/detokenize", {"tokens": [319, 5000]}).json()["prompt"] == ""


def test_an_escaped_nul_is_only_a_character(server: EngineProcess) -> None:
    assert server.complete("a\x00b", max_tokens=3).json()["choices"][0]["text"] == "a\x00b"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "GZIP"])
def test_compressed_bodies_are_refused_unread(encoding: str, server: EngineProcess) -> None:
    bomb = gzip.compress(b" " * 10_000_000)
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    error = refused(server.post("/v1/completions", content=bomb, headers=headers), 415)
    assert error["code"] == "unsupported_encoding"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_other_content_types_are_refused(kind: str, server: EngineProcess) -> None:
    response = server.post("/v1/completions", content=b"{}", headers={"Content-Type": kind})
    assert refused(response, 415)["code"] == "unsupported_media_type"


def test_a_body_over_the_limit_is_refused_by_its_announced_and_by_its_real_length(
    server: EngineProcess,
) -> None:
    big = b" " * ((4 << 20) + 1)
    headers = {"Content-Type": "application/json"}
    assert (
        refused(server.post("/v1/completions", content=big, headers=headers), 413)["code"] == "body_too_large"
    )
    pieces = (big[at : at + 65536] for at in range(0, len(big), 65536))  # chunked: no announced length
    assert refused(server.post("/v1/completions", content=pieces, headers=headers), 413)


def test_unknown_routes_and_methods_get_error_objects(server: EngineProcess) -> None:
    assert refused(server.get("/get_server_info"), 404)["code"] == "not_found"
    assert refused(server.post("/v1/embeddings", {}), 404)
    assert refused(server.get("/v1/completions"), 405)["code"] == "method_not_allowed"
    assert refused(server.get("/v1/models/other"), 404)["code"] == "model_not_found"
    assert refused(server.get("/v1/../metrics/x"), 404)


def test_another_model_is_not_found(server: EngineProcess) -> None:
    error = refused(server.post("/v1/completions", GOOD | {"model": "gpt-9"}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")


def test_an_error_of_one_request_is_told_to_its_client_alone(start: Any) -> None:
    running = start(error_token=5)
    assert refused(running.complete([5], max_tokens=3), 500)["code"] == "engine_error"
    assert running.complete([6], max_tokens=3).status_code == 200
    assert running.metric("vllm:request_success_total", finished_reason="error") == 1


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,  # a TLS hello
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x00" * 1000,
    ],
    ids=["tls", "long header", "long path", "negative length", "two lengths", "bad chunk", "zeros"],
)
def test_broken_http_is_answered_with_4xx_or_hung_up_on(raw: bytes, server: EngineProcess) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        try:
            connection.sendall(raw)
            answer = connection.recv(4096)
        except ConnectionError:
            answer = b""
    assert not answer or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), answer[:100]
    assert server.get("/health").status_code == 200


def test_after_all_this_the_server_still_serves_and_holds_nothing(server: EngineProcess) -> None:
    assert server.post("/v1/completions", GOOD).status_code == 200
    eventually(server.quiet, "no request and no block left")
    assert "Traceback" not in server.log.read_text()
