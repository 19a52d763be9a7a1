"""What several laws read: sums over pods and means of histograms. None: no series, or no observation."""

from collections.abc import Mapping

from tangram.scaling.scrapes import MetricsView


def total(values: Mapping[str, float]) -> float | None:
    """Return the sum over pods."""
    return sum(values.values()) if values else None


def increase(metrics: MetricsView, counter: str, window_s: float) -> float | None:
    """Return the increase of a counter of all pods."""
    return total(metrics.increase(counter, window_s))


def mean(metrics: MetricsView, histogram: str, window_s: float) -> float | None:
    """Return the mean of the observations within a window."""
    count = increase(metrics, f"{histogram}_count", window_s)
    amount = increase(metrics, f"{histogram}_sum", window_s)
    return amount / count if count and amount is not None else None
