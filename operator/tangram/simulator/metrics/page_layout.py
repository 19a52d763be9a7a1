"""Which value stands where in a scrape of a simulated engine.

Names and buckets are the engine's own: vLLM's, as `tangram.scaling.queries` asks for them.
"""

from collections.abc import Mapping

from tangram.scaling import queries
from tangram.scaling.queries import ITL, TPOT, TPOT_BUCKETS, TTFT, TTFT_BUCKETS
from tangram.scaling.scrapes.page_layout import GAUGES, PageLayout

PROMPT_TOKENS = "vllm:prompt_tokens_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"
SUCCESS = "vllm:request_success_total"  # all reasons together
E2E = "vllm:e2e_request_latency_seconds"
RECEIVED = queries.RECEIVED
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

EDGES: Mapping[str, tuple[float, ...]] = {
    TTFT: TTFT_BUCKETS,
    ITL: TPOT_BUCKETS,
    TPOT: TPOT_BUCKETS,
    E2E: E2E_BUCKETS,
    PROMPT_LENGTH: LENGTH_BUCKETS,
    ANSWER_LENGTH: LENGTH_BUCKETS,
}

SIMULATED_PAGE = PageLayout(GAUGES, (RECEIVED, PROMPT_TOKENS, GENERATION_TOKENS, SUCCESS), EDGES)


def series_labels() -> list[tuple[str, str]]:
    """Return the name of the series in each column, and its `le` ("" for a series that is no bucket)."""
    columns = SIMULATED_PAGE.columns
    labels = {column: (name, "") for name, column in columns.items() if not name.endswith("_count")}
    for name, column in SIMULATED_PAGE.first_bucket.items():
        for position, edge in enumerate((*EDGES[name], float("inf"))):
            labels[column + position] = (f"{name}_bucket", "+Inf" if edge == float("inf") else f"{edge:g}")
    return [labels[column] for column in range(len(labels))]
