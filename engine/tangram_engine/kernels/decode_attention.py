"""Attention of one new token per row to everything that the row has in its pages.

The context of a row is cut into splits, which are computed independently of each other and combined by
their log-sum-exp. One work item is (row, split, KV head): the query heads that share the KV head form one
tile, padded to 16 for the tensor cores, so that each key and value is read once.

What a split is depends on the context of its row alone (`split_size`), never on the batch: 256 tokens up to
8,192, above that as many multiples of 256 as give at most 32 splits. A row's result is the same bit by bit,
whatever else is in the step.

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

from tangram_engine.kernels.language import CompileCase, launch, tl, triton
from tangram_engine.kernels.tiles import hardware, tile

TOLERANCE = {torch.float32: (2e-5, 2e-5), torch.float16: (4e-3, 2e-3), torch.bfloat16: (3.2e-2, 1.6e-2)}
SPLIT_TOKENS = 256  # below it, partial results are more than 3 % of the bytes
MAX_SPLITS = 32  # of one row: with 8 KV heads enough to keep 132 SMs busy
TILE_BYTES = 16384  # of keys in one pipeline stage, and of values the same
LOG2_E = 1.4426950408889634
LOWEST = tl.constexpr(-1e30)  # finite: a difference of two infinities is NaN


@triton.jit
def _splits(context, SPLIT_TOKENS: tl.constexpr, MAX_SPLITS: tl.constexpr):
    """Tokens in a split, and the number of splits."""
    size = tl.maximum(tl.cdiv(tl.cdiv(context, MAX_SPLITS), SPLIT_TOKENS), 1) * SPLIT_TOKENS
    return size, tl.cdiv(context, size)


# TABLE follows from max_model_len: a constant would make every context length a kernel of its own.
@triton.jit(do_not_specialize=["batch", "TABLE"], do_not_specialize_on_alignment=["rows", "positions"])
def _attend(
    q,
    pool,
    tables,
    rows,
    positions,
    partial,
    sums,
    out,
    scale,
    batch,
    TABLE,
    ROWS: tl.constexpr,  # of the tables, padded to a power of two
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT_TOKENS: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    DOT: tl.constexpr,
    STAGES: tl.constexpr,
):
    each = tl.arange(0, ROWS)
    contexts = tl.load(positions + each, mask=each < batch, other=-1) + 1
    _, counts = _splits(contexts, SPLIT_TOKENS, MAX_SPLITS)
    ends = tl.cumsum(counts, 0)
    member = tl.arange(0, GROUP_PADDED)
    dim = tl.arange(0, D_PADDED)
    real = (member < GROUP)[:, None] & (dim < D)[None, :]

    for item in range(tl.program_id(0), tl.sum(counts, 0) * KV_HEADS, tl.num_programs(0)):
        kv_head = item % KV_HEADS
        slot = item // KV_HEADS
        row = tl.sum((ends <= slot).to(tl.int32), 0)
        split = slot - tl.sum(tl.where(each < row, counts, 0), 0)
        context = tl.load(positions + row) + 1
        size, count = _splits(context, SPLIT_TOKENS, MAX_SPLITS)
        begin = split * size
        end = tl.minimum(begin + size, context)
        table = tables + tl.load(rows + row).to(tl.int64) * TABLE
        head = kv_head * GROUP + member
        at = (row.to(tl.int64) * (KV_HEADS * GROUP) + head)[:, None] * D + dim[None, :]
        queries = tl.load(q + at, mask=real, other=0.0).to(DOT)

        maximum = tl.full([GROUP_PADDED], LOWEST, tl.float32)
        total = tl.zeros([GROUP_PADDED], tl.float32)
        sum_of_values = tl.zeros([GROUP_PADDED, D_PADDED], tl.float32)
        for first in tl.range(begin, end, TILE, num_stages=STAGES):
            token = first + tl.arange(0, TILE)
            seen = token < end
            block = tl.load(table + token // BLOCK_SIZE, mask=seen, other=0).to(tl.int64)
            place = (block * (2 * KV_HEADS) + kv_head) * BLOCK_SIZE + token % BLOCK_SIZE
            address = pool + place[:, None] * D + dim[None, :]
            # Unseen slots are zero: a former owner may have left NaN there, and 0 x NaN is NaN.
            shown = seen[:, None] & (dim < D)[None, :]
            keys = tl.load(address, mask=shown, other=0.0).to(DOT)
            values = tl.load(address + KV_HEADS * BLOCK_SIZE * D, mask=shown, other=0.0).to(DOT)
            scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
            scores = tl.where(seen[None, :], scores, float("-inf"))
            new_maximum = tl.maximum(maximum, tl.max(scores, 1))
            weights = tl.exp2(scores - new_maximum[:, None])
            correction = tl.exp2(maximum - new_maximum)
            total = total * correction + tl.sum(weights, 1)
            sum_of_values *= correction[:, None]
            sum_of_values += tl.dot(weights.to(DOT), values, input_precision="ieee")
            maximum = new_maximum
        attended = sum_of_values / total[:, None]
        if count == 1:
            tl.store(out + at, attended.to(out.dtype.element_ty), mask=real)
        else:
            each_head = slot.to(tl.int64) * (KV_HEADS * GROUP) + head
            tl.store(partial + each_head[:, None] * D + dim[None, :], attended, mask=real)
            tl.store(sums + each_head, maximum + tl.log2(total), mask=member < GROUP)


@triton.jit(do_not_specialize_on_alignment=["positions"])
def _combine(
    positions,
    partial,
    sums,
    out,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    SPLIT_TOKENS: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
):
    row = tl.program_id(0)
    head = tl.program_id(1)
    each = tl.arange(0, ROWS)
    contexts = tl.load(positions + each, mask=each < row, other=-1) + 1
    _, counts = _splits(contexts, SPLIT_TOKENS, MAX_SPLITS)
    _, count = _splits(tl.load(positions + row) + 1, SPLIT_TOKENS, MAX_SPLITS)
    if count > 1:
        split = tl.arange(0, MAX_SPLITS)
        dim = tl.arange(0, D_PADDED)
        each_split = (tl.sum(counts, 0) + split).to(tl.int64) * HEADS + head
        sum_of = tl.load(sums + each_split, mask=split < count, other=float("-inf"))
        weights = tl.exp2(sum_of - tl.max(sum_of, 0))
        mask = (split < count)[:, None] & (dim < D)[None, :]
        parts = tl.load(partial + each_split[:, None] * D + dim[None, :], mask=mask, other=0.0)
        combined = tl.sum(parts * (weights / tl.sum(weights, 0))[:, None], 0)
        at = (row.to(tl.int64) * HEADS + head) * D + dim
        tl.store(out + at, combined.to(out.dtype.element_ty), mask=dim < D)


def split_size(context: int) -> int:
    """Tokens in each split of a context but the last: `_splits` on the host."""
    return max(-(-context // MAX_SPLITS // SPLIT_TOKENS), 1) * SPLIT_TOKENS


def scratch_size(max_num_seqs: int, max_model_len: int, heads: int, size: int) -> int:
    """Float32 values for the partial results of the largest step, however its rows share blocks.

    max_num_seqs x min(32, ceil(max_model_len / 256)) x heads x (D + 1).
    """
    splits = min(MAX_SPLITS, -(-max_model_len // SPLIT_TOKENS))
    return max_num_seqs * splits * heads * (size + 1)


def decode_attention(
    q: Tensor, pool_layer: Tensor, tables: Tensor, rows: Tensor, positions: Tensor, scratch: Tensor
) -> Tensor:
    """Attend to the positions[b] + 1 first tokens of row rows[b]. [B, H, D].

    q [B, H, D]; pool_layer [blocks, 2, K, block size, D]; tables int32 [R, blocks of a row]; rows and
    positions int32 [B], B <= R; scratch float32 [`scratch_size`]. Raises ValueError where it is too small.
    """
    batch, heads, size = q.shape
    _, _, kv_heads, block_size, _ = pool_layer.shape
    out = torch.empty_like(q)
    if not batch:
        return out
    if scratch.numel() < scratch_size(batch, tables.shape[1] * block_size, heads, size):
        raise ValueError(f"scratch of {scratch.numel()} values is too small for {batch} rows")
    slots = scratch.numel() // (heads * (size + 1))
    partial, sums = scratch[: slots * heads * size], scratch[slots * heads * size :]
    sizes = dict(tile("decode_attention", q.device))
    programs = sizes.pop("PROGRAMS_PER_SM") * max(1, hardware(q.device)[1])
    padded = max(16, triton.next_power_of_2(size))
    shared = {
        "ROWS": triton.next_power_of_2(tables.shape[0]),
        "D": size,
        "D_PADDED": padded,
        "SPLIT_TOKENS": SPLIT_TOKENS,
        "MAX_SPLITS": MAX_SPLITS,
    }
    launch(
        _attend,
        (min(programs, batch * kv_heads * MAX_SPLITS),),
        q,
        pool_layer,
        tables,
        rows,
        positions,
        partial,
        sums,
        out,
        LOG2_E / size**0.5,
        batch,
        tables.shape[1],
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        GROUP_PADDED=max(16, triton.next_power_of_2(heads // kv_heads)),
        BLOCK_SIZE=block_size,
        TILE=max(16, min(64, TILE_BYTES // (padded * q.element_size()))),
        DOT=DOT_TYPES[q.dtype],
        STAGES=sizes["num_stages"],
        **shared,
        **sizes,
    )
    launch(_combine, (batch, heads), positions, partial, sums, out, HEADS=heads, num_warps=4, **shared)
    return out


DOT_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def reference(
    q: Tensor, pool_layer: Tensor, tables: Tensor, rows: Tensor, positions: Tensor, scratch: Tensor
) -> Tensor:
    """The same in plain torch, on any device; it reads every block that a table has room for."""
    batch, heads, size = q.shape
    _, _, kv_heads, block_size, _ = pool_layer.shape
    tokens = tables.shape[1] * block_size
    pages = pool_layer[tables[rows.long()].long()]  # [B, blocks, 2, K, block size, D]
    keys, values = pages.permute(2, 0, 3, 1, 4, 5).reshape(2, batch, kv_heads, tokens, size).float()
    seen = (torch.arange(tokens, device=q.device) <= positions[:, None])[:, None]
    keys, values = (x.where(seen[..., None], 0.0) for x in (keys, values))
    grouped = q.float().view(batch, kv_heads, heads // kv_heads, size)
    out = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=seen[:, :, None])
    return out.view(batch, heads, size).to(q.dtype)


_SIGNATURE = {
    **dict.fromkeys(("q", "pool"), "*bf16:16"),
    "tables": "*i32:16",
    **dict.fromkeys(("rows", "positions"), "*i32"),
    **dict.fromkeys(("partial", "sums"), "*fp32:16"),
    "out": "*bf16:16",
    "scale": "fp32",
    "batch": "i32",
    "TABLE": "i32",
}
_COMMON = {"ROWS": 512, "SPLIT_TOKENS": SPLIT_TOKENS, "MAX_SPLITS": MAX_SPLITS}
CASES = (
    *(
        CompileCase(
            f"decode_attention, D {size}, group of {group}",
            _attend,
            _SIGNATURE,
            {
                "KV_HEADS": 8,
                "GROUP": group,
                "GROUP_PADDED": 16,
                "D": size,
                "D_PADDED": padded,
                "BLOCK_SIZE": 16,
                "TILE": 64 * 128 // max(128, padded),
                "DOT": tl.bfloat16,
                "STAGES": 5,
                **_COMMON,
            },
            num_stages=5,
            emits=("cp.async", "mma.sync"),
        )
        for size, padded, group in ((64, 64, 4), (80, 128, 1), (96, 128, 4), (128, 128, 4), (256, 256, 16))
    ),
    CompileCase(
        "decode_attention, combine",
        _combine,
        {name: _SIGNATURE[name] for name in ("positions", "partial", "sums", "out")},
        {"HEADS": 32, "D": 128, "D_PADDED": 128, **_COMMON},
    ),
)
