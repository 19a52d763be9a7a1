"""Readings of an engine's /metrics: gauges as they stood, counters as the difference of two readings.

Names are vLLM's, which our engine shares. Where vLLM renamed a metric, the newest name comes first and the
first that is there counts: some versions export both, and their sum would count everything twice.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

Names = tuple[str, ...]

RUNNING: Names = ("vllm:num_requests_running",)
WAITING: Names = ("vllm:num_requests_waiting",)
KV_USAGE: Names = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # renamed in 0.9
PREEMPTIONS: Names = ("vllm:num_preemptions_total",)
PROMPT_TOKENS: Names = ("vllm:prompt_tokens_total",)
GENERATION_TOKENS: Names = ("vllm:generation_tokens_total",)
CACHE_QUERIES: Names = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
CACHE_HITS: Names = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
REJECTIONS: Names = ("vllm:admission_rejections_total",)
DRAFT_TOKENS: Names = ("vllm:spec_decode_num_draft_tokens_total",)
FLOPS: Names = ("vllm:estimated_flops_per_gpu_total",)  # with --enable-mfu-metrics
READ_BYTES: Names = ("vllm:estimated_read_bytes_per_gpu_total",)
WRITE_BYTES: Names = ("vllm:estimated_write_bytes_per_gpu_total",)
CACHE_CONFIG: Names = ("vllm:cache_config_info",)
START_TIME: Names = ("process_start_time_seconds",)
# Histograms. ITL has one observation per token, TPOT one per finished request.
TTFT: Names = ("vllm:time_to_first_token_seconds",)
ITL: Names = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
TPOT: Names = ("vllm:request_time_per_output_token_seconds",)
E2E: Names = ("vllm:e2e_request_latency_seconds",)
QUEUE: Names = ("vllm:request_queue_time_seconds", "vllm:time_in_queue_requests")
PREFILL: Names = ("vllm:request_prefill_time_seconds",)
DECODE: Names = ("vllm:request_decode_time_seconds",)
PROMPT_LENGTH: Names = ("vllm:request_prompt_tokens",)
GENERATION_LENGTH: Names = ("vllm:request_generation_tokens",)
STEP_TOKENS: Names = ("vllm:iteration_tokens_total",)  # a histogram in spite of its name

ALL_NAMES: Names = (
    *RUNNING, *WAITING, *KV_USAGE, *PREEMPTIONS, *PROMPT_TOKENS, *GENERATION_TOKENS, *CACHE_QUERIES,
    *CACHE_HITS, *REJECTIONS, *DRAFT_TOKENS, *FLOPS, *READ_BYTES, *WRITE_BYTES, *CACHE_CONFIG,
    *START_TIME, *TTFT, *ITL, *TPOT, *E2E, *QUEUE, *PREFILL, *DECODE, *PROMPT_LENGTH, *GENERATION_LENGTH,
    *STEP_TOKENS,
)  # fmt: skip

# Larger than anything an engine counts (FLOP of years), and small enough to be multiplied without overflow.
_ABSURD = 1e30


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One line of a page: a number with its name and labels."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Scrape:
    """One reading. Impossible values (NaN, infinite, negative) are left out and named."""

    samples: tuple[MetricSample, ...]
    unusable: tuple[str, ...] = ()

    @classmethod
    def of(cls, samples: Iterable[MetricSample]) -> "Scrape":
        """Separate usable samples from unusable ones."""
        good, bad = [], set()
        for sample in samples:
            if math.isfinite(sample.value) and 0 <= sample.value <= _ABSURD:
                good.append(sample)
            else:
                bad.add(sample.name)
        return cls(tuple(good), tuple(sorted(bad)))

    @property
    def models(self) -> tuple[str, ...]:
        """The served models of the page: an engine with adapters, or a gateway, may have several."""
        return tuple(sorted({s.labels["model_name"] for s in self.samples if "model_name" in s.labels}))

    @property
    def engines(self) -> int:
        """Engines (data-parallel ranks) behind the page, at least 1."""
        return max(1, len({s.labels["engine"] for s in self.samples if "engine" in s.labels}))

    def of_model(self, model: str) -> "Scrape":
        """Keep what concerns one model: its samples, and those without any model."""
        samples = tuple(s for s in self.samples if s.labels.get("model_name", model) == model)
        return Scrape(samples, self.unusable)

    def values(self, names: Names, suffix: str = "") -> tuple[float, ...]:
        """Return the value of every series of the first name that is there."""
        return tuple(sample.value for sample in self.series(names, suffix))

    def series(self, names: Names, suffix: str = "") -> tuple[MetricSample, ...]:
        """Return the samples of the first name that is there; none if none is."""
        for name in names:
            if samples := self._by_name.get(name + suffix):
                return tuple(samples)
        return ()

    def total(self, names: Names, suffix: str = "") -> float | None:
        """Return the sum over series, None where the metric is missing."""
        values = self.values(names, suffix)
        return sum(values) if values else None

    def config(self, label: str) -> str | None:
        """Return one setting from the information metrics of the cache; None: the page lacks it."""
        settings = {sample.labels[label] for sample in self.series(CACHE_CONFIG) if label in sample.labels}
        return settings.pop() if len(settings) == 1 else None

    @cached_property
    def _by_name(self) -> Mapping[str, list[MetricSample]]:
        table: dict[str, list[MetricSample]] = {}
        for sample in self.samples:
            table.setdefault(sample.name, []).append(sample)
        return table


@dataclass(frozen=True, slots=True)
class Interval:
    """Two readings of one engine, `seconds` apart."""

    before: Scrape
    after: Scrape
    seconds: float

    def gauge(self, names: Names) -> tuple[float, float] | None:
        """Return the sum over engines at both readings, None where one of them lacks it."""
        first, second = self.before.total(names), self.after.total(names)
        return None if first is None or second is None else (first, second)

    def highest(self, names: Names) -> tuple[float, float] | None:
        """Return the largest of all engines at both readings: one full KV cache is full."""
        first, second = self.before.values(names), self.after.values(names)
        return (max(first), max(second)) if first and second else None

    def increase(self, names: Names, suffix: str = "") -> float | None:
        """By how much a counter grew; a series that came up in between began at 0. None: missing."""
        end = self.after.total(names, suffix)
        return None if end is None else max(0.0, end - (self.before.total(names, suffix) or 0.0))

    def mean(self, histogram: Names) -> float | None:
        """Mean of what a histogram observed in between, None without observations."""
        return ratio(self.increase(histogram, "_sum"), self.increase(histogram, "_count"))

    def buckets(self, histogram: Names) -> tuple[tuple[float, float], ...]:
        """(upper edge, observations at or below it) of what was observed in between; () without buckets."""
        before, after = _edges(self.before, histogram), _edges(self.after, histogram)
        return tuple((edge, max(0.0, count - before.get(edge, 0.0))) for edge, count in sorted(after.items()))

    def share_at_most(self, histogram: Names, limit: float) -> tuple[float, float] | None:
        """(edge, share of observations at or below it) for the largest finite edge up to `limit`."""
        buckets = self.buckets(histogram)
        fitting = [(edge, count) for edge, count in buckets if edge <= limit]
        if not fitting or not buckets[-1][1]:
            return None
        edge, count = fitting[-1]
        return edge, min(1.0, count / buckets[-1][1])

    def restart(self) -> str | None:
        """Return why the two readings are not of one engine process, None if they may be."""
        if set(self.before.values(START_TIME)) != set(self.after.values(START_TIME)):
            return "process_start_time_seconds changed"
        for names, suffix in _MONOTONIC:
            later = {_key(sample): sample.value for sample in self.after.series(names, suffix)}
            for sample in self.before.series(names, suffix):
                now = later.get(_key(sample))
                if now is None or now < sample.value:
                    fell = "vanished" if now is None else f"fell from {sample.value:g} to {now:g}"
                    return f"{sample.name} {fell}"
        return None


# Enough to notice a restart: whatever an engine does moves one of them.
_MONOTONIC: tuple[tuple[Names, str], ...] = (
    (GENERATION_TOKENS, ""),
    (PROMPT_TOKENS, ""),
    (PREEMPTIONS, ""),
    *((histogram, "_count") for histogram in (STEP_TOKENS, TTFT, ITL, E2E, QUEUE, PREFILL, DECODE)),
    *((histogram, "_sum") for histogram in (TTFT, ITL, QUEUE, PREFILL, DECODE)),
)


def ratio(dividend: float | None, divisor: float | None) -> float | None:
    """Return the quotient; None where a part is missing, the divisor is 0, or the result is not finite."""
    if dividend is None or not divisor:
        return None
    quotient = dividend / divisor
    return quotient if math.isfinite(quotient) else None


def _edges(scrape: Scrape, histogram: Names) -> dict[float, float]:
    """Cumulative counts by upper edge, added up over series. Engines write 1 as `1` or `1.0`."""
    table: dict[float, float] = {}
    for sample in scrape.series(histogram, "_bucket"):
        try:
            edge = float(sample.labels.get("le", ""))
        except ValueError:
            continue
        if not math.isnan(edge):
            table[edge] = table.get(edge, 0.0) + sample.value
    return table


def _key(sample: MetricSample) -> frozenset[tuple[str, str]]:
    return frozenset(sample.labels.items())
