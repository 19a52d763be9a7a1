"""Which value stands where in a scrape: one flat row of gauges, counters and histograms.

Names and buckets are the engine's own: vLLM's, as `tangram.scaling.queries` asks for them.
"""

from collections.abc import Mapping, Sequence

from tangram.scaling import queries
from tangram.scaling.queries import (
    ITL,
    KV_USAGE,
    RUNNING,
    TPOT,
    TPOT_BUCKETS,
    TTFT,
    TTFT_BUCKETS,
    WAITING,
)

Row = Sequence[float]

PROMPT_TOKENS = "vllm:prompt_tokens_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"
SUCCESS = "vllm:request_success_total"  # all reasons together
E2E = "vllm:e2e_request_latency_seconds"
RECEIVED, REJECTED = queries.RECEIVED, queries.REJECTED
PROMPT_LENGTH, ANSWER_LENGTH = queries.PROMPT_LENGTH, queries.ANSWER_LENGTH

E2E_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0),
    *(480.0, 960.0, 1920.0, 7680.0),
)
_LONGEST_CONTEXT = 200_000  # tokens; vLLM's length buckets are 1, 2 and 5 times powers of ten up to it
LENGTH_BUCKETS = tuple(
    float(digit * 10**power)
    for power in range(6)
    for digit in (1, 2, 5)
    if digit * 10**power <= _LONGEST_CONTEXT
)

GAUGES = (RUNNING, WAITING, KV_USAGE)
COUNTERS = (RECEIVED, REJECTED, PROMPT_TOKENS, GENERATION_TOKENS, SUCCESS)
EDGES: Mapping[str, tuple[float, ...]] = {
    TTFT: TTFT_BUCKETS,
    ITL: TPOT_BUCKETS,
    TPOT: TPOT_BUCKETS,
    E2E: E2E_BUCKETS,
    PROMPT_LENGTH: LENGTH_BUCKETS,
    ANSWER_LENGTH: LENGTH_BUCKETS,
}


def _columns() -> tuple[dict[str, int], dict[str, int]]:
    """Return the column of each plain series, and of the first bucket of each histogram.

    A histogram has a column for each edge, one for +Inf, which is its count, and one for its sum.
    """
    plain = {name: column for column, name in enumerate((*GAUGES, *COUNTERS))}
    first_bucket = {}
    column = len(plain)
    for name, edges in EDGES.items():
        first_bucket[name] = column
        plain[f"{name}_count"] = column + len(edges)
        plain[f"{name}_sum"] = column + len(edges) + 1
        column += len(edges) + 2
    return plain, first_bucket


COLUMN, FIRST_BUCKET = _columns()


def bucket_column(histogram: str, edge: float) -> int:
    """Return the column of the bucket whose upper bound is `edge`; raise `ValueError` if there is none."""
    return FIRST_BUCKET[histogram] + EDGES[histogram].index(edge)


def series_labels() -> list[tuple[str, str]]:
    """Return the name of the series in each column, and its `le` ("" for a series that is no bucket)."""
    labels = {column: (name, "") for name, column in COLUMN.items() if not name.endswith("_count")}
    for name, column in FIRST_BUCKET.items():
        for position, edge in enumerate((*EDGES[name], float("inf"))):
            labels[column + position] = (f"{name}_bucket", "+Inf" if edge == float("inf") else f"{edge:g}")
    return [labels[column] for column in range(len(labels))]
