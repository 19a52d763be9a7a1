"""A body that is no good JSON is refused with what is wrong, the byte, and the field in `param`."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_engine.serve.http.body import parse
from tangram_engine.serve.http.errors import APIError
from tangram_engine.serve.http.json_faults import path_at
from tangram_engine.serve.http.params import ChatRequest


def chat(text: bytes) -> bytes:
    return b'{"model":"m","messages":[{"role":"user","content":"' + text + b'"}]}'


def refusal(raw: bytes) -> APIError:
    with pytest.raises(APIError) as refused:
        parse(raw, ChatRequest)
    assert refused.value.code == "invalid_json"
    return refused.value


CONTENT = "messages.0.content"
HALF = "is half of a surrogate pair, and no Unicode character"
FAULTS: list[tuple[bytes, str | None, str]] = [
    (chat(b"\\ud83d"), CONTENT, rf"\ud83d {HALF} (byte 51)"),
    (chat(b"a \\uD83D b"), CONTENT, rf"\uD83D {HALF} (byte 53)"),
    (chat(b"\\ude00 b"), CONTENT, rf"\ude00 {HALF} (byte 51)"),
    (chat(b"\\ud83d\\u0041"), CONTENT, rf"\ud83d {HALF} (byte 51)"),
    (chat(b"\\ud83d\\ude00\\ud83d\\n"), CONTENT, rf"\ud83d {HALF} (byte 63)"),
    (chat(b"\\\\ud83d \\ud83d\\ud83d"), CONTENT, rf"\ud83d {HALF} (byte 59)"),
    (b'{"model":"\\ud83d"', "model", rf"\ud83d {HALF} (byte 10)"),
    (b'{"metadata":{"a":["",{"b":"\\udfff"}]}}', "metadata.a.1.b", rf"\udfff {HALF} (byte 27)"),
    (b'{"a":{"\\ud83d":1}}', "a", rf"\ud83d {HALF} (byte 7)"),
    (chat(b"\xf0\x9f"), CONTENT, "byte 51 is 0xf0, which is not UTF-8 there"),
    (chat(b"ok \xff"), CONTENT, "byte 54 is 0xff, which is not UTF-8 there"),
    (chat(b"a\nb"), CONTENT, r"unexpected '\n' (byte 52)"),
    (chat(b"\\x41"), CONTENT, "invalid escaped character (byte 52)"),
    (chat(b"\\u12"), CONTENT, "invalid character in unicode escape (byte 56)"),
    (b'{"model":"m","temperature":NaN}', "temperature", "NaN is no value of JSON (byte 27)"),
    (b'{"temperature":-Infinity}', "temperature", "Infinity is no value of JSON (byte 16)"),
    (b'{"stop_token_ids":[1, 2, Infinity]}', "stop_token_ids.2", "Infinity is no value of JSON (byte 25)"),
    (b'{"stream":True}', "stream", "True is no value of JSON (byte 10)"),
    (b'{"stop":None}', "stop", "None is no value of JSON (byte 8)"),
    (b'{"model":"m","model":"x"}', "model", "an object has the same key twice (byte 21)"),
    (b'{"a":[{"b":1 , "b" :2}]}', "a.0.b", "an object has the same key twice (byte 20)"),
    (b'{"a":' + b"[" * 70 + b"]" * 70 + b"}", "a", "nested more than 64 levels deep"),
    (b'{"a":' * 50_000, "a", "nested more than 64 levels deep"),
    (b"", None, "the body is empty"),
    (b" \n", None, "the body is empty"),
    (b'{"messages":[{"role":"us', "messages.0.role", "the body ends at byte 24, before its JSON does"),
    (b'{"model":"\\ud83d', "model", "the body ends at byte 16, before its JSON does"),
    (b'{"a":1', "a", "the body ends at byte 6, before its JSON does"),
    (b"\xef\xbb\xbf{}", None, "the body begins with a byte order mark, and must be UTF-8 without one"),
    ("{}".encode("utf-16"), None, "the body begins with a byte order mark, and must be UTF-8 without one"),
    (b'{"a":1,}', None, "trailing comma in object (byte 7)"),
    (b'{"a":1}}', None, "trailing characters (byte 8)"),
    (b'{"a":?}', "a", "unexpected '?' (byte 5)"),
    (b"\x89PNG", None, "unexpected character (byte 0)"),
    (b'{"a":[' + b'"",' * (1 << 17) + b"0]}", None, "more than 131072 strings"),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "path", "reason"), FAULTS, ids=lambda value: str(value)[:40])
def test_a_refusal_says_what_is_wrong_and_where(raw: bytes, path: str | None, reason: str) -> None:
    error = refusal(raw)
    assert error.param == path
    where = f"{path}: " if path else ""
    assert error.message == f"The body is refused as JSON: {where}{reason}."


@given(st.text(st.sampled_from('a\\u"d8\ud83d\ude00\U0001f389')))
def test_each_half_of_a_surrogate_pair_and_nothing_else_is_refused_as_one(text: str) -> None:
    raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    try:
        json.loads(raw)["messages"][0]["content"].encode()
    except UnicodeEncodeError as half:
        error = refusal(raw)
        escape = f"\\u{ord(half.object[half.start]):04x}"
        at = raw.index(b'content": "') + 11 + len(json.dumps(half.object[: half.start])) - 2
        assert error.message == f"The body is refused as JSON: {CONTENT}: {escape} {HALF} (byte {at})."
        assert error.param == CONTENT
    else:
        parse(raw, ChatRequest)


STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([None, "k", 'a"b', "\\", "é", "[,{:"])), max_size=8
)


@given(STEPS)
def test_a_path_is_that_of_the_value(steps: list[tuple[int, str | None]]) -> None:
    value: Any = "here"
    for before, key in steps:  # None: an array
        others = [{"x": [1, {"y": ","}]}] * before
        value = {**{f"o{i}": o for i, o in enumerate(others)}, key: value} if key else [*others, value, 0]
    raw = json.dumps(value, ensure_ascii=False).encode()

    names = [
        str(before) if key is None else json.dumps(key, ensure_ascii=False)[1:-1] for before, key in steps
    ]
    assert path_at(raw, raw.index(b"here")) == ".".join(reversed(names))
