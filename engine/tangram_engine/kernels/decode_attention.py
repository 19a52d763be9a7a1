"""From the packed projections of one new token per row to what it attends to, its keys and values stored.

The query heads that share a KV head form one tile, padded to 16 for the tensor cores, so that each key and
value is read once. The tokens before the new one are cut into splits, which are computed independently of
each other and combined by their log-sum-exp; one work item is (row, split, KV head). Each item normalises and
rotates its queries itself, some 8 KB that L2 has. The new token belongs to split 0: its key and value, as its
page holds them, are where the online softmax begins, and nothing of this step is read back.

What a split is depends on the position of its row alone (`_splits`), never on the batch: 256 tokens up to
8,192, above that as many multiples of 256 as give at most 32 splits; one, which is empty, at position 0. A
row's result is the same bit by bit, whatever else is in the step.

The splits are combined by a launch of its own, some 1 % of a step at batch 1. The last program to finish a
row could do it instead, behind an atomic counter; that no test without a GPU can show to be ordered rightly.

The grid is persistent: as many programs as run at the same time, PROGRAMS_PER_SM on each SM, and each walks
the work list from its own number in strides of the grid. The list is not written down: each program takes
the positions of all rows, counts their splits, and finds an item by the running sum. Hence the grid
is a constant of the batch size, as CUDA graphs need, without programs for splits that no row has. A grid of
(rows, KV heads, most splits) at max_model_len 131072, 64 rows and 8 KV heads would start 16,384
programs in each of 32 layers, of which at a context of 1k all but 2,048 exit at once; at some 30 ns each
over 132 SMs with 8 resident, about 0.4 ms of a step of 5.5 ms. One row of 131,072 tokens is 256 items of
4,096 tokens: two for each of 132 SMs.

Bytes moved: 2 K D b for each token of each context, in a dtype of b bytes, and for each further split of
a row 8 H (D + 1) bytes of partial results, most of which stay in L2. A layer of an 8B model (K = 8,
D = 128, bf16) at a context of 1,024: 4.2 MB and 1 us at 4.3 TB/s for one row, 268 MB and 62 us for 64,
1.07 GB and 250 us for 256. At 131,072 tokens: 537 MB and 125 us for one row.
"""

import torch
from torch import Tensor
from torch.nn import functional

from tangram_engine.kernels import store_kv
from tangram_engine.kernels.store_kv import HeadRotation, Pages, rotated
from tangram_engine.kernels.tiles import hardware, tile
from tangram_engine.kernels.triton_runtime import CompileCase, launch, tl, triton

TOLERANCE = {torch.float32: (2e-5, 2e-5), torch.float16: (4e-3, 2e-3), torch.bfloat16: (3.2e-2, 1.6e-2)}
SPLIT_TOKENS = 256  # below it, partial results are more than 3 % of the bytes
MAX_SPLITS = 32  # of one row: with 8 KV heads enough to keep 132 SMs busy
TILE_BYTES = 16384  # of keys in one pipeline stage, and of values the same
COMBINED_TOGETHER = 8  # splits, of which contexts up to 2,048 tokens have no more
LEAST_ROWS = 512  # for which kernels are compiled: below, max_num_seqs asks for none of its own
LOG2_E = 1.4426950408889634
LOWEST = tl.constexpr(-1e30)  # finite: a difference of two infinities is NaN


@triton.jit
def _splits(position, SPLIT_TOKENS: tl.constexpr, MAX_SPLITS: tl.constexpr):
    """Tokens in a split of those before the position, and the number of splits; none at position -1."""
    size = tl.maximum(tl.cdiv(tl.cdiv(position, MAX_SPLITS), SPLIT_TOKENS), 1) * SPLIT_TOKENS
    return size, tl.where(position < 0, 0, tl.maximum(tl.cdiv(position, size), 1))


@triton.jit
def _store_new(
    key_at, k_norm, eps, angle, dim, pool, table, position, kv_head,
    KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Write a new key and its value into the page of the position; both as the page holds them."""
    key = rotated(key_at, k_norm, eps, angle, dim, dim < D, D, NORM).to(pool.dtype.element_ty)
    value = tl.load(key_at + KV_HEADS * D + dim, mask=dim < D, other=0.0).to(pool.dtype.element_ty)
    block = tl.load(table + position // BLOCK_SIZE).to(tl.int64)
    to_key = pool + ((block * (2 * KV_HEADS) + kv_head) * BLOCK_SIZE + position % BLOCK_SIZE) * D + dim
    tl.store(to_key, key, mask=dim < D)
    tl.store(to_key + KV_HEADS * BLOCK_SIZE * D, value, mask=dim < D)
    return key, value


# TABLE follows from max_model_len: a constant would make every context length a kernel of its own.
@triton.jit(
    do_not_specialize=["batch", "TABLE", "SPLITS"], do_not_specialize_on_alignment=["rows", "positions"]
)
def _attend(
    qkv,
    q_norm,
    k_norm,
    eps,
    rope,
    rope_stride,
    rows,
    positions,
    tables,
    pool,
    partial,
    sums,
    out,
    scale,
    batch,
    TABLE,
    SPLITS,  # for which a row has room among the partial results
    ROWS: tl.constexpr,  # of the tables, padded to a power of two
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    NORM: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT_TOKENS: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    DOT: tl.constexpr,
    STAGES: tl.constexpr,
):
    lane = tl.arange(0, ROWS)
    _, counts = _splits(tl.load(positions + lane, mask=lane < batch, other=-1), SPLIT_TOKENS, MAX_SPLITS)
    items, ends = tl.sum(counts, 0) * KV_HEADS, tl.cumsum(counts, 0)
    member, dim = tl.arange(0, GROUP_PADDED)[:, None], tl.arange(0, D_PADDED)[None, :]
    real = (member < GROUP) & (dim < D)

    # What is invariant here is cheap, and costs a third of the programs on an SM if it stays in registers.
    for item in tl.range(tl.program_id(0), items, tl.num_programs(0), disable_licm=True):
        kv_head = item % KV_HEADS
        number = item // KV_HEADS  # of the split, among those of all rows
        row = tl.sum((ends <= number).to(tl.int32), 0)
        split = number - tl.sum(tl.where(lane < row, counts, 0), 0)
        position = tl.load(positions + row)
        size, count = _splits(position, SPLIT_TOKENS, MAX_SPLITS)
        end = tl.minimum((split + 1) * size, position)
        table = tables + tl.load(rows + row).to(tl.int64) * TABLE

        packed = qkv + row.to(tl.int64) * ((GROUP + 2) * KV_HEADS * D)
        angle, head = rope + position.to(tl.int64) * rope_stride, kv_head * GROUP + member
        queries = rotated(packed + head * D, q_norm, eps, angle, dim, real, D, NORM).to(DOT)
        maximum = tl.full([GROUP_PADDED], LOWEST, tl.float32)
        total = tl.zeros([GROUP_PADDED], tl.float32)
        sum_of_values = tl.zeros([GROUP_PADDED, D_PADDED], tl.float32)
        if split == 0:  # it begins with the new token, which is not read back from its page
            new = packed + (GROUP * KV_HEADS + kv_head) * D + tl.zeros([1, 1], tl.int32)
            key, value = _store_new(
                new, k_norm, eps, angle, dim, pool, table, position, kv_head, KV_HEADS, D, BLOCK_SIZE, NORM
            )
            maximum = tl.sum(queries.to(tl.float32) * key.to(DOT).to(tl.float32), 1) * scale
            total += 1.0
            sum_of_values += value.to(DOT).to(tl.float32)
        for first in tl.range(split * size, end, TILE, num_stages=STAGES):
            token = first + tl.arange(0, TILE)
            inside = token < end
            block = tl.load(table + token // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
            place = (block * (2 * KV_HEADS) + kv_head) * BLOCK_SIZE + token % BLOCK_SIZE
            address = pool + place[:, None] * D + dim
            # Unseen slots are zero: a former owner may have left NaN there, and 0 x NaN is NaN.
            shown = inside[:, None] & (dim < D)
            keys = tl.load(address, mask=shown, other=0.0).to(DOT)
            values = tl.load(address + KV_HEADS * BLOCK_SIZE * D, mask=shown, other=0.0).to(DOT)
            scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
            scores = tl.where(inside[None, :], scores, float("-inf"))
            new_maximum = tl.maximum(maximum, tl.max(scores, 1))
            weights = tl.exp2(scores - new_maximum[:, None])
            correction = tl.exp2(maximum - new_maximum)
            total = total * correction + tl.sum(weights, 1)
            sum_of_values *= correction[:, None]
            sum_of_values += tl.dot(weights.to(DOT), values, input_precision="ieee")
            maximum = new_maximum
        attended = sum_of_values / total[:, None]
        if count == 1:
            to_out = out + (row.to(tl.int64) * (KV_HEADS * GROUP) + head) * D + dim
            tl.store(to_out, attended.to(out.dtype.element_ty), mask=real)
        else:
            each_head = (row.to(tl.int64) * SPLITS + split) * (KV_HEADS * GROUP) + head
            tl.store(partial + each_head * D + dim, attended, mask=real)
            tl.store(sums + each_head, (maximum + tl.log2(total))[:, None], mask=member < GROUP)


@triton.jit(do_not_specialize=["SPLITS"], do_not_specialize_on_alignment=["positions"])
def _combine(
    positions,
    partial,
    sums,
    out,
    SPLITS,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    SPLIT_TOKENS: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    row, head = tl.program_id(0), tl.program_id(1)
    _, count = _splits(tl.load(positions + row), SPLIT_TOKENS, MAX_SPLITS)
    if count > 1:
        first_part = row.to(tl.int64) * SPLITS * HEADS + head
        split, dim = tl.arange(0, MAX_SPLITS), tl.arange(0, D_PADDED)
        sum_of = tl.load(sums + first_part + split * HEADS, mask=split < count, other=float("-inf"))
        maximum = tl.max(sum_of, 0)
        total = tl.sum(tl.exp2(sum_of - maximum), 0)
        combined = tl.zeros([D_PADDED], tl.float32)
        for first in tl.range(0, count, TOGETHER):
            some = first + tl.arange(0, TOGETHER)
            part = first_part + some * HEADS
            weight = tl.exp2(tl.load(sums + part, mask=some < count, other=float("-inf")) - maximum) / total
            mask = (some < count)[:, None] & (dim < D)[None, :]
            values = tl.load(partial + part[:, None] * D + dim[None, :], mask=mask, other=0.0)
            combined += tl.sum(values * weight[:, None], 0)
        at = (row.to(tl.int64) * HEADS + head) * D + dim
        tl.store(out + at, combined.to(out.dtype.element_ty), mask=dim < D)


def most_splits(max_model_len: int) -> int:
    """Splits of the longest context: min(32, ceil(max_model_len / 256))."""
    return min(MAX_SPLITS, -(-max_model_len // SPLIT_TOKENS))


def scratch_size(max_num_seqs: int, max_model_len: int, heads: int, size: int) -> int:
    """Float32 values for the partial results of the largest step, however its rows share blocks.

    max_num_seqs x `most_splits` x heads x (D + 1).
    """
    return max_num_seqs * most_splits(max_model_len) * heads * (size + 1)


def decode_attention(qkv: Tensor, rotation: HeadRotation, pages: Pages, scratch: Tensor) -> Tensor:
    """Store the keys and values of B tokens, and attend from each to its row's up to its own. [B, H, D].

    scratch float32 [`scratch_size`], all else as in `tangram_engine.kernels.store_kv`; no row twice but the
    padding row. Raises ValueError where the scratch is too small.
    """
    _, _, kv_heads, block_size, size = pages.pool.shape
    batch, heads, tables = qkv.shape[0], qkv.shape[1] // size - 2 * kv_heads, pages.tables
    out = qkv.new_empty(batch, heads, size)
    if not batch:
        return out
    if scratch.numel() < scratch_size(batch, tables.shape[1] * block_size, heads, size):
        raise ValueError(f"scratch of {scratch.numel()} values is too small for {batch} rows")
    splits = most_splits(tables.shape[1] * block_size)
    parts = batch * splits * heads
    partial, sums = scratch[: parts * size], scratch[parts * size :]
    sizes = dict(tile("decode_attention", qkv.device))
    on_each = sizes.pop("PROGRAMS_PER_SM")
    programs = on_each * max(1, hardware(qkv.device)[1])
    padded = max(16, triton.next_power_of_2(size))
    shared = {
        "D": size,
        "D_PADDED": padded,
        "SPLIT_TOKENS": SPLIT_TOKENS,
        "MAX_SPLITS": MAX_SPLITS,
    }
    launch(
        _attend,
        (min(programs, batch * kv_heads * MAX_SPLITS),),
        qkv,
        *rotation.arguments(qkv),
        *pages,
        partial,
        sums,
        out,
        LOG2_E / size**0.5,
        batch,
        tables.shape[1],
        splits,
        ROWS=max(LEAST_ROWS, triton.next_power_of_2(tables.shape[0])),
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        GROUP_PADDED=max(16, triton.next_power_of_2(heads // kv_heads)),
        BLOCK_SIZE=block_size,
        NORM=rotation.q_norm is not None,
        TILE=max(16, min(64, TILE_BYTES // (padded * qkv.element_size()))),
        DOT=DOT_TYPES[qkv.dtype],
        STAGES=sizes["num_stages"],
        # With norms, the compiler takes more registers than so many programs have; it needs to spill none.
        maxnreg=registers(on_each, sizes["num_warps"]) if rotation.q_norm is not None else None,
        **shared,
        **sizes,
    )
    launch(
        _combine, (batch, heads), pages.positions, partial, sums, out, splits,
        HEADS=heads, TOGETHER=COMBINED_TOGETHER, num_warps=1, **shared,
    )  # fmt: skip
    return out


def registers(programs: int, warps: int) -> int:
    """With how many registers a thread so many programs fit on an SM: 65,536, given out by eights."""
    return min(255, 65536 // (32 * warps * programs) // 8 * 8)


DOT_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def reference(qkv: Tensor, rotation: HeadRotation, pages: Pages, scratch: Tensor) -> Tensor:
    """The same in plain torch, on any device; it reads every block that a table has room for."""
    q = store_kv.reference(qkv, rotation, pages)
    rows, positions, tables, pool_layer = pages
    batch, heads, size = q.shape
    _, _, kv_heads, block_size, _ = pool_layer.shape
    tokens = tables.shape[1] * block_size
    blocks = pool_layer[tables[rows.long()].long()]  # [B, blocks, 2, K, block size, D]
    keys, values = blocks.permute(2, 0, 3, 1, 4, 5).reshape(2, batch, kv_heads, tokens, size).float()
    visible = (torch.arange(tokens, device=q.device) <= positions[:, None])[:, None]
    keys, values = (x.where(visible[..., None], 0.0) for x in (keys, values))
    grouped = q.float().view(batch, kv_heads, heads // kv_heads, size)
    out = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=visible[:, :, None])
    return out.reshape(batch, heads, size).to(q.dtype)


_SIGNATURE = {
    **dict.fromkeys(("qkv", "q_norm", "k_norm"), "*bf16:16"),
    "eps": "fp32",
    "rope": "*fp32:16",
    "rope_stride": "i32:16",
    **dict.fromkeys(("rows", "positions"), "*i32"),
    "tables": "*i32:16",
    "pool": "*bf16:16",
    **dict.fromkeys(("partial", "sums"), "*fp32:16"),
    "out": "*bf16:16",
    "scale": "fp32",
    "batch": "i32",
    "TABLE": "i32",
    "SPLITS": "i32",
}
_COMMON = {"SPLIT_TOKENS": SPLIT_TOKENS, "MAX_SPLITS": MAX_SPLITS}
CASES = (
    *(
        CompileCase(
            f"decode_attention, D {size}, group of {group}{', norm' * norm}",
            _attend,
            _SIGNATURE,
            {
                "KV_HEADS": 8,
                "GROUP": group,
                "GROUP_PADDED": 16,
                "D": size,
                "D_PADDED": padded,
                "BLOCK_SIZE": 16,
                "NORM": norm,
                "TILE": 64 * 128 // max(128, padded),
                "DOT": tl.bfloat16,
                "STAGES": 5,
                "ROWS": LEAST_ROWS,
                **_COMMON,
            },
            num_stages=5,
            maxnreg=registers(3, 4) if norm else None,
            emits=("cp.async", "mma.sync"),
        )
        for size, padded, group, norm in (
            (64, 64, 4, False),
            (80, 128, 1, False),
            (96, 128, 4, True),
            (128, 128, 4, False),
            (128, 128, 4, True),
            (256, 256, 16, True),
        )
    ),
    CompileCase(
        "decode_attention, combine",
        _combine,
        {name: _SIGNATURE[name] for name in ("positions", "partial", "sums", "out", "SPLITS")},
        {"HEADS": 32, "D": 128, "D_PADDED": 128, "TOGETHER": COMBINED_TOGETHER, **_COMMON},
        num_warps=1,
    ),
)
