"""Engines with pages that a test sets, scraped every 15 s, and what a scaling law reads of them."""

from tangram.scaling.scrapes import MetricsView
from tangram.simulator.controllers import ControllerView
from tangram.simulator.metrics import EnginePage, SimulatedPrometheus


class ScrapedFleet:
    """A fleet whose pages stay as they are set, at 10 s past a scrape."""

    def __init__(self, count=1):
        self.prometheus = SimulatedPrometheus(15)
        self.pages = {f"pod-{number}": EnginePage() for number in range(count)}
        self.now = 0.0
        self._scrape()

    def set(self, *, running=0, waiting=0, kv=0.0):
        """Set the gauges of each page, or of one page each by lists."""
        for place, page in enumerate(self.pages.values()):
            for name, value in (("running", running), ("waiting", waiting), ("kv_usage", kv)):
                setattr(page, name, value[place] if isinstance(value, list | tuple) else value)
        return self

    def wait(self, seconds, each_scrape=None):
        """Let time pass; `each_scrape(page)` happens on each page before each scrape."""
        for _ in range(round(seconds / 15)):
            self.now += 15
            for page in self.pages.values():
                if each_scrape:
                    each_scrape(page)
            self._scrape()
        return self

    def view(self, replicas=None, *, ready=None, starting=0, least=1, most=100, after=0.0):
        """What a law reads 10 s after the last scrape."""
        count = len(self.pages)
        now = self.now + 10 + after
        return ControllerView(
            now=now,
            metrics=MetricsView(self.prometheus, tuple(self.pages), now),
            replicas=count if replicas is None else replicas,
            ready=count if ready is None else ready,
            starting=starting,
            min_replicas=least,
            max_replicas=most,
        )

    def fall_silent(self):
        """End all series: no page answers any more."""
        for pod in self.pages:
            self.prometheus.failed_scrape(pod, self.now + 1)
        return self

    def prometheus_down(self):
        """Let no query be answered from now on."""
        self.prometheus.outage(self.now + 1, float("inf"))
        return self

    def _scrape(self):
        for pod, page in self.pages.items():
            self.prometheus.scrape(pod, page, self.now)
