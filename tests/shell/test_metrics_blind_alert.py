"""TangramMetricsBlind on the page that the operator exports: in which states it fires, and when."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tangram.fleet import Intent
from tangram.shell.measure.engine_scraper import EngineScraper, FleetPods
from tangram.shell.measure.metrics_reader import MetricsReader
from tangram.shell.measure.scraped_page import PageProblem
from tangram.shell.process import app
from tangram.shell.settings import Settings
from tangram.shell.snapshot.workloads import EnginePod
from tests.shell.test_metrics_reader import (
    BAD,
    INTENT,
    PODS,
    PROMETHEUS,
    Prometheus,
    asked,
    empty,
    healthy,
    vector_of_one,
)
from tests.support import promtool
from tests.support.fleet import shape, workload
from tests.support.plain_credentials import PlainCredentials

RULES = Path(__file__).parents[2] / "charts" / "tangram" / "files" / "rules" / "tangram.yaml"
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
METRIC, MINUTES = "tangram_seconds_since_last_fresh_metric", 40
ALERT: Mapping[str, Any] = next(r for g in GROUPS for r in g["rules"] if r["alert"] == "TangramMetricsBlind")
FIXED = replace(INTENT, max_replicas=INTENT.min_replicas)


def no_series(request: httpx.Request) -> httpx.Response:
    return vector_of_one("100") if asked(request) == "time()" else empty()


class Exporter:
    """An operator whose rounds and minutes a test counts, and the page that it exports."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
        self.now, self.leads, self.ready = 1e9, True, 1
        self.prometheus = Prometheus()
        fake_time = SimpleNamespace(
            time=lambda: self.now,
            clock_gettime=lambda _clock: self.now,
            CLOCK_BOOTTIME=app.time.CLOCK_BOOTTIME,
        )
        monkeypatch.setattr(app, "time", fake_time)
        self.operator = app.Operator(settings, PlainCredentials("http://127.0.0.1:1"))
        self.operator.elector = SimpleNamespace(leading=True)  # type: ignore[assignment]
        self.scaler = self.operator.loop.observer.scaler

    async def minute(self, intent: Intent, read: Callable[[], Awaitable[None]]) -> None:
        """Read metrics and decide, as in one round; then a minute passes."""
        self.operator.elector.leading = self.leads  # type: ignore[misc]
        if self.leads:
            await read()
            running = (workload(intent, shape(), 1, available=self.ready),)
            self.scaler.decide((intent,), running, {}, self.now)
        self.now += 60

    def page(self) -> list[float]:
        """Return the values of the metric."""
        self.operator.refresh_ages()
        families = text_string_to_metric_families(generate_latest(self.operator.metrics.registry).decode())
        return [s.value for family in families for s in family.samples if s.name == METRIC]


def firing(tmp_path: Path, pages: list[list[float]]) -> list[int]:
    """Return the minutes in which the alert of the chart fires, for a page a minute."""
    values = " ".join(str(page[0]) if page else "stale" for page in pages)
    series = {f'{METRIC}{{namespace="ns", llmdeployment="chat", pod="a", instance="a"}}': values}
    group = {"name": "blind", "rules": [ALERT]}
    checks = [
        {"eval_time": f"{minute}m", "alertname": ALERT["alert"], "exp_alerts": []}
        for minute in range(len(pages))
    ]
    done = promtool.evaluate(tmp_path, [group], series, alert_rule_test=checks)
    assert "parse" not in done.stdout + done.stderr
    text = done.stdout + done.stderr
    return [minute for minute in range(len(pages)) if f"time: {minute}m," in text]


@pytest.fixture
async def exporter(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Exporter(monkeypatch, Settings(engine_image="e", prometheus=PROMETHEUS))
    made.operator.reader = made.scaler.reader = MetricsReader(
        PROMETHEUS,
        now=lambda: made.now,
        clock=lambda: made.now,
        transport=httpx.MockTransport(made.prometheus),
    )
    yield made
    await made.operator.reader.close()
    await made.operator.client.close()


async def pages_of(
    exporter: Exporter, change: Callable[[int, Exporter], None], intent: Intent = INTENT
) -> list[list[float]]:
    """Return a page a minute; `change` acts before each."""
    reader, pages = exporter.operator.reader, []
    assert isinstance(reader, MetricsReader)
    for minute in range(MINUTES):
        change(minute, exporter)
        await exporter.minute(intent, lambda: reader.read((intent,), PODS))
        pages.append(exporter.page())
    return pages


def answers(answer: Any, since: int = 0, until: int = MINUTES) -> Callable[[int, Exporter], None]:
    def change(minute: int, exporter: Exporter) -> None:
        exporter.prometheus.answer = answer if since <= minute < until else healthy

    return change


def does_not_lead(_minute: int, exporter: Exporter) -> None:
    exporter.prometheus.answer, exporter.leads = BAD["unreachable"], False


def has_no_ready_replica(_minute: int, exporter: Exporter) -> None:
    exporter.prometheus.answer, exporter.ready = BAD["unreachable"], 0


def loses_the_lease(minute: int, exporter: Exporter) -> None:
    exporter.prometheus.answer, exporter.leads = BAD["unreachable"], minute < 20


STATES = {
    "never a metric": (answers(BAD["unreachable"]), INTENT, 10, MINUTES),
    "the url is not that of a Prometheus": (answers(BAD["html"]), INTENT, 10, MINUTES),
    "no series of its pods": (answers(no_series), INTENT, 10, MINUTES),
    "away after fresh metrics": (answers(BAD["unreachable"], since=10), INTENT, 18, MINUTES),
    "away, and back": (answers(BAD["500"], since=5, until=30), INTENT, 13, 30),
    "loses the Lease": (loses_the_lease, INTENT, 10, 20),
    "always fresh": (answers(healthy), INTENT, MINUTES, MINUTES),
    "away for eight minutes": (answers(BAD["500"], since=5, until=13), INTENT, MINUTES, MINUTES),
    "no LLMDeployment scales": (answers(BAD["unreachable"]), FIXED, MINUTES, MINUTES),
    "paused": (answers(BAD["unreachable"]), replace(INTENT, paused=True), MINUTES, MINUTES),
    "not the leader": (does_not_lead, INTENT, MINUTES, MINUTES),
    "no ready replica": (has_no_ready_replica, INTENT, MINUTES, MINUTES),
}


@pytest.mark.parametrize("state", STATES)
async def test_the_alert_fires_where_metrics_are_due_and_do_not_come(
    state: str, exporter: Exporter, tmp_path: Path
) -> None:
    change, intent, first, end = STATES[state]

    fired = firing(tmp_path, await pages_of(exporter, change, intent))

    assert fired == list(range(first, end))


async def test_pods_that_the_operator_cannot_read_make_it_fire(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Unreachable:
        async def fetch(self, _url: str) -> Any:
            raise PageProblem("does not answer")

        async def close(self) -> None:
            pass

    settings = Settings(engine_image="e")
    exporter, pod = Exporter(monkeypatch, settings), EnginePod("p", "chat-1-a", "10.0.0.1", is_ready=True)
    fleet, pages = FleetPods((INTENT,), {INTENT.uid: (pod,)}), []
    scraper = EngineScraper(
        settings.scrape,
        now=lambda: exporter.now,
        clock=lambda: exporter.now,
        fetcher=Unreachable(),  # type: ignore[arg-type]
    )
    exporter.scaler.reader = scraper

    async def read() -> None:
        scraper.follow(fleet)
        await scraper.scrape(pod)
        await scraper.evaluate(fleet)

    for _ in range(MINUTES):
        await exporter.minute(INTENT, read)
        pages.append(exporter.page())

    assert firing(tmp_path, pages) == list(range(10, MINUTES))
    await exporter.operator.client.close()


async def test_a_clock_that_is_set_back_begins_the_age_anew(
    exporter: Exporter,
) -> None:
    def change(minute: int, exporter: Exporter) -> None:
        exporter.prometheus.answer = BAD["unreachable"]
        exporter.now -= 86400 if minute == 3 else 0

    ages = [page[0] for page in await pages_of(exporter, change)]

    assert ages[:5] == [60, 120, 180, 60, 120]
