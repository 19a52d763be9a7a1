"""PromQL over vLLM's metric names. Every selector has namespace, model_name and the names of the pods; rates
are taken before sums.

A page that two scrape jobs, two monitors or two Prometheus servers of a federation read is several series
that differ in `job`, `instance`, `endpoint`, `container` or an external label. So each expression is reduced
to one value per pod and engine (`max by`) before it is summed over pods. A series counts only if it carries
the name of a pod that the API server shows as a replica: where scrapes honour labels, a page in any namespace
can claim ours.

Where vLLM renamed a metric, both names are read, so that two versions of the engine may serve side by side. A
version that exports both counts once: `or` leaves out what differs in the name alone, which no rate keeps.

Attainment is queried at a bucket edge: then it is exact, without interpolation, and adds up over pods.
Engines have fixed buckets, so an objective between two edges is checked at the lower one (stricter), and the
status shows which.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping

from tangram.fleet import MetricsDialect, Objectives
from tangram.scaling.sample import AT_WINDOW

TTFT = "vllm:time_to_first_token_seconds"
TPOT = "vllm:request_time_per_output_token_seconds"  # one observation per finished request
ITL = "vllm:inter_token_latency_seconds"  # one observation per token
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV_USAGE = "vllm:kv_cache_usage_perc"  # share of KV blocks in use, 0 to 1
RECEIVED = "tangram:requests_received_total"  # load: accepted, or refused by a replica that was full
PROMPT_LENGTH = "vllm:request_prompt_tokens"  # one observation per finished request
ANSWER_LENGTH = "vllm:request_generation_tokens"

# What vLLM called a metric before: until 0.8 the KV cache, which 0.9 exports by both names, and until 0.10
# the latency of a token, which 0.11 exports by both names. No version before 0.11 has TPOT.
PREVIOUS_NAMES: Mapping[str, str] = {
    KV_USAGE: "vllm:gpu_cache_usage_perc",
    ITL: "vllm:time_per_output_token_seconds",
}

# What SGLang calls the same: 0.5, and what 0.4 called the latency of a token. It has no TPOT before 0.5.
SGLANG_NAMES: Mapping[str, tuple[str, ...]] = {
    RUNNING: ("sglang:num_running_reqs",),
    WAITING: ("sglang:num_queue_reqs",),
    KV_USAGE: ("sglang:token_usage",),
    TTFT: ("sglang:time_to_first_token_seconds",),
    ITL: ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
    TPOT: ("sglang:request_time_per_output_token_seconds",),
    PROMPT_LENGTH: ("sglang:prompt_tokens_histogram",),
    ANSWER_LENGTH: ("sglang:generation_tokens_histogram",),
}
# What NIM 1.x calls the same: the names of vLLM 0.6 without their prefix.
NIM_NAMES: Mapping[str, tuple[str, ...]] = {
    RUNNING: ("num_requests_running",),
    WAITING: ("num_requests_waiting",),
    KV_USAGE: ("gpu_cache_usage_perc",),
    TTFT: ("time_to_first_token_seconds",),
    ITL: ("time_per_output_token_seconds",),
    PROMPT_LENGTH: ("request_prompt_tokens",),
    ANSWER_LENGTH: ("request_generation_tokens",),
}
OTHER_DIALECTS: Mapping[MetricsDialect, Mapping[str, tuple[str, ...]]] = {
    MetricsDialect.SGLANG: SGLANG_NAMES,
    MetricsDialect.NIM: NIM_NAMES,
}
Dialects = frozenset[MetricsDialect]
VLLM_NAMES: Dialects = frozenset((MetricsDialect.VLLM,))

# Beside the window, the same ratios over windows longer by these factors, for traffic of which the window
# holds too few requests; none is longer than _LONGEST_WINDOW_S, unless the window is.
_WIDER, _LONGEST_WINDOW_S = (5, 25), 3600.0
# Of one page: a pod that serves with data parallelism has several engines on it.
_ONE_PAGE = "pod, engine"

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


def snap(milliseconds: float, buckets: tuple[float, ...]) -> float:
    """Return the bucket edge, in seconds, at or just below an objective of `milliseconds` (at least 1)."""
    position = bisect_right(buckets, milliseconds / 1000)
    if position == 0:
        raise ValueError(f"no bucket edge at or below {milliseconds} ms")
    return buckets[position - 1]


def wider_windows(window_s: float) -> tuple[int, ...]:
    """Return the windows that are queried beside `window_s`, in seconds, ascending."""
    longest = max(_LONGEST_WINDOW_S, window_s)
    return tuple(round(window_s * factor) for factor in _WIDER if window_s * factor <= longest)


def for_deployment(
    namespace: str,
    served_name: str,
    pods: Collection[str],
    objectives: Objectives,
    window_s: float,
) -> Mapping[str, str]:
    """Return the queries for one LLMDeployment, by the names of `Sample`'s fields. Each yields one number.

    They define what the fields mean, in the names of vLLM; `fleet_queries` asks for the same of many
    LLMDeployments at once, and in the names of other engines.
    `pods` are the names of its replicas' pods. A name with `@N` is a field of the window of N seconds.
    """
    labels = f'namespace="{quoted(namespace)}",model_name="{quoted(served_name)}",pod=~"{any_of(pods)}"'
    running = f"{RUNNING}{{{labels}}}"
    queries = {
        # A failed scrape ends its series, so the series that are there are the engines that answer.
        "targets": f"count(count by (pod) ({running}))",
        "age_s": f"time() - max(timestamp({running}))",
        "waiting": _sum(f"{WAITING}{{{labels}}}"),
        "running": _sum(running),
        "kv_usage": _sum(
            by_any_name(KV_USAGE, lambda name: f"avg_over_time({name}{{{labels}}}[{duration(window_s)}])")
        ),
    }
    queries |= _over_window(labels, objectives, window_s)
    if objectives.ttft:
        queries["ttft_s"] = _quantile(TTFT, labels, objectives.ttft.percentile, window_s)
    if objectives.tpot:
        queries["tpot_s"] = _quantile(TPOT, labels, objectives.tpot.percentile, window_s)
    for wider_s in wider_windows(window_s):
        wider = _over_window(labels, objectives, wider_s)
        queries |= {f"{name}{AT_WINDOW}{wider_s}": promql for name, promql in wider.items()}
    return queries


def _over_window(labels: str, objectives: Objectives, window_s: float) -> dict[str, str]:
    """Return the queries for one window, by the names of `Window`'s fields."""
    window = duration(window_s)

    def increase(metric: str) -> str:
        return f"increase({metric}{{{labels}}}[{window}])"

    first_tokens = increase(f"{TTFT}_count")
    queries = {
        "running_mean": _sum(f"avg_over_time({RUNNING}{{{labels}}}[{window}])"),
        "requests": _sum(first_tokens),
    }
    # A sum without the pods that do not export the counter would be too low.
    pods_without = f"max by (pod) ({first_tokens}) unless on (pod) max by (pod) ({increase(RECEIVED)})"
    queries["arrived"] = f"{_sum(increase(RECEIVED))} unless on () ({pods_without})"
    for field, metric in (("prompt_tokens_mean", PROMPT_LENGTH), ("answer_tokens_mean", ANSWER_LENGTH)):
        queries[field] = f"{_sum(increase(f'{metric}_sum'))} / ({_sum(increase(f'{metric}_count'))} > 0)"
    if objectives.ttft:
        edge = snap(objectives.ttft.milliseconds, TTFT_BUCKETS)
        queries["ttft_attainment"] = _attainment(TTFT, labels, edge, window)
    if objectives.tpot:
        edge = snap(objectives.tpot.milliseconds, TPOT_BUCKETS)
        queries["tpot_attainment"] = _attainment(TPOT, labels, edge, window)
        queries["itl_attainment"] = _attainment(ITL, labels, edge, window)
    return queries


def by_any_name(metric: str, expression_of: Callable[[str], str], dialects: Dialects = VLLM_NAMES) -> str:
    """Return the expression of a metric, or of the name that previous versions or other engines export.

    SGLang parts requests that are streamed from others, which a sum joins.
    """
    previous = PREVIOUS_NAMES.get(metric)
    parts = [expression_of(name) for name in (metric, previous) if name is not None]
    for dialect, names in OTHER_DIALECTS.items():
        if dialect in dialects:
            parts += (f"sum without (is_streaming) ({expression_of(name)})" for name in names.get(metric, ()))
    return " or ".join(parts)


def duration(seconds: float) -> str:
    """Return a window as PromQL writes it: whole seconds, at least one."""
    return f"{max(1, round(seconds))}s"


def for_history(namespace: str, served_name: str, name: str, step_s: float) -> str:
    """Return the query for arrivals per second over the last `step_s`, for a range of times.

    First tokens stand in where no arrivals are counted.
    """
    labels = past_and_present(namespace, served_name, name)
    window = duration(step_s)
    arrived = _sum(f"increase({RECEIVED}{{{labels}}}[{window}])")
    first_tokens = by_any_name(
        TTFT, lambda name: f"increase({name}_count{{{labels}}}[{window}])", frozenset(MetricsDialect)
    )
    return f"({arrived} or {_sum(first_tokens)}) / {step_s:g}"


def past_and_present(namespace: str, served_name: str, name: str) -> str:
    """Return the label matchers of an LLMDeployment's series, those of its pods of the past included.

    `name` is that of the LLMDeployment: pods that the API server no longer shows are known by the beginning
    of their names.
    """
    return ",".join(
        (
            f'namespace="{quoted(namespace)}"',
            f'model_name="{quoted(served_name)}"',
            f'pod=~"{any_of((name,))}-.+"',
        )
    )


def observed_rates(metric: str, labels: str, edge_s: float, window: str) -> tuple[str, str]:
    """Return the observations of a histogram per second: those at or below `edge_s`, and all of them."""

    def rates(suffix: str, more: str = "") -> str:
        return _sum(by_any_name(metric, lambda name: f"rate({name}{suffix}{{{labels}{more}}}[{window}])"))

    return rates("_bucket", f',le=~"{le_pattern(edge_s)}"'), rates("_count")


def _sum(expression: str) -> str:
    """Sum over pods, each counted once however many series its page became."""
    return f"sum(max by ({_ONE_PAGE}) ({expression}))"


def _attainment(metric: str, labels: str, edge_s: float, window: str) -> str:
    """Share of observations at or below `edge_s`; an empty vector, never 0/0, without observations."""
    good, all_observed = observed_rates(metric, labels, edge_s, window)
    return f"{good} / ({all_observed} > 0)"


def _quantile(metric: str, labels: str, percentile: int, window_s: float) -> str:
    """For display only: interpolated inside a bucket."""
    rates = f"rate({metric}_bucket{{{labels}}}[{duration(window_s)}])"
    buckets = f"sum by (le) (max by ({_ONE_PAGE}, le) ({rates}))"
    return f"histogram_quantile({percentile / 100:g}, {buckets})"


def any_of(pods: Collection[str]) -> str:
    """Return a regular expression, quoted for PromQL, for names of `pods`; without pods it matches none."""
    return quoted("|".join(re.escape(pod).replace("\\-", "-") for pod in sorted(pods)) or "-")


def le_pattern(edge_s: float) -> str:
    """Return a regular expression for a bucket's label.

    Clients and Prometheus versions write 1 as `1` or `1.0`. PromQL anchors the expression; the dot is
    escaped, or `1.0` would match the bucket `160` too.
    """
    text = f"{edge_s:g}"
    return f"{text}|{text}\\\\.0" if "." not in text else text.replace(".", "\\\\.")


def quoted(text: str) -> str:
    """Escape a label value for a double-quoted PromQL string."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
