"""Whole numbers of a request may be written as floats; no other value may stand for an integer."""

import json
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_engine.serve.http import jsonio
from tangram_engine.serve.http.body import parse
from tangram_engine.serve.http.errors import APIError
from tangram_engine.serve.http.jsonio import decode_value
from tangram_engine.serve.http.params import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Message,
    template_options,
)

COMPLETION = ["max_tokens", "n", "seed", "top_k", "best_of", "logprobs"]
CHAT = ["max_tokens", "max_completion_tokens", "n", "seed", "top_k"]
MESSAGES = b'"messages":[{"role":"user","content":"n is 2.0, \\"2.0\\" \\\\"}]'


def completion(fields: str) -> CompletionRequest:
    return parse(b'{"model":"m","prompt":"a",%s}' % fields.encode(), CompletionRequest)


@pytest.mark.parametrize("number", ["2.0", "2.000", "2e0", "2.0E0", "0.2e1", "20.0e-1"])
@pytest.mark.parametrize("field", COMPLETION)
def test_completions_take_whole_floats(field: str, number: str) -> None:
    more = ',"n":2' if field == "best_of" else ""
    value = getattr(completion(f'"{field}":{number}{more}'), field)
    assert (value, type(value)) == (2, int)


@pytest.mark.parametrize("field", CHAT)
def test_chats_take_whole_floats_and_keep_their_texts(field: str) -> None:
    body = b'{"model":"m",%s,"%s":2.0,"temperature":0.5}' % (MESSAGES, field.encode())
    request = parse(body, ChatRequest)
    assert (getattr(request, field), request.temperature) == (2, 0.5)
    assert decode_value(request.messages[0], Message).content == 'n is 2.0, "2.0" \\'


def test_token_ids_and_options_take_whole_floats() -> None:
    assert completion('"stop_token_ids":[5.0,6]').stop_token_ids == [5, 6]
    body = b'{"model":"m","prompt":[[1.0,2],[3e0]],"seed":-1.0}'
    assert parse(body, CompletionRequest).prompts == [[1, 2], [3]]
    assert parse(b'{"tokens":[1.0,2e2]}', DetokenizeRequest).tokens == [1, 200]
    chat = parse(b'{"model":"m",%s,"chat_template_kwargs":{"budget":5.0}}' % MESSAGES, ChatRequest)
    assert template_options(chat.chat_template_kwargs) == {"budget": 5}


@pytest.mark.parametrize("field", COMPLETION)
@pytest.mark.parametrize(
    "number", ["2.5", "true", '"2"', '"2.0"', "1e400", "1e30", "-3.0", "2.00000000000000000001"]
)
def test_nothing_else_stands_for_an_integer(field: str, number: str) -> None:
    if (field, number) == ("seed", "-3.0"):
        return
    with pytest.raises(APIError) as caught:
        completion(f'"{field}":{number}')
    assert (caught.value.status, caught.value.param) == (400, field)


def test_digits_beyond_those_of_a_float_are_kept() -> None:
    assert completion('"seed":9007199254740993.0').seed == 9007199254740993


@given(
    st.recursive(
        st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_all_values_stay_as_they_are(value: Any) -> None:
    raw = json.dumps(value).encode()
    rewritten = jsonio.with_whole_numbers_as_integers(raw)
    exactly = partial(json.loads, parse_int=Decimal, parse_float=Decimal)
    assert exactly(rewritten) == exactly(raw)


@pytest.mark.parametrize("item", ["5.0", "5.0 ", "12345.678", "-1.5e3"])
def test_long_lists_are_cut_between_numbers(item: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = ("[" + ",".join([item] * 200) + "]").encode()
    for size in range(9, 25):
        monkeypatch.setattr(jsonio, "_CHUNK", size)
        assert json.loads(jsonio.with_whole_numbers_as_integers(raw)) == [float(item)] * 200
