"""Sizes that follow from the number of SMs: tokens of a step, batches of captured graphs, splits of contexts.

A MIG slice reports its own SMs (14 to 98 of an A100, 16 to 132 of an H200), so that nothing here depends on
the name of a GPU. Never imports torch. The operator has the same: `tests/contracts/memory_golden.json`.
"""

TOKENS_PER_SM = 62  # a step of 8,192 tokens on the 132 SMs of an H200
SMALLEST_STEP, LARGEST_STEP = 512, 8192  # tokens
CPU_STEP = 512  # tokens
SPLIT_TOKENS = (
    256  # shortest part of a context that one program attends to: below it, the combination costs more
)
PROGRAMS_PER_SM = 32  # of one attention launch: four waves of eight programs each
GRAPH_SIZES = (1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, 513, 32))


def step_tokens(sm_count: int) -> int:
    """Token budget of a step: the power of two nearest to 62 tokens an SM.

    Requests that decode wait for the prompts in their step, and a step takes tokens over SMs: a budget in
    proportion makes that wait equal on all slices, about 0.15 s for an 8B model on Hopper (8,192 tokens x 14
    GFLOP at 790 TFLOP/s). More tokens would not speed prompts up: from 512 rows on, products are bound by
    compute. A smaller step also takes less memory, which a small slice needs for its KV cache.
    """
    wanted = TOKENS_PER_SM * sm_count
    below = 1 << (wanted.bit_length() - 1)
    nearest = below if wanted * wanted < 2 * below * below else 2 * below
    return min(max(nearest, SMALLEST_STEP), LARGEST_STEP)


def captured_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Batch sizes for which a decode step is captured: fine where padding would cost most."""
    most = min(max_num_seqs, GRAPH_SIZES[-1])
    return (*(size for size in GRAPH_SIZES if size < most), most)


def decode_splits(sm_count: int, kv_heads: int, batch: int, max_model_len: int) -> int:
    """Parts into which decode attention cuts a context of `max_model_len` tokens, for one batch size.

    One program attends for one (row, KV head, part). Few rows alone do not fill the SMs, so their contexts
    are cut; many rows do, and each further part would only add empty programs and partial results. Hence at
    most PROGRAMS_PER_SM programs an SM, and no part shorter than SPLIT_TOKENS.
    """
    most = -(-max_model_len // SPLIT_TOKENS)
    return max(1, min(most, PROGRAMS_PER_SM * sm_count // (batch * kv_heads)))


def largest_row_splits(sm_count: int, kv_heads: int, max_num_seqs: int, max_model_len: int) -> int:
    """Rows times parts of the largest captured step: what the scratch for partial results has to hold."""
    sizes = {*captured_sizes(max_num_seqs), max_num_seqs}
    return max(size * decode_splits(sm_count, kv_heads, size, max_model_len) for size in sizes)
