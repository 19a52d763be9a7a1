"""What the picker reads of a body, without a server."""

import json
import time
import tracemalloc

import pytest

from tangram.gateway.answers import GatewayAnswer
from tangram.gateway.request_head import MAX_TOKENS, RequestHead, read_head, with_model


def head_of(**fields):
    head = read_head(json.dumps({"model": "m", **fields}).encode())
    assert isinstance(head, RequestHead), head
    return head


@pytest.mark.parametrize(
    ("fields", "prompt_tokens", "most_tokens"),
    [
        ({"messages": [{"role": "user", "content": "x" * 4000}], "max_tokens": 7}, 1008, 7),
        ({"prompt": "x" * 398, "max_completion_tokens": 9, "max_tokens": 7}, 100, 9),
        ({"prompt": [1, 2, 3, 4, 5]}, 5, MAX_TOKENS),
        ({"prompt": [[1, 2], [3]]}, 3, MAX_TOKENS),
        ({"input": "x" * 398, "max_output_tokens": 3}, 100, 3),
        ({"max_tokens": -1}, 1, MAX_TOKENS),
        ({"max_tokens": 10**30}, 1, MAX_TOKENS),
        ({"max_tokens": 16.0}, 1, 16),
        ({"messages": None}, 1, MAX_TOKENS),
    ],
)
def test_tokens_are_estimated_from_bytes_or_counted(fields, prompt_tokens, most_tokens):
    head = head_of(**fields)
    assert (head.prompt_tokens, head.most_tokens) == (prompt_tokens, most_tokens)


def test_of_a_key_that_occurs_twice_the_last_one_counts_as_in_json():
    body = b'{"model":"a","model":"b"}'
    assert read_head(body).model == json.loads(body)["model"] == "b"


BOMBS = {
    "lists": b"[],",
    "keys": b'"a":0,',
    "numbers": b"1,",
    "objects": b'{"a":{}},',
    "escapes": b'"\\u0061",',
}


@pytest.mark.parametrize("piece", BOMBS.values(), ids=BOMBS)
def test_sixteen_mebibytes_of_whatever_take_no_memory_and_little_time(piece):
    filling = piece * ((16 << 20) // len(piece))
    if b":0" in piece:
        body = b'{"model":"m",' + filling + b'"z":0}'
    else:
        body = b'{"model":"m","x":[' + filling + b"0]}"
    tracemalloc.start()
    began = time.process_time()
    head = read_head(body)
    seconds, peak = time.process_time() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert head.model == "m"
    assert peak < 1 << 20
    assert seconds < 0.5


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"ns/m","messages":"ns/m"}',
        b'{"messages":[{"content":"say \\"ns/m\\" twice: ns/m"},"ns/m"],"model":"ns/m"}',
        b'{"model":"ns\\/m"}',
        b'{"model":"x","messages":["ns/m"],"model":"ns/m"}',
    ],
)
def test_another_name_of_the_model_changes_no_other_byte(body):
    changed = with_model(body, "ns/m", "org/m")
    before, after = json.loads(body), json.loads(changed)
    assert after == before | {"model": "org/m"}
    assert abs(len(changed) - len(body)) <= 2


def test_a_name_that_is_hidden_is_refused():
    assert isinstance(with_model(b'{"model":"\\u006es/m"}', "ns/m", "m"), GatewayAnswer)
    many = b'{"x":[' + b'"ns/m",' * 100_000 + b'0],"model":"ns/m"}'
    began = time.process_time()
    assert with_model(many, "ns/m", "m").status == 400
    assert time.process_time() - began < 0.5
