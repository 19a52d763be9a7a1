"""Recording rules and alerts on the error budgets of one LLMDeployment, as Prometheus reads them. Pure.

A percentile objective P allows 100 - P % of requests to miss it: the error budget. The alerts are those of
Google's Site Reliability Workbook, chapter 5, "Multiwindow, Multi-Burn-Rate Alerts"; names, labels and the
delays (`for`) are those that kube-prometheus gives to KubeAPIErrorBudgetBurn.

Only the rates over 5 minutes read the engines' histograms. All longer windows are sums over these two
records, weighted by requests: a window of three days over histograms would read each bucket of each pod of
three days, every 30 s.

Texts of users (names, servedName) stand in quoted PromQL strings only. Annotations and labels of alerts are
templates: they hold numbers, and refer to names as `$labels`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tangram.fleet import Intent, Objective
from tangram.kube.kinds import Object
from tangram.scaling.queries import (
    TPOT,
    TPOT_BUCKETS,
    TTFT,
    TTFT_BUCKETS,
    observed_rates,
    past_and_present,
    quoted,
    snap,
)

ALERT = "TangramErrorBudgetBurn"
REQUESTS = "llmdeployment:slo_requests:rate5m"  # measured ones, per second
MISSES = "llmdeployment:slo_misses:rate5m"  # of these, the ones above the objective's bucket edge
MISS_RATIO = "llmdeployment:slo_miss:ratio_rate"  # with the window: llmdeployment:slo_miss:ratio_rate1h
WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
INTERVAL_S = 30  # between two evaluations of the rules

# Below them the ratio over the short window is chance: one slow request in three is no outage.
LEAST_REQUESTS = 50  # in the short window
LEAST_MISSES = 3  # likewise
# 14.4 times the budget of a P90 objective is more than all requests. No threshold is above this share, or an
# outage could not fire; that of a P95 objective, 0.72, is still Google's.
HIGHEST_THRESHOLD = 0.75
_BUDGET_DAYS = 30

_LAST = {"5m": "5 minutes", "30m": "30 minutes", "1h": "hour", "6h": "6 hours", "3d": "3 days"}


@dataclass(frozen=True, slots=True)
class BurnRateAlert:
    """An alert on one burn rate, over a long window and, so that it ends soon after, over a short one."""

    burn_rate: float  # 1: the budget of 30 days is used up in 30 days
    long: str
    short: str
    delay: str
    severity: str  # critical: a person is paged; warning: a ticket

    def threshold(self, percentile: int) -> float:
        """Return the share of missed requests above which it fires for an objective of this percentile."""
        return min(self.burn_rate * (100 - percentile) / 100, HIGHEST_THRESHOLD)


ALERTS = (
    BurnRateAlert(14.4, "1h", "5m", "2m", "critical"),
    BurnRateAlert(6.0, "6h", "30m", "15m", "critical"),
    BurnRateAlert(1.0, "3d", "6h", "3h", "warning"),
)


@dataclass(frozen=True, slots=True)
class _MeasuredObjective:
    """An objective with the histogram that measures it."""

    name: str  # as in metrics of the operator: ttft, tpot
    objective: Objective
    histogram: str
    buckets: tuple[float, ...]
    unit: str  # what the limit of the objective is about, in words

    @property
    def edge_s(self) -> float:
        """The bucket edge at which it is checked."""
        return snap(self.objective.milliseconds, self.buckets)


def rule_group(intent: Intent, runbook_base_url: str) -> Object:
    """Return the group of all rules of an LLMDeployment, which has an objective.

    One group, because the rules of a group are evaluated in order: alerts see the records of their instant.
    """
    rules = [
        rule
        for measured in _measured_objectives(intent)
        for rule in (*_records(intent, measured), *_alerts(intent, measured, runbook_base_url))
    ]
    return {"name": "tangram-error-budget", "interval": f"{INTERVAL_S}s", "rules": rules}


def _measured_objectives(intent: Intent) -> Iterator[_MeasuredObjective]:
    if intent.ttft:
        yield _MeasuredObjective("ttft", intent.ttft, TTFT, TTFT_BUCKETS, "to the first token")
    if intent.tpot:
        yield _MeasuredObjective("tpot", intent.tpot, TPOT, TPOT_BUCKETS, "per output token")


def _labels(intent: Intent, measured: _MeasuredObjective) -> dict[str, str]:
    """Return the labels of the records. Another edge begins other series: what was measured at the former
    one is no part of a window.
    """
    return {
        "namespace": intent.namespace,
        "llmdeployment": intent.name,
        "objective": measured.name,
        "edge_seconds": f"{measured.edge_s:g}",
    }


def _selector(intent: Intent, measured: _MeasuredObjective) -> str:
    matchers = (f'{name}="{quoted(value)}"' for name, value in _labels(intent, measured).items())
    return f"{{{','.join(matchers)}}}"


def _records(intent: Intent, measured: _MeasuredObjective) -> Iterator[Object]:
    labels, selector = _labels(intent, measured), _selector(intent, measured)
    pods = past_and_present(intent.namespace, intent.served_name, intent.name)
    good, requests = observed_rates(measured.histogram, pods, measured.edge_s, "5m")

    def record(name: str, expr: str) -> Object:
        return {"record": name, "expr": expr, "labels": labels}

    yield record(REQUESTS, requests)
    # Both rates are extrapolated, so their difference may be slightly below zero.
    yield record(MISSES, f"clamp_min({requests} - {good}, 0)")
    for window in WINDOWS:
        misses, requests = (
            f"{name}{selector}" if window == "5m" else f"sum_over_time({name}{selector}[{window}])"
            for name in (MISSES, REQUESTS)
        )
        yield record(f"{MISS_RATIO}{window}", f"{misses} / ({requests} > 0)")


def _alerts(intent: Intent, measured: _MeasuredObjective, runbook_base_url: str) -> Iterator[Object]:
    selector = _selector(intent, measured)
    for alert in ALERTS:
        threshold = f"{alert.threshold(measured.objective.percentile):g}"
        over = f"{selector}[{alert.short}]"
        conditions = (
            f"{MISS_RATIO}{alert.long}{selector} > {threshold}",
            f"{MISS_RATIO}{alert.short}{selector} > {threshold}",
            f"sum_over_time({REQUESTS}{over}) * {INTERVAL_S} >= {LEAST_REQUESTS}",
            f"sum_over_time({MISSES}{over}) * {INTERVAL_S} >= {LEAST_MISSES}",
        )
        yield {
            "alert": ALERT,
            "expr": " and ".join(conditions),
            "for": alert.delay,
            "labels": {"severity": alert.severity, "long": alert.long, "short": alert.short},
            "annotations": _annotations(alert, measured, runbook_base_url),
        }


def _annotations(alert: BurnRateAlert, measured: _MeasuredObjective, runbook_base_url: str) -> dict[str, str]:
    objective = measured.objective
    budget, threshold = 100 - objective.percentile, alert.threshold(objective.percentile)
    rate = 100 * threshold / budget
    limit_ms, edge_ms = objective.milliseconds, measured.edge_s * 1000
    edge = "" if abs(edge_ms - limit_ms) < 1e-6 else f" (measured at the histogram edge of {edge_ms:g} ms)"
    return {
        "summary": "{{ $labels.namespace }}/{{ $labels.llmdeployment }} uses up the error budget of its"
        f" {measured.name.upper()} objective at more than {rate:g} times the rate that lasts for"
        f" {_BUDGET_DAYS} days",
        "description": "{{ $value | humanizePercentage }} of the requests of the last"
        f" {_LAST[alert.long]} took longer than {limit_ms:g} ms {measured.unit}{edge}. The objective allows"
        f" {budget} %. More than {100 * threshold:g} %, over the last {_LAST[alert.long]} and the last"
        f" {_LAST[alert.short]}, use up what it allows in {_BUDGET_DAYS} days within {_used_up(rate)}.",
    } | _runbook(runbook_base_url)


def _runbook(base_url: str) -> dict[str, str]:
    """Return the link to the page; without a base URL, its name."""
    if not base_url:
        return {"runbook": f"docs/runbooks/{ALERT}.md"}
    return {"runbook_url": f"{base_url.rstrip('/')}/{ALERT}.md"}


def _used_up(burn_rate: float) -> str:
    days = _BUDGET_DAYS / burn_rate
    return f"{days:g} days" if days == round(days) else f"{days * 24:.0f} hours"
