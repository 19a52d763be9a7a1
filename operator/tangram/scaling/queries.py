"""PromQL over vLLM's metric names. Every selector has namespace and model_name; rates are taken before sums.

Attainment is asked at a bucket edge: then it is exact, without interpolation, and adds up over pods. Engines
have fixed buckets, so an objective between two edges is checked at the lower one (stricter), and status tells
which.
"""

from bisect import bisect_right
from collections.abc import Mapping

from tangram.scaling.sample import RejectedSample, Sample, sample_from
from tangram.scaling.state import Objectives

__all__ = [
    "TPOT_BUCKETS",
    "TTFT_BUCKETS",
    "RejectedSample",
    "Sample",
    "for_deployment",
    "sample_from",
    "snap",
]

TTFT = "vllm:time_to_first_token_seconds"
TPOT = "vllm:request_time_per_output_token_seconds"  # one observation per finished request
ITL = "vllm:inter_token_latency_seconds"  # one observation per token
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"

# Upper bounds in seconds, as vLLM 0.33 hard-codes them; TPOT with the finer ones that our engine adds below
# 10 ms.
TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TPOT_BUCKETS = (
    *(0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4),
    *(0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)


def snap(milliseconds: int, buckets: tuple[float, ...]) -> float:
    """Return the bucket edge, in seconds, at or just below an objective of `milliseconds` (at least 1)."""
    position = bisect_right(buckets, milliseconds / 1000)
    if position == 0:
        raise ValueError(f"no bucket edge at or below {milliseconds} ms")
    return buckets[position - 1]


def for_deployment(
    namespace: str, served_name: str, objectives: Objectives, window_s: float
) -> Mapping[str, str]:
    """Return the queries for one LLMDeployment, by the names of `Sample`'s fields. Each yields one number."""
    labels = f'namespace="{_quote(namespace)}",model_name="{_quote(served_name)}"'
    running, window = f"{RUNNING}{{{labels}}}", f"{max(1, round(window_s))}s"
    queries = {
        # A failed scrape ends its series, so the series that are there are the engines that answer.
        "targets": f"count({running})",
        "age_s": f"time() - max(timestamp({running}))",
        "waiting": f"sum({WAITING}{{{labels}}})",
        "running": f"sum({running})",
        "running_mean": f"sum(avg_over_time({running}[{window}]))",
        "requests": f"sum(increase({TTFT}_count{{{labels}}}[{window}]))",
    }
    if objectives.ttft:
        edge = snap(objectives.ttft.milliseconds, TTFT_BUCKETS)
        queries["ttft_attainment"] = _attainment(TTFT, labels, edge, window)
        queries["ttft_s"] = _quantile(TTFT, labels, objectives.ttft.percentile, window)
    if objectives.tpot:
        edge = snap(objectives.tpot.milliseconds, TPOT_BUCKETS)
        queries["tpot_attainment"] = _attainment(TPOT, labels, edge, window)
        queries["itl_attainment"] = _attainment(ITL, labels, edge, window)
        queries["tpot_s"] = _quantile(TPOT, labels, objectives.tpot.percentile, window)
    return queries


def _attainment(metric: str, labels: str, edge_s: float, window: str) -> str:
    """Share of observations at or below `edge_s`; an empty vector, never 0/0, without observations."""
    good = f'sum(rate({metric}_bucket{{{labels},le=~"{_le(edge_s)}"}}[{window}]))'
    return f"{good} / (sum(rate({metric}_count{{{labels}}}[{window}])) > 0)"


def _quantile(metric: str, labels: str, percentile: int, window: str) -> str:
    """For display only: interpolated inside a bucket."""
    return (
        f"histogram_quantile({percentile / 100:g}, sum by (le) (rate({metric}_bucket{{{labels}}}[{window}])))"
    )


def _le(edge_s: float) -> str:
    """Regular expression for a bucket's label: clients and Prometheus versions write 1 as `1` or `1.0`.

    PromQL anchors it; the dot is escaped, or `1.0` would match the bucket `160` too.
    """
    text = f"{edge_s:g}"
    return f"{text}|{text}\\\\.0" if "." not in text else text.replace(".", "\\\\.")


def _quote(text: str) -> str:
    """Escape a label value for a double-quoted PromQL string."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
