"""Sampler without a sort: logits [B, V] in, ids int32 [B] out, -1 where a row's logits are not finite.

Adding Gumbel noise and taking the largest draws a token; top-k, top-p and min-p only say which tokens may
win. So the winner among all tokens is found first, and whether it may win is decided by the tokens above it:
how many they are (top-k) and how much probability they have (top-p). A winner that may not win bounds the
threshold from below; the next one is the winner among the tokens above it. It is the token that the
reference chooses, after 1 / (probability of the tokens that stay) rounds on average: 1.1 at top-p 0.9.

Two launches. `_scan`, grid (B, G / SPAN), reads each logit once (V * 4 bytes a row, and as many of `counts`
for a penalised row), and leaves the maximum, the winner and the mass of each group of 256 tokens.
`_choose`, grid (B), reads these (G * 16 bytes), and then only groups that hold a token above the last winner:
a group per token that stays, 1 KiB each. Top-p of what top-k left needs the mass of the k largest: a binary
search over integer keys in the order of floats, between the k-th largest group maximum and the maximum. It
also leaves the id to the step that feeds it: no operation of its own follows.

Bytes: at V = 128,256 a row is 0.51 MB, 0.13 us of the wire of an H200 at 4.0 TB/s. Predicted: one row 2 us
for `_scan` and 2 us for `_choose` (greedy or without truncation), 8 us with top-p, 15 us with top-k and
top-p; 256 rows that draw, 130 us: 33 million logarithms and hashes, not the 131 MB (33 us).
"""

from typing import Any

import torch
from torch import Tensor

from tangram_engine.kernels.tiles import TILES, tile
from tangram_engine.kernels.triton_runtime import CompileCase, launch, tl, triton
from tangram_engine.sample import noise
from tangram_engine.sample.sampler import Sampler, SamplingRows

_GOLDEN, _FIRST, _SECOND = (tl.constexpr(value) for value in (noise.GOLDEN, noise.FIRST, noise.SECOND))
_LARGEST = tl.constexpr(torch.finfo(torch.float32).max)
_LOWEST = tl.constexpr(-2139095041)  # _key of minus infinity
_OUTPUT = tl.constexpr((1 << 30) - 1)  # bits of `counts` that count; any bit: the token is there


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * _FIRST
    x = (x ^ (x >> 27)) * _SECOND
    return x ^ (x >> 31)


@triton.jit
def _stream(seeds, position, row):
    """The key of the stream of the token that follows the one at `position`, uint64."""
    seed = tl.load(seeds + row).to(tl.uint64)
    return _mix(_mix(seed + _GOLDEN) + (position + 1).to(tl.uint64) * _GOLDEN)


@triton.jit
def _gumbel(stream, token):
    bits = _mix(stream + (token + 1).to(tl.uint64) * _GOLDEN)
    uniform = ((bits >> 32).to(tl.float32) + 0.5) * 2.0**-32
    uniform = tl.minimum(uniform, 1.0 - 2.0**-24)
    rest = 1.0 - uniform  # log1p(-uniform), corrected for what rounding took from `rest`
    exact = tl.where(rest == 1.0, -uniform, tl.log(rest) * uniform / tl.where(rest == 1.0, 1.0, 1.0 - rest))
    return -tl.log(-exact)


@triton.jit
def _penalised(parameters, ROWS, row):
    repetition = tl.load(parameters + 3 * ROWS + row)
    presence = tl.load(parameters + 4 * ROWS + row)
    frequency = tl.load(parameters + 5 * ROWS + row)
    return (repetition != 1.0) | (presence != 0.0) | (frequency != 0.0)


@triton.jit
def _load(logits, parameters, counts, ROWS, row, token, V: tl.constexpr):
    """Logits with penalties; minus infinity beyond the vocabulary."""
    value = tl.load(logits + token, mask=token < V, other=float("-inf")).to(tl.float32)
    if _penalised(parameters, ROWS, row):
        repetition = tl.load(parameters + 3 * ROWS + row)
        presence = tl.load(parameters + 4 * ROWS + row)
        frequency = tl.load(parameters + 5 * ROWS + row)
        occurrences = tl.load(counts + row.to(tl.int64) * V + token, mask=token < V, other=0)
        times = occurrences & _OUTPUT
        pulled = tl.where(value > 0, tl.div_rn(value, repetition), value * repetition)
        value = tl.where(occurrences != 0, pulled, value)
        value -= tl.fma(frequency, times.to(tl.float32), tl.where(times > 0, presence, 0.0))
    return value


# No kernels of their own for each max_num_seqs (ROWS) and for each number of rows (the buffers' alignment).
@triton.jit(do_not_specialize=["ROWS"], do_not_specialize_on_alignment=["positions", "masses", "scores"])
def _scan(
    logits, stride, rows, parameters, seeds, positions, counts, maxima, masses, scores, winners,
    ROWS, V: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + batch)
    group = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    token = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    value = _load(logits + batch * stride, parameters, counts, ROWS, row, token, V)
    value = tl.where(value == value, value, float("inf"))  # noqa: PLR0124 - NaN: a maximum shows infinity
    maximum = tl.max(value, axis=1)
    score = value
    temperature = tl.load(parameters + row)
    out = batch * GROUPS + group
    if temperature > 0:
        scaled = tl.div_rn(value, temperature)
        top = tl.div_rn(maximum, temperature)
        bound = tl.minimum(tl.maximum(top, -_LARGEST), _LARGEST)  # never infinity less infinity
        mass = tl.sum(tl.exp(scaled - bound[:, None]), axis=1)
        tl.store(masses + out, mass, mask=group < GROUPS)
        score = scaled + _gumbel(_stream(seeds, tl.load(positions + row), row), token)
    best = tl.max(score, axis=1)
    winner = tl.min(tl.where(score == best[:, None], token, V), axis=1)
    tl.store(maxima + out, maximum, mask=group < GROUPS)
    tl.store(scores + out, best, mask=group < GROUPS)
    tl.store(winners + out, winner, mask=group < GROUPS)


@triton.jit
def _key(value):
    """An integer in the order of floats (but -0.0 < 0.0)."""
    bits = value.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value(key):
    bits = key.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _above(
    threshold, top, tops, stream, queue, logits, parameters, counts, ROWS, row, temperature,
    V: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr, TILE: tl.constexpr, DRAW: tl.constexpr,
):  # fmt: skip
    """Of the tokens above the threshold: number, mass (the largest weighs 1), the winner and its value."""
    flagged = tops > threshold
    length = tl.sum(flagged.to(tl.int32))
    slot = tl.cumsum(flagged.to(tl.int32)) - 1
    tl.debug_barrier()  # the queue of the last round has been read
    tl.store(queue + slot, tl.arange(0, tops.shape[0]), mask=flagged)
    tl.debug_barrier()
    many, mass, best, winner, at = 0, 0.0, float("-inf"), V, float("-inf")
    for start in range(0, length, TILE):
        index = start + tl.arange(0, TILE)
        group = tl.load(queue + index, mask=index < length, other=GROUPS)
        token = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        value = tl.div_rn(_load(logits, parameters, counts, ROWS, row, token, V), temperature)
        above = value > threshold
        many += tl.sum(above.to(tl.int32))
        mass += tl.sum(tl.where(above, tl.exp(value - top), 0.0))
        if DRAW:
            score = tl.where(above, value + _gumbel(stream, token), float("-inf"))
            highest = tl.max(score)
            if highest > best:  # groups come in order: the first of equals stays
                best = highest
                winner = tl.min(tl.where(score == highest, token, V))
                at = tl.max(tl.where(token == winner, value, float("-inf")))
    return many, mass, winner, at


@triton.jit
def _keep(out, token, row, parameters, positions, last_tokens, counts, ROWS, V: tl.constexpr):
    """Return a token, and leave it to the step that feeds it, one position further; 0 in the place of -1."""
    tl.store(out, token)
    fed = tl.maximum(token, 0)
    real = row < ROWS - 1  # padding, which may be there many times, stays as it is
    counted = real & _penalised(parameters, ROWS, row)
    count = counts + row.to(tl.int64) * V + fed
    position, times = tl.load(positions + row), tl.load(count, mask=counted, other=0)
    tl.debug_barrier()  # every thread has read what changes now
    tl.store(last_tokens + row, fed, mask=real)
    tl.store(positions + row, position + 1, mask=real)
    tl.store(count, times + 1, mask=counted)


@triton.jit(
    do_not_specialize=["ROWS"],
    do_not_specialize_on_alignment=["positions", "last_tokens", "masses", "scores", "queues"],
)
def _choose(
    logits, stride, rows, parameters, top_ks, seeds, positions, last_tokens, counts, maxima, masses, scores,
    winners, queues, out, ROWS, V: tl.constexpr, GROUPS: tl.constexpr, PADDED: tl.constexpr,
    GROUP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + batch)
    group = tl.arange(0, PADDED)
    partial = batch * GROUPS + group
    maximum = tl.load(maxima + partial, mask=group < GROUPS, other=float("-inf"))
    score = tl.load(scores + partial, mask=group < GROUPS, other=float("-inf"))
    of_group = tl.load(winners + partial, mask=group < GROUPS, other=V)
    highest = tl.max(maximum)
    finite = tl.abs(highest) < float("inf")
    chosen = tl.min(tl.where(score == tl.max(score), of_group, V))
    temperature = tl.load(parameters + row)
    top_p = tl.load(parameters + ROWS + row)
    min_p = tl.load(parameters + 2 * ROWS + row)
    top_k = tl.load(top_ks + row)
    top_k = tl.where(top_k > 0, tl.minimum(top_k, V), V)
    if finite & (temperature > 0) & ((top_k < V) | (top_p < 1.0) | (min_p > 0.0)):
        logits += batch * stride
        queue = queues + batch * GROUPS
        stream = _stream(seeds, tl.load(positions + row), row)
        top = tl.div_rn(highest, temperature)
        tops = tl.div_rn(maximum, temperature)
        mass = tl.load(masses + partial, mask=group < GROUPS, other=0.0)
        total = tl.sum(mass * tl.exp(tops - top))
        if (top_k < V) & (top_p < 1.0):
            # Keys `low` and `high`: at least k tokens are above the one, fewer than k above the other.
            low, high = tl.full((), _LOWEST, tl.int64), _key(top).to(tl.int64)
            limit = high
            while limit - low > 1:
                middle = low + (limit - low) // 2
                enough = tl.sum((tops > _value(middle)).to(tl.int32)) >= top_k
                low, limit = tl.where(enough, middle, low), tl.where(enough, limit, middle)
            many, above = 0, 0.0
            while high - low > 1:
                middle = low + (high - low) // 2
                passing, passing_mass, _, _ = _above(
                    _value(middle), top, tops, stream, queue, logits, parameters, counts, ROWS, row,
                    temperature, V, GROUPS, GROUP, TILE, False,
                )  # fmt: skip
                if passing > top_k:
                    low = middle
                else:
                    high, many, above = middle, passing, passing_mass
                    low = tl.where(passing == top_k, middle, low)
            total = above + (top_k - many) * tl.exp(_value(high) - top)
        value = tl.div_rn(_load(logits, parameters, counts, ROWS, row, chosen, V), temperature)
        stays = top_k < 0  # not yet
        while not stays:
            many, above, winner, at = _above(
                value, top, tops, stream, queue, logits, parameters, counts, ROWS, row, temperature,
                V, GROUPS, GROUP, TILE, True,
            )  # fmt: skip
            likely = (top_p >= 1.0) | (above < top_p * total)
            likely = likely & (tl.exp(value - top) >= min_p) & (many < top_k)
            stays = likely | (many == 0)
            chosen = tl.where(stays, chosen, winner)
            value = tl.where(stays, value, at)
    _keep(
        out + batch, tl.where(finite, chosen, -1), row, parameters, positions, last_tokens, counts, ROWS, V,
    )  # fmt: skip


def sample(logits: Tensor, rows: Tensor, table: SamplingRows) -> Tensor:
    """Ids int32 [B] for logits [B, V] of device rows int32 [B]; see `TokenSampler`."""
    (batch, V), chosen = logits.shape, tile("sample", logits.device)
    groups = triton.cdiv(V, chosen["GROUP"])
    sizes = {"V": V, "GROUPS": groups, "GROUP": chosen["GROUP"]}
    ROWS = table.parameters.shape[1]
    out = torch.empty(batch, dtype=torch.int32, device=logits.device)
    maxima, masses, scores = torch.empty((3, batch, groups), dtype=torch.float32, device=logits.device)
    winners, queues = torch.empty((2, batch, groups), dtype=torch.int32, device=logits.device)
    read = (logits, logits.stride(0), rows, table.parameters)
    streams, scans = (table.seed, table.positions), (maxima, masses, scores, winners)
    launch(
        _scan, (batch, triton.cdiv(groups, chosen["SPAN"])), *read, *streams, table.counts, *scans, ROWS,
        **sizes, SPAN=chosen["SPAN"], num_warps=chosen["scan_warps"],
    )  # fmt: skip
    launch(
        _choose, (batch,), *read, table.top_k, *streams, table.last_tokens, table.counts, *scans, queues, out,
        ROWS, **sizes, PADDED=triton.next_power_of_2(groups), TILE=chosen["TILE"],
        num_warps=chosen["choose_warps"],
    )  # fmt: skip
    return out


def reference(logits: Tensor, rows: Tensor, table: SamplingRows) -> Tensor:
    """The same in plain torch. It waits for the device."""
    return Sampler(logits.shape[-1], logits.device)(logits, rows, table)


TOLERANCE: dict[torch.dtype, tuple[float, float]] = {torch.float32: (0.0, 0.0)}  # ids are equal

_PER_ROW = {
    "stride": "i32:16", "rows": "*i32:16", "parameters": "*fp32:16", "seeds": "*i64:16",
    "positions": "*i32", "counts": "*i32:16", "ROWS": "i32",
}  # fmt: skip
_PER_GROUP = {"maxima": "*fp32:16", "masses": "*fp32", "scores": "*fp32", "winners": "*i32:16"}


def _case(kernel: Any, name: str, V: int, warps: str, signature: dict[str, str], *sizes: str) -> CompileCase:
    row = TILES["sample", 0, 0]
    groups = -(-V // row["GROUP"])
    constexprs = {"V": V, "GROUPS": groups, "GROUP": row["GROUP"], "PADDED": 1 << (groups - 1).bit_length()}
    constexprs |= {name: row[name] for name in ("SPAN", "TILE")}
    return CompileCase(
        name=f"{name}, V = {V}",
        kernel=kernel,
        signature={"logits": "*fp32:16", **_PER_ROW, **_PER_GROUP, **signature},
        constexprs={name: constexprs[name] for name in ("V", "GROUPS", "GROUP", *sizes)},
        num_warps=row[warps],
    )


_CHOSEN = {"top_ks": "*i32:16", "last_tokens": "*i32", "queues": "*i32", "out": "*i32:16"}
CASES = [
    _case(_scan, "scan", 128_256, "scan_warps", {}, "SPAN"),
    _case(_choose, "choose", 128_256, "choose_warps", _CHOSEN, "PADDED", "TILE"),
]
