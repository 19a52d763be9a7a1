"""A Prometheus server that scrapes simulated engines, and its outages.

What it stores and returns are the rules of `tangram.scaling.scrapes`.
"""

from tangram.scaling.scrapes import ScrapeStore
from tangram.simulator.metrics.engine_page import EnginePage
from tangram.simulator.metrics.page_layout import SIMULATED_PAGE


class PrometheusDown(Exception):
    """A query that Prometheus does not answer."""


class SimulatedPrometheus(ScrapeStore):
    """A Prometheus server and its storage. Each query raises `PrometheusDown` in an outage."""

    def __init__(
        self, scrape_interval_s: float = 15.0, *, retention_s: float = 7200.0, major: int = 3
    ) -> None:
        super().__init__(SIMULATED_PAGE, scrape_interval_s, retention_s=retention_s, major=major)
        self._outages: list[tuple[float, float]] = []

    def scrape(self, pod: str, page: EnginePage, at: float) -> None:
        """Store a successful scrape of a pod. It is lost during an outage."""
        if not self.is_down(at):
            self.append(pod, page, page.scrape(), at)

    def failed_scrape(self, pod: str, at: float) -> None:
        """End the series of a pod that does not answer, until it answers again."""
        if not self.is_down(at):
            self.mark_stale(pod, at)

    def forget(self, pod: str, at: float) -> None:
        """Remove a target. Its series end at the scrape that it lacks first, which shows a little later.

        A Prometheus that restarts meanwhile does not know the target any more: its series end by lookback.
        """
        if self.is_down(at):
            return
        target = self.remove(pod, at)
        if target is not None and self.is_down(target.end_visible_ms / 1000):
            target.end_ms = None

    def outage(self, begin_s: float, end_s: float) -> None:
        """Let queries fail and scrapes be lost from `begin_s` until before `end_s`."""
        self._outages.append((begin_s, end_s))

    def is_down(self, at: float) -> bool:
        """Return whether an outage covers `at`."""
        return any(begin_s <= at < end_s for begin_s, end_s in self._outages)

    def check(self, at: float) -> None:
        """Raise `PrometheusDown` in an outage."""
        if self.is_down(at):
            raise PrometheusDown(f"no answer at {at:g} s")
