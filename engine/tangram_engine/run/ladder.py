"""Tokens of a step, which follow from the number of SMs, and batch sizes of captured graphs.

A MIG slice reports its own SMs (14 to 98 of an A100, 16 to 132 of an H200), so that nothing here depends on
the name of a GPU. Never imports torch. The operator has the same: `tests/contracts/memory_golden.json`.
"""

TOKENS_PER_SM = 62  # a step of 8,192 tokens on the 132 SMs of an H200
SMALLEST_STEP, LARGEST_STEP = 512, 8192  # tokens
CPU_STEP = 512  # tokens
GRAPH_SIZES = (1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, 513, 32))


def step_tokens(sm_count: int) -> int:
    """Token budget of a step: the power of two nearest to 62 tokens an SM.

    Requests that decode wait for the prompts in their step, and a step takes tokens over SMs: a budget in
    proportion makes that wait equal on all slices, about 0.15 s for an 8B model on Hopper (8,192 tokens x 14
    GFLOP at 790 TFLOP/s). More tokens would not speed prompts up: from 512 rows on, products are bound by
    compute. A smaller step also takes less memory, which a small slice needs for its KV cache.
    """
    target = TOKENS_PER_SM * sm_count
    below = 1 << (target.bit_length() - 1)
    nearest = below if target * target < 2 * below * below else 2 * below
    return min(max(nearest, SMALLEST_STEP), LARGEST_STEP)


def captured_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Batch sizes for which a decode step is captured: fine where padding would cost most."""
    most = min(max_num_seqs, GRAPH_SIZES[-1])
    return (*(size for size in GRAPH_SIZES if size < most), most)
