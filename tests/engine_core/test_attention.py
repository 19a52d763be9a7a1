"""Paged attention against attention over a plain list of keys and values, and the packed projection."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_engine.kernels.ops import reference_ops
from tangram_engine.models import linear
from tangram_engine.models.linear import Linear
from tangram_engine.models.rope import Rope
from tangram_engine.run.attention.reference import Span, TorchAttention, decode_first

HEADS, KV_HEADS, DIM, SIZE, BLOCKS = 4, 2, 8, 4, 400
SPEC = SimpleNamespace(
    layers=2,
    heads=HEADS,
    kv_heads=KV_HEADS,
    head_dim=DIM,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    rope_scaling=None,
    unrotated_layers=(),
    attention_scale=None,
)
ROPE = Rope(SPEC, 128, torch.float32, torch.device("cpu"))


def plan(attention, spans):
    positions = [position for span in spans for position in range(span.start, span.end)]
    attention.plan(spans, torch.tensor(positions))


def naive(q, keys, values):
    """One query [heads, D] over keys and values [tokens, kv_heads, D], head by head."""
    out = torch.empty(HEADS, DIM)
    for head in range(HEADS):
        k, v = keys[:, head // (HEADS // KV_HEADS)], values[:, head // (HEADS // KV_HEADS)]
        out[head] = ((k @ q[head]) / math.sqrt(DIM)).softmax(0) @ v
    return out


# Rows of one step: (tokens that are there already, new tokens).
steps = st.lists(
    st.tuples(st.integers(0, 90), st.one_of(st.just(1), st.integers(1, 20))), min_size=1, max_size=6
)


@settings(max_examples=60, deadline=None)
@given(steps, st.integers(0, 1000))
def test_every_token_sees_exactly_its_own_past(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    attention = TorchAttention(SPEC, ROPE, BLOCKS, SIZE, torch.float32)
    attention.pool.fill_(math.nan)  # whatever a former owner left must not matter
    free = torch.randperm(BLOCKS, generator=generator).tolist()
    spans = [
        Span(start, length, [free.pop() for _ in range(-(-(start + length) // SIZE))])
        for start, length in rows
    ]
    spans.sort(key=decode_first)
    history = {
        id(span): [torch.randn(2, span.end, KV_HEADS, DIM, generator=generator) for _ in range(2)]
        for span in spans
    }
    for span in spans:
        if span.start:
            plan(attention, [Span(0, span.start, span.table)])
            for layer in range(2):
                k, v = history[id(span)][layer][:, : span.start]
                attention.store_and_attend(layer, torch.zeros(span.start, HEADS, DIM), k, v)
    plan(attention, spans)
    for layer in range(2):
        q = torch.randn(sum(span.length for span in spans), HEADS, DIM, generator=generator)
        new = [history[id(span)][layer][:, span.start :] for span in spans]
        k, v = torch.cat(new, dim=1)
        out = attention.store_and_attend(layer, q, k, v)
        at = 0
        for span in spans:
            keys, values = history[id(span)][layer]
            for position in range(span.start, span.end):
                expected = naive(q[at], keys[: position + 1], values[: position + 1])
                torch.testing.assert_close(out[at], expected, atol=1e-5, rtol=1e-4)
                at += 1


@pytest.mark.parametrize("rows", [1, 3, 64, 200])
@pytest.mark.parametrize("bias", [False, True])
def test_a_packed_projection_is_the_plain_one(rows, bias, monkeypatch):
    generator = torch.Generator().manual_seed(rows)
    weight, offset = torch.randn(96, 40, generator=generator), torch.randn(96, generator=generator)
    x = torch.randn(rows, 40, generator=generator)
    packed = Linear(weight, offset if bias else None, reference_ops())(x)
    monkeypatch.setattr(linear, "can_pack", lambda _: False)
    plain = Linear(weight, offset if bias else None, reference_ops())(x)
    torch.testing.assert_close(packed, plain, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(plain, x @ weight.T + offset * bias, atol=1e-4, rtol=1e-5)


def test_only_float32_on_a_cpu_is_packed():
    assert not linear.can_pack(torch.zeros(2, 2, dtype=torch.bfloat16))
    assert not linear.can_pack(torch.zeros(2, 2, device="meta"))
