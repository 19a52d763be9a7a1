"""Rotation, the KV pool and decode attention in the Triton interpreter, against plain torch."""

import pytest
import torch

from tangram_engine.kernels import decode_attention as attention
from tangram_engine.kernels import store_kv as storing

EPS = 1e-5
NAN = float("nan")


def scattered(contexts, block_size, size, kv_heads=2, dtype=torch.float32, width=None):
    """A pool with the given contexts in scattered blocks, tables whose last row is padding, and scratch.

    NaN is in each slot that no context covers, in the block that no request owns, and in the scratch.
    """
    counts = [-(-context // block_size) for context in contexts]
    width = width or max(counts)
    blocks = sum(counts) + 2
    pool = torch.full((blocks + 1, 2, kv_heads, block_size, size), NAN, dtype=dtype)
    tables = torch.full((len(contexts) + 1, width), blocks - 1, dtype=torch.int32)
    tables[-1] = blocks
    free = torch.randperm(blocks - 1).tolist()
    for row, (context, count) in enumerate(zip(contexts, counts, strict=True)):
        for number in range(count):
            tables[row, number] = free.pop()
        for position in range(context):
            place = tables[row, position // block_size]
            pool[place, :, :, position % block_size] = torch.randn(2, kv_heads, size, dtype=dtype)
    return pool, tables


def scratch_for(batch, tables, block_size, heads, size):
    return torch.full((attention.scratch_size(batch, tables.shape[1] * block_size, heads, size),), NAN)


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.fixture
def short_splits(monkeypatch):
    monkeypatch.setattr(attention, "SPLIT_TOKENS", 16)
    monkeypatch.setattr(attention, "MAX_SPLITS", 4)


@pytest.mark.parametrize(
    ("dtype", "size", "heads", "kv_heads", "block_size", "contexts"),
    [
        (torch.float32, 16, 4, 2, 4, [1, 4, 5, 17]),
        (torch.float32, 32, 2, 2, 16, [16, 33, 80]),
        (torch.float16, 64, 16, 1, 16, [15, 70]),
        (torch.float16, 80, 6, 2, 32, [31, 32, 33]),
        (torch.float32, 96, 5, 1, 8, [65]),
        (torch.float32, 256, 2, 1, 16, [20]),
    ],
)
def test_decode_attention_is_that_of_torch(short_splits, dtype, size, heads, kv_heads, block_size, contexts):
    pool, tables = scattered(contexts, block_size, size, kv_heads, dtype)
    q = torch.randn(len(contexts), heads, size, dtype=dtype)
    rows = torch.randperm(len(contexts)).int()
    positions = int32([contexts[row] - 1 for row in rows])
    scratch = scratch_for(len(contexts), tables, block_size, heads, size)

    got = attention.decode_attention(q, pool, tables, rows, positions, scratch)

    expected = attention.reference(q, pool, tables, rows, positions, scratch)
    rtol, atol = attention.TOLERANCE[dtype]
    assert expected.isfinite().all()
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol)


def test_a_row_does_not_depend_on_the_batch_around_it(short_splits):
    contexts = [3, 40, 90, 17]
    pool, tables = scattered(contexts, 4, 16)
    q = torch.randn(4, 4, 16)
    scratch = scratch_for(5, tables, 4, 4, 16)
    padding = len(contexts)
    alone = [
        attention.decode_attention(q[row : row + 1], pool, tables, int32([row]), int32([n - 1]), scratch)
        for row, n in enumerate(contexts)
    ]

    order = [2, 0, 3, 1]
    rows = int32([*order, padding])
    positions = int32([*(contexts[row] - 1 for row in order), 0])
    batched = attention.decode_attention(
        torch.cat((q[order], q[:1])), pool, tables, rows, positions, scratch.fill_(NAN)
    )

    for at, row in enumerate(order):
        assert torch.equal(batched[at], alone[row][0])


def test_splits_grow_with_the_context_and_never_exceed_their_number():
    assert [attention.split_size(n) for n in (1, 256, 8192, 8193, 131072)] == [256, 256, 256, 512, 4096]
    for context in (*range(1, 20000, 37), 131072):
        assert -(-context // attention.split_size(context)) <= attention.MAX_SPLITS


def test_scratch_that_is_too_small_is_refused():
    pool, tables = scattered([300], 16, 16)
    with pytest.raises(ValueError, match="too small for 1 rows"):
        attention.decode_attention(
            torch.randn(1, 2, 16), pool, tables, int32([0]), int32([299]), torch.empty(10)
        )


@pytest.mark.parametrize(
    ("dtype", "size", "norm", "tokens"),
    [
        (torch.float32, 16, False, 3),
        (torch.float16, 80, True, 2),
        (torch.float32, 96, True, 66),
    ],
)
def test_queries_are_rotated_and_keys_and_values_are_in_their_pages(dtype, size, norm, tokens):
    heads, kv_heads, block_size = 3, 2, 4
    contexts = [9, 70]
    pool, tables = scattered(contexts, block_size, size, kv_heads, dtype)
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * size, dtype=dtype)
    weights = [torch.rand(size, dtype=dtype) for _ in range(2)] if norm else [None, None]
    angles = torch.arange(70).float()[:, None] * torch.rand(size // 2)
    rope = torch.cat((angles.cos(), angles.sin()), -1)
    rows = int32([1] * (tokens - 2) + [0, 2])  # the last row is padding
    positions = int32([*range(tokens - 2), 8, 0])
    expected_pool = pool.clone()
    arguments = (rope, rows, positions, tables)

    got = storing.store_kv(qkv, *weights, EPS, *arguments, pool)

    expected = storing.reference(qkv, *weights, EPS, *arguments, expected_pool)
    rtol, atol = storing.TOLERANCE[dtype]
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol)
    torch.testing.assert_close(pool, expected_pool, rtol=rtol, atol=atol, equal_nan=True)
    assert torch.equal(pool[:, 1].nan_to_num(), expected_pool[:, 1].nan_to_num())  # values are not computed
