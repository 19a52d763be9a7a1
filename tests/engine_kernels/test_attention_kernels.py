"""Rotation, the KV pool and decode attention in the Triton interpreter, against plain torch."""

import pytest
import torch

from tangram_engine.kernels import decode_attention as attention
from tangram_engine.kernels import store_kv as storing
from tangram_engine.kernels.store_kv import HeadRotation, Pages
from tangram_engine.kernels.triton_runtime import launch, tl, triton

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


def norms_and_angles(size, norm, positions, dtype):
    """Rotation with or without random norms, and with cosines beside sines of some angles."""
    weights = [torch.rand(size, dtype=dtype) + 0.5 if norm else None for _ in range(2)]
    angles = torch.arange(positions).float()[:, None] * torch.rand(size // 2)
    return HeadRotation(*weights, EPS, torch.cat((angles.cos(), angles.sin()), -1))


@pytest.mark.parametrize(
    ("dtype", "size", "heads", "kv_heads", "block_size", "norm", "positions"),
    [
        (torch.float32, 16, 4, 2, 4, False, [0, 3, 4, 16, 17]),
        (torch.float32, 32, 2, 2, 16, True, [15, 32, 33, 64, 79]),
        (torch.float16, 64, 16, 1, 16, True, [0, 70]),
        (torch.float16, 80, 6, 2, 32, False, [31, 32, 33]),
        (torch.float32, 96, 5, 1, 8, True, [65]),
        (torch.float16, 128, 4, 1, 16, True, [1]),
        (torch.float32, 256, 2, 1, 16, False, [20]),
    ],
)
def test_decode_attention_is_that_of_torch(
    short_splits, dtype, size, heads, kv_heads, block_size, norm, positions
):
    pool, tables = scattered([position + 1 for position in positions], block_size, size, kv_heads, dtype)
    qkv = torch.randn(len(positions), (heads + 2 * kv_heads) * size, dtype=dtype)
    how = norms_and_angles(size, norm, max(positions) + 1, dtype)
    rows = torch.randperm(len(positions)).int()
    at = int32(positions)[rows]
    pool[tables[rows.long(), at.long() // block_size].long(), :, :, at.long() % block_size] = NAN
    expected_pool = pool.clone()
    scratch = scratch_for(len(positions), tables, block_size, heads, size)

    got = attention.decode_attention(qkv, how, Pages(rows, at, tables, pool), scratch)

    expected = attention.reference(qkv, how, Pages(rows, at, tables, expected_pool), scratch)
    rtol, atol = attention.TOLERANCE[dtype]
    assert expected.isfinite().all()
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol)
    torch.testing.assert_close(pool, expected_pool, rtol=rtol, atol=atol, equal_nan=True)
    assert torch.equal(pool[:, 1].nan_to_num(), expected_pool[:, 1].nan_to_num())  # values are not computed


def test_a_token_attends_to_itself_as_its_page_holds_it():
    pool, tables = scattered([1], 4, 16, dtype=torch.float16)
    qkv = torch.randn(1, 8 * 16)
    how = norms_and_angles(16, True, 1, torch.float32)

    got = attention.decode_attention(
        qkv, how, Pages(int32([0]), int32([0]), tables, pool), scratch_for(1, tables, 4, 4, 16)
    )

    value = pool[tables[0, 0], 1, :, 0].float()  # alone, a token attends to nothing but its own value
    assert torch.equal(got[0], value.repeat_interleave(2, 0))
    assert not torch.equal(value.flatten(), qkv[0, -32:])


def test_a_row_does_not_depend_on_the_batch_around_it(short_splits):
    positions, padding = [2, 39, 89, 0, 16], 5
    pool, tables = scattered([position + 1 for position in positions], 4, 16)
    qkv = torch.randn(5, 8 * 16)
    how = norms_and_angles(16, True, 90, torch.float32)
    scratch = scratch_for(7, tables, 4, 4, 16)
    pages = [pool.clone() for _ in positions]
    alone = [
        attention.decode_attention(
            qkv[row : row + 1], how, Pages(int32([row]), int32([n]), tables, pages[row]), scratch
        )
        for row, n in enumerate(positions)
    ]

    order = [2, 0, 3, 4, 1]
    rows = int32([*order, padding, padding])
    at = int32([*(positions[row] for row in order), 0, 0])
    batched = attention.decode_attention(
        torch.cat((qkv[order], qkv[:2])), how, Pages(rows, at, tables, pool), scratch.fill_(NAN)
    )

    for place, row in enumerate(order):
        assert torch.equal(batched[place], alone[row][0])
        slot = (tables[row, positions[row] // 4].long(), slice(None), slice(None), positions[row] % 4)
        assert torch.equal(pool[slot], pages[row][slot])


@triton.jit
def _list_splits(positions, sizes, counts, N: tl.constexpr):
    each = tl.arange(0, N)
    size, count = attention._splits(tl.load(positions + each), 256, 32)
    tl.store(sizes + each, size)
    tl.store(counts + each, count)


def test_splits_grow_with_the_position_and_never_exceed_their_number():
    positions = int32([-1, 0, 1, 256, 257, 8192, 8193, 131071, *range(2, 20000, 37)])
    positions = torch.cat((positions, positions[:1].expand(1024 - len(positions))))
    sizes, counts = torch.empty(2, 1024, dtype=torch.int32)

    launch(_list_splits, (1,), positions, sizes, counts, N=1024, num_warps=1)

    assert sizes[:8].tolist() == [256, 256, 256, 256, 256, 256, 512, 4096]
    assert counts[:8].tolist() == [0, 1, 1, 1, 2, 32, 17, 32]
    assert (counts <= 32).all()
    assert (sizes * counts >= positions).all()


def test_scratch_that_is_too_small_is_refused():
    pool, tables = scattered([300], 16, 16)
    how = norms_and_angles(16, False, 300, torch.float32)
    with pytest.raises(ValueError, match="too small for 1 rows"):
        attention.decode_attention(
            torch.randn(1, 6 * 16), how, Pages(int32([0]), int32([299]), tables, pool), torch.empty(10)
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
    how = norms_and_angles(size, norm, 70, dtype)
    rows = int32([1] * (tokens - 2) + [0, 2])  # the last row is padding
    positions = int32([*range(tokens - 2), 8, 0])
    expected_pool = pool.clone()

    got = storing.store_kv(qkv, how, Pages(rows, positions, tables, pool))

    expected = storing.reference(qkv, how, Pages(rows, positions, tables, expected_pool))
    rtol, atol = storing.TOLERANCE[dtype]
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol)
    torch.testing.assert_close(pool, expected_pool, rtol=rtol, atol=atol, equal_nan=True)
    assert torch.equal(pool[:, 1].nan_to_num(), expected_pool[:, 1].nan_to_num())  # values are not computed


def test_a_row_of_angles_for_all_positions_rotates_no_head():
    size, positions = 16, int32([8, 3])
    pool, tables = scattered([9, 4], 4, size)
    qkv = torch.randn(2, 8 * size)
    still = torch.cat((torch.full((1, size // 2), 0.7), torch.zeros(1, size // 2)), -1).expand(9, -1)
    how, scratch = HeadRotation(None, None, EPS, still), scratch_for(2, tables, 4, 4, size)
    attended = [
        function(qkv, how, Pages(int32([0, 1]), positions, tables, its_pool), scratch)
        for function, its_pool in (
            (attention.decode_attention, pool.clone()),
            (attention.reference, pool.clone()),
        )
    ]

    queries = storing.store_kv(qkv, how, Pages(int32([0, 1]), positions, tables, pool))

    torch.testing.assert_close(queries.flatten(1), 0.7 * qkv[:, : 4 * size])
    torch.testing.assert_close(*attended, rtol=1e-4, atol=1e-5)
