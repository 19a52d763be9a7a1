"""What one engine process exposes on /metrics: gauges, counters and histograms that start at zero."""

from bisect import bisect_left
from itertools import accumulate

from tangram.scaling.queries import ITL, TPOT, TTFT
from tangram.scaling.scrapes import Row
from tangram.simulator.metrics.page_layout import ANSWER_LENGTH, E2E, EDGES, PROMPT_LENGTH


class EnginePage:
    """The metrics of one engine process. A container that restarts gets a new page."""

    __slots__ = (
        *("running", "waiting", "kv_usage"),
        *("_received", "_prompt_tokens", "_generation_tokens", "_succeeded"),
        *("_ttft", "_itl", "_tpot", "_e2e", "_prompt_lengths", "_answer_lengths", "_histograms"),
    )

    def __init__(self) -> None:
        self.running = 0.0  # requests; gauges are set before a scrape
        self.waiting = 0.0  # requests
        self.kv_usage = 0.0  # share of the KV blocks, 0 to 1
        self._received = self._succeeded = 0
        self._prompt_tokens = self._generation_tokens = 0
        self._ttft, self._itl, self._tpot = _Histogram(TTFT), _Histogram(ITL), _Histogram(TPOT)
        self._e2e = _Histogram(E2E)
        self._prompt_lengths, self._answer_lengths = _Histogram(PROMPT_LENGTH), _Histogram(ANSWER_LENGTH)
        self._histograms = (
            *(self._ttft, self._itl, self._tpot),
            *(self._e2e, self._prompt_lengths, self._answer_lengths),
        )

    def arrived(self, count: int = 1) -> None:
        """Count requests that the engine accepted."""
        self._received += count

    def first_token(self, ttft_s: float, prompt_tokens: int) -> None:
        """Count a prompt that was prefilled, and its first token."""
        self._ttft.observe(ttft_s)
        self._prompt_tokens += prompt_tokens
        self._generation_tokens += 1

    def token_gaps(self, count: int, seconds: float) -> None:
        """Count `count` tokens, each of which came `seconds` after the one before."""
        self._itl.observe(seconds, count)
        self._generation_tokens += count

    def finished(self, tpot_s: float, prompt_tokens: int, output_tokens: int, e2e_s: float) -> None:
        """Count an answer that ended. One of a single token has no time per output token."""
        if output_tokens > 1:
            self._tpot.observe(tpot_s)
        self._prompt_lengths.observe(prompt_tokens)
        self._answer_lengths.observe(output_tokens)
        self._e2e.observe(e2e_s)
        self._succeeded += 1

    def scrape(self) -> Row:
        """Return all values, in the order of `page_layout`; buckets are cumulative."""
        row = [
            *(self.running, self.waiting, self.kv_usage, self._received),
            *(self._prompt_tokens, self._generation_tokens, self._succeeded),
        ]
        for histogram in self._histograms:
            row.extend(accumulate(histogram.counts))
            row.append(histogram.total)
        return row


class _Histogram:
    __slots__ = ("counts", "edges", "total")

    def __init__(self, name: str) -> None:
        self.edges = EDGES[name]
        self.counts = [0] * (
            len(self.edges) + 1
        )  # by bucket, not cumulative; the last one is above all edges
        self.total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self.edges, value)] += count
        self.total += count * value
