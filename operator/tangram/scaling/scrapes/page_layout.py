"""Which value stands where in a scrape: one flat row of gauges, counters and histograms."""

from collections.abc import Mapping, Sequence

from tangram.scaling.queries import (
    ANSWER_LENGTH,
    ITL,
    KV_USAGE,
    PROMPT_LENGTH,
    RECEIVED,
    RUNNING,
    TPOT,
    TPOT_BUCKETS,
    TTFT,
    TTFT_BUCKETS,
    WAITING,
)

Row = Sequence[float]
"""The values of one scrape; NaN where the page lacks the series."""


class PageLayout:
    """The columns of a row.

    A histogram has a column for each edge, one for +Inf, which is its count, and one for its sum. Without
    edges it has a count and a sum.
    """

    __slots__ = ("columns", "edges", "first_bucket", "gauges", "width")

    def __init__(
        self,
        gauges: Sequence[str],
        counters: Sequence[str],
        edges: Mapping[str, tuple[float, ...]],
    ) -> None:
        """`edges`: the upper bounds of each histogram."""
        self.edges = edges
        self.gauges = len(gauges)  # they have the first columns
        self.columns: dict[str, int] = {}  # of each plain series
        self.first_bucket: dict[str, int] = {}  # the column of the first bucket of each histogram
        column = 0
        for name in (*gauges, *counters):
            self.columns[name] = column
            column += 1
        for name, bounds in edges.items():
            self.first_bucket[name] = column
            self.columns[f"{name}_count"] = column + len(bounds)
            self.columns[f"{name}_sum"] = column + len(bounds) + 1
            column += len(bounds) + 2
        self.width = column

    def bucket_column(self, histogram: str, edge: float) -> int:
        """Return the column of the bucket that ends at `edge`; raise `ValueError` if there is none."""
        return self.first_bucket[histogram] + self.edges[histogram].index(edge)

    def bucket_columns(self, histogram: str) -> range:
        """Return the columns of all buckets, +Inf last."""
        first = self.first_bucket[histogram]
        return range(first, first + len(self.edges[histogram]) + 1)


GAUGES = (RUNNING, WAITING, KV_USAGE)

READ_BY_OPERATOR = PageLayout(
    gauges=GAUGES,
    counters=(RECEIVED,),
    edges={TTFT: TTFT_BUCKETS, ITL: TPOT_BUCKETS, TPOT: TPOT_BUCKETS, PROMPT_LENGTH: (), ANSWER_LENGTH: ()},
)
"""What the operator's queries ask for."""
