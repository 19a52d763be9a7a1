"""Bodies that are made to cost a JSON parser, or what follows it, far more than their bytes."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tangram_engine.serve.dialects.messages_request import read_messages
from tangram_engine.serve.dialects.responses_request import read_responses
from tangram_engine.serve.http.body import parse
from tangram_engine.serve.http.params import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)

READERS: dict[str, Callable[[bytes], Any]] = {
    "/v1/completions": partial(parse, model=CompletionRequest),
    "/v1/chat/completions": partial(parse, model=ChatRequest),
    "/v1/responses": read_responses,
    "/v1/messages": read_messages,
    "/tokenize": partial(parse, model=TokenizeRequest),
    "/detokenize": partial(parse, model=DetokenizeRequest),
}
PROMPT = b'"model":"tiny","prompt":"the","max_tokens":1'
CHAT = b'"model":"tiny","messages":[{"role":"user","content":"the"}],"max_tokens":1'


def repeated(before: bytes, unit: bytes, after: bytes) -> Callable[[int], bytes]:
    """A body of about `size` bytes, mostly `unit`; `%d` in it counts up."""

    def build(size: int) -> bytes:
        room = size - len(before) - len(after)
        if b"%d" not in unit:
            return before + unit * (room // len(unit)) + after
        return before + b"".join(numbered(unit, room)) + after

    return build


def numbered(unit: bytes, room: int) -> Iterator[bytes]:
    number = 0
    while room > 0:
        piece = unit.replace(b"%d", b"%d" % number)
        room -= len(piece)
        number += 1
        yield piece


def closed(opening: bytes, closing: bytes) -> Callable[[int], bytes]:
    def build(size: int) -> bytes:
        depth = size // (len(opening) + len(closing))
        return b'{"a":' + opening * depth + b"1" + closing * depth + b"}"

    return build


def colliding(size: int) -> bytes:
    """Keys of equal hash in a parser that makes integers of them: CPython hashes those modulo 2**61 - 1."""
    count = size // 24
    members = b",".join(b'"%d":0' % (number * (2**61 - 1)) for number in range(1, count))
    return b'{"logit_bias":{' + members + b"}," + PROMPT + b"}"


BOMBS: dict[str, tuple[str, Callable[[int], bytes]]] = {
    name: ("/v1/completions", build)
    for name, build in {
        "unterminated string of escaped quotes": repeated(b'"', b'\\"', b"[" * 65),
        "unterminated string of backslashes": repeated(b'{"prompt":"', b"\\\\", b"[" * 65),
        "unterminated string": repeated(b'{"prompt":"', b"x", b""),
        "escaped quotes": repeated(b'{"model":"tiny","prompt":"', b'\\"', b'"}'),
        "escaped backslashes": repeated(b'{"model":"tiny","prompt":"', b"\\\\", b'"}'),
        "quotes alone": repeated(b"", b'"', b""),
        "odd backslashes": repeated(b'{"prompt":"', b'\\\\\\"', b'"}'),
        "arrays unclosed": repeated(b"", b"[", b""),
        "objects unclosed": repeated(b"", b'{"a":', b""),
        "mixed unclosed": repeated(b"", b'[{"a":', b""),
        "arrays nested": closed(b"[", b"]"),
        "objects nested": closed(b'{"a":', b"}"),
        "mixed nested": closed(b'[{"a":', b"}]"),
        "arrays in an unknown field": repeated(b'{"a":[', b"[],", b"0]," + PROMPT + b"}"),
        "objects in an unknown field": repeated(b'{"a":[', b"{},", b"0]," + PROMPT + b"}"),
        "small objects in an unknown field": repeated(b'{"a":[', b'{"a":[1]},', b"0]," + PROMPT + b"}"),
        "depth 63, again and again": repeated(
            b'{"a":[', b"[" * 60 + b"]" * 60 + b",", b"0]," + PROMPT + b"}"
        ),
        "one number of a million digits": repeated(b"{" + PROMPT + b',"n":', b"9", b"}"),
        "an unknown number of a million digits": repeated(b"{" + PROMPT + b',"a":', b"9", b"}"),
        "numbers of 4,000 digits": repeated(b"{" + PROMPT + b',"a":[', b"9" * 4000 + b",", b"0]}"),
        "ids of 60 digits": repeated(b'{"model":"tiny","prompt":[', b"9" * 60 + b",", b"0]}"),
        "ids beyond 64 bits": repeated(b'{"model":"tiny","prompt":[', b"18446744073709551616,", b"0]}"),
        "floats that are hard to round": repeated(
            b"{" + PROMPT + b',"a":[', b"9007199254740993." + b"0" * 36 + b"1,", b"0]}"
        ),
        "floats as ids": repeated(b'{"model":"tiny","prompt":[', b"9007199254740993.0000000000001,", b"0]}"),
        "the same float again and again": repeated(
            b"{" + PROMPT, b',"temperature":9007199254740993.0000000000000000000000000000001', b"}"
        ),
        "a float of a million digits": repeated(b"{" + PROMPT + b',"temperature":0.', b"1", b"}"),
        "huge exponents": repeated(b"{" + PROMPT + b',"a":[', b"1e999999999,", b"0]}"),
        "one huge exponent": repeated(b"{" + PROMPT + b',"temperature":1e', b"9", b"}"),
        "NaN": repeated(b"{" + PROMPT + b',"a":[', b"NaN,", b"0]}"),
        "Infinity": repeated(b"{" + PROMPT + b',"a":[', b"-Infinity,", b"0]}"),
        "half surrogates": repeated(b'{"model":"tiny","prompt":"', b"\\ud800", b'"}'),
        "surrogate pairs": repeated(b'{"model":"tiny","prompt":"', b"\\ud83c\\udf89", b'"}'),
        "surrogate pairs, then half of one": repeated(b'{"prompt":"', b"\\ud83c\\udf89", b'\\ud83c"}'),
        "backslashes, then half a surrogate pair": repeated(b'{"prompt":"', b"\\\\", b'\\ud83c"}'),
        "keys, then half a surrogate pair": repeated(b"{", b'"%d":0,', b'"\\ud83c":0}'),
        "ids, then NaN": repeated(b'{"model":"tiny","prompt":[', b"5,", b"NaN]}"),
        "escapes": repeated(b'{"model":"tiny","prompt":"', b"\\u0041", b'"}'),
        "invalid UTF-8": repeated(b'{"model":"tiny","prompt":"', b"\xff", b'"}'),
        "UTF-8 cut at the end": repeated(b'{"model":"tiny","prompt":"', "\U0001f389".encode(), b'\xf0"}'),
        "emoji": repeated(b'{"model":"tiny","prompt":"', "\U0001f389".encode(), b'"}'),
        "byte order marks": repeated(b"", b"\xef\xbb\xbf", b"{" + PROMPT + b"}"),
        "NUL": repeated(b"", b"\x00", b""),
        "NUL in a string": repeated(b'{"model":"tiny","prompt":"', b"\x00", b'"}'),
        "spaces": repeated(b"{", b" ", PROMPT + b"}"),
        "spaces after a key": repeated(b'{"a"', b" ", b":1," + PROMPT + b"}"),
        "the same key": repeated(b"{", b'"a":0,', PROMPT + b"}"),
        "the same key, known": repeated(b"{", b'"prompt":"x",', PROMPT + b"}"),
        "the same key, below": repeated(b'{"a":{', b'"a":0,', b'"b":0},' + PROMPT + b"}"),
        "the same key with a long value": repeated(b"{", b'"stop":["' + b"x" * 999 + b'"],', PROMPT + b"}"),
        "keys that differ": repeated(b"{", b'"%d":0,', PROMPT + b"}"),
        "keys that differ, below": repeated(b'{"a":{', b'"%d":0,', b'"b":0},' + PROMPT + b"}"),
        "keys with escapes": repeated(b"{", b'"\\u0041%d":0,', PROMPT + b"}"),
        "keys of equal hash": colliding,
        "a long key": repeated(b'{"', b"k", b'":0,' + PROMPT + b"}"),
        "a long key of options": repeated(b"{" + CHAT + b',"chat_template_kwargs":{"', b"k", b'":[]}}'),
        "unknown fields with text": repeated(b"{", b'"field%d":"text",', PROMPT + b"}"),
        "stop strings": repeated(b"{" + PROMPT + b',"stop":[', b'"ab",', b'"c"]}'),
        "a stop string": repeated(b"{" + PROMPT + b',"stop":"', b"a", b'"}'),
        "logit_bias": repeated(b"{" + PROMPT + b',"logit_bias":{', b'"%d":1,', b'"a":0}}'),
        "stop_token_ids": repeated(b"{" + PROMPT + b',"stop_token_ids":[', b"5,", b"5]}"),
        "prompts": repeated(b'{"model":"tiny","prompt":[', b'"a",', b'"b"]}'),
        "a long prompt": repeated(b'{"model":"tiny","prompt":"', b"the quick brown fox ", b'"}'),
        "one letter": repeated(b'{"model":"tiny","prompt":"', b"z", b'"}'),
        "prompts of ids": repeated(b'{"model":"tiny","prompt":[', b"[5],", b"[5]]}"),
        "ids": repeated(b'{"model":"tiny","prompt":[', b"123456,", b"5]}"),
        "ids of one digit": repeated(b'{"model":"tiny","prompt":[', b"5,", b"5]}"),
        "ids that are no ids": repeated(b'{"model":"tiny","prompt":[', b"true,", b"5]}"),
        "a long model": repeated(b'{"prompt":"the","model":"', b"m", b'"}'),
    }.items()
}
BOMBS |= {
    name: ("/v1/chat/completions", build)
    for name, build in {
        "messages": repeated(b'{"model":"tiny","messages":[', b'{"role":"user","content":""},', b"0]}"),
        "empty messages": repeated(b'{"model":"tiny","messages":[', b"{},", b"{}]}"),
        "messages that are none": repeated(b'{"model":"tiny","messages":[', b"0,", b"0]}"),
        "parts": repeated(
            b'{"model":"tiny","messages":[{"role":"user","content":[',
            b'{"type":"text","text":""},',
            b'{"type":"text","text":"a"}]}]}',
        ),
        "unknown fields of a message": repeated(
            b'{"model":"tiny","messages":[{"role":"user","content":""',
            b',"a%d":[' + b"9007199254740993.0000000000001," * 4000 + b"0]",
            b"}]}",
        ),
        "an unknown field of a message": repeated(
            b'{"model":"tiny","messages":[{"role":"user","content":"","a":[', b"9" * 4000 + b",", b"0]}]}"
        ),
        "unknown fields of messages": repeated(
            b'{"model":"tiny","messages":[', b'{"role":"user","content":"","a":{}},', b'{"role":""}]}'
        ),
        "a long role": repeated(b'{"model":"tiny","messages":[{"content":"","role":"', b"r", b'"}]}'),
        "tool calls": repeated(
            b'{"model":"tiny","messages":[{"role":"user","content":"","tool_calls":[', b"{},", b"{}]}]}"
        ),
        "tools": repeated(
            b"{" + CHAT + b',"tools":[', b'{"type":"function","function":{"name":"f%d"}},', b"0]}"
        ),
        "options": repeated(b"{" + CHAT + b',"chat_template_kwargs":{', b'"k%d":1,', b'"a":0}}'),
        "a long option": repeated(b"{" + CHAT + b',"chat_template_kwargs":{"a":"', b"v", b'"}}'),
    }.items()
}
BOMBS |= {
    "a prompt to count": ("/tokenize", repeated(b'{"prompt":"', b"the quick ", b'"}')),
    "ids to decode": ("/detokenize", repeated(b'{"tokens":[', b"123,", b"5]}")),
    "bad ids to decode": ("/detokenize", repeated(b'{"tokens":[', b"-1,", b"5]}")),
    "texts to decode": ("/detokenize", repeated(b'{"tokens":[', b'"",', b"5]}")),
}
MESSAGES = b'{"model":"tiny","max_tokens":1,"messages":['
BOMBS |= {
    f"{name} of a dialect": bomb
    for name, bomb in {
        "items": (
            "/v1/responses",
            repeated(b'{"model":"tiny","input":[', b'{"role":"user","content":""},', b"0]}"),
        ),
        "calls": (
            "/v1/responses",
            repeated(
                b'{"model":"tiny","input":[', b'{"type":"function_call","call_id":"%d","name":"f"},', b"0]}"
            ),
        ),
        "parts": (
            "/v1/responses",
            repeated(
                b'{"model":"tiny","input":[{"role":"user","content":[',
                b'{"type":"input_text","text":""},',
                b'{"type":"input_text","text":""}]}]}',
            ),
        ),
        "a long tool": (
            "/v1/responses",
            repeated(
                b'{"model":"tiny","input":"x","tools":[{"type":"function","name":"f","parameters":{"enum":[',
                b"1,",
                b"1]}}]}",
            ),
        ),
        "tools": (
            "/v1/messages",
            repeated(MESSAGES + b'0],"tools":[', b'{"name":"f%d","input_schema":{}},', b"0]}"),
        ),
        "messages": ("/v1/messages", repeated(MESSAGES, b'{"role":"user","content":[]},', b"0]}")),
        "blocks": (
            "/v1/messages",
            repeated(
                MESSAGES + b'{"role":"user","content":[',
                b'{"type":"text","text":""},',
                b'{"type":"text","text":""}]}]}',
            ),
        ),
        "blocks of many messages": (
            "/v1/messages",
            repeated(
                MESSAGES,
                b'{"role":"user","content":['
                + b'{"type":"text","text":""},' * 9
                + b'{"type":"text","text":""}]},',
                b'{"role":"user","content":""}]}',
            ),
        ),
        "a long text": (
            "/v1/messages",
            repeated(MESSAGES + b'{"role":"user","content":"', "é".encode(), b'"}]}'),
        ),
        "an input": (
            "/v1/messages",
            repeated(
                MESSAGES
                + b'{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{"a":[',
                b"1,",
                b'1]}}]},{"role":"user","content":"x"}]}',
            ),
        ),
    }.items()
}
