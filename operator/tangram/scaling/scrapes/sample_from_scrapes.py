"""The `Sample` of an LLMDeployment from scrapes: what `tangram.scaling.queries.for_deployment` returns.

Each page is scraped once here, so the queries' `max by (pod, engine)` changes nothing.
"""

import math
from collections.abc import Iterable, Mapping

from tangram.fleet import Objectives
from tangram.scaling import queries
from tangram.scaling.sample import AT_WINDOW, RejectedSample, Sample, sample_from
from tangram.scaling.scrapes.histogram_quantile import histogram_quantile
from tangram.scaling.scrapes.metrics_view import MetricsView
from tangram.scaling.scrapes.range_selection import CounterName, RangeSelection
from tangram.scaling.scrapes.scrape_store import ENGINE_MARK


def read_sample(
    view: MetricsView, objectives: Objectives, window_s: float, *, quantiles: bool = True
) -> Sample | RejectedSample:
    """Return what the operator's queries give now; `quantiles`: with `ttft_s` and `tpot_s`, for display.

    Raises where the store of the view does.
    """
    return sample_from(query_results(view, objectives, window_s, quantiles=quantiles), view.at)


def query_results(
    view: MetricsView, objectives: Objectives, window_s: float, *, quantiles: bool = True
) -> dict[str, float | str | None]:
    """Return the result of each query of `for_deployment`, by its name."""
    running = view.instant(queries.RUNNING)
    window = view.over(_whole(window_s))
    results: dict[str, float | str | None] = {
        "targets": len(_pods(running)) or None,
        "age_s": view.at - max(view.timestamp(queries.RUNNING).values()) if running else None,
        "waiting": _sum(view.instant(queries.WAITING)),
        "running": _sum(running),
        "kv_usage": _sum(window.avg_over_time(queries.KV_USAGE)),
    }
    counters = _counters(objectives)
    results |= _over_window(window, counters)
    if quantiles and objectives.ttft:
        results["ttft_s"] = _quantile(view, window, queries.TTFT, objectives.ttft.percentile)
    if quantiles and objectives.tpot:
        results["tpot_s"] = _quantile(view, window, queries.TPOT, objectives.tpot.percentile)
    for wider_s in queries.wider_windows(window_s):
        fields = _over_window(view.over(_whole(wider_s)), counters)
        results |= {f"{name}{AT_WINDOW}{wider_s}": value for name, value in fields.items()}
    return results


def _counters(objectives: Objectives) -> dict[str, CounterName]:
    """Return what is counted over a window, by a name for each."""
    counters: dict[str, CounterName] = {
        "first_tokens": (f"{queries.TTFT}_count", None),
        "received": (queries.RECEIVED, None),
    }
    for name, histogram in (("prompt", queries.PROMPT_LENGTH), ("answer", queries.ANSWER_LENGTH)):
        counters |= {f"{name}_sum": (f"{histogram}_sum", None), f"{name}_count": (f"{histogram}_count", None)}
    if objectives.ttft:
        counters["ttft_within"] = (
            queries.TTFT,
            queries.snap(objectives.ttft.milliseconds, queries.TTFT_BUCKETS),
        )
    if objectives.tpot:
        edge_s = queries.snap(objectives.tpot.milliseconds, queries.TPOT_BUCKETS)
        for name, histogram in (("tpot", queries.TPOT), ("itl", queries.ITL)):
            counters |= {f"{name}_within": (histogram, edge_s), f"{name}_count": (f"{histogram}_count", None)}
    return counters


def _over_window(window: RangeSelection, counters: Mapping[str, CounterName]) -> dict[str, float | None]:
    by_target = dict(zip(counters, window.increases(tuple(counters.values())), strict=True))
    first_tokens, received = by_target["first_tokens"], by_target["received"]
    # Else a sum would be too low.
    counted = first_tokens.keys() <= received.keys() or _pods(first_tokens) <= _pods(received)
    totals = {name: _sum(increases) for name, increases in by_target.items()}
    results = {
        "running_mean": _sum(window.avg_over_time(queries.RUNNING)),
        "requests": totals["first_tokens"],
        "arrived": totals["received"] if counted else None,
        "prompt_tokens_mean": _mean(totals["prompt_sum"], totals["prompt_count"]),
        "answer_tokens_mean": _mean(totals["answer_sum"], totals["answer_count"]),
    }
    for name, count in (("ttft", "first_tokens"), ("tpot", "tpot_count"), ("itl", "itl_count")):
        if f"{name}_within" in totals:
            results[f"{name}_attainment"] = _attainment(by_target[f"{name}_within"], totals[count])
    return results


def _attainment(within: Mapping[str, float], count: float | None) -> float | None:
    return sum(within.values()) / count if count is not None and count > 0 else None


def _mean(total: float | None, count: float | None) -> float | None:
    return total / count if total is not None and count is not None and count > 0 else None


def _quantile(view: MetricsView, window: RangeSelection, histogram: str, percentile: int) -> float | None:
    """Return the quantile over all targets. Each bucket is summed over the targets that have it."""
    by_target = window.buckets(histogram).values()
    if not by_target:
        return None
    totals: list[float] = list(map(sum, zip(*by_target, strict=True)))
    edges = view.edges(histogram)
    if any(map(math.isnan, totals)):  # some target lacks some bucket
        present = [_present(counts) for counts in zip(*by_target, strict=True)]
        if present[-1] is None:
            return math.nan
        known = [(edge, total) for edge, total in zip(edges, present, strict=False) if total is not None]
        if not known:
            return math.nan
        edges, totals = tuple(edge for edge, _ in known), [*(total for _, total in known), present[-1]]
    return histogram_quantile(percentile / 100, edges, totals)


def _present(counts: Iterable[float]) -> float | None:
    values = [count for count in counts if count == count]  # noqa: PLR0124  # NaN: it lacks the bucket
    return sum(values) if values else None


def _pods(keys: Iterable[str]) -> set[str]:
    return {key.partition(ENGINE_MARK)[0] for key in keys}


def _sum(values: Mapping[str, float]) -> float | None:
    return sum(values.values()) if values else None


def _whole(window_s: float) -> float:
    """Return the window that the queries name: whole seconds, at least one."""
    return max(1, round(window_s))
