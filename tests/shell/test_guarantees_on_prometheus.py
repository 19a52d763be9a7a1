"""What the scaling law does with a real Prometheus that fails, and with series that are not what they seem.

Each test has an LLMDeployment of two replicas in a namespace of its own. The clock of the operator is the
test's; samples are as old as Prometheus' own clock makes them, a few seconds.
"""

import asyncio
import itertools
import math
import time
from collections import defaultdict
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

import httpx
import pytest
from aiohttp import web

from tangram.fleet import Objective
from tangram.scaling import SignalState, queries
from tangram.shell.measure.metrics_reader import MetricsReader
from tangram.shell.measure.predicted_capacities import CapacityInputs
from tangram.shell.measure.scaler import Scaler, params_of
from tangram.shell.settings import PrometheusSettings, Settings
from tests.support.fleet import FACTS_1B, intent, shape, workload
from tests.support.real_prometheus import RealPrometheus

pytestmark = pytest.mark.slow

SCRAPE_S, PAST_S = 15, 1800
STEP_S = 60.0  # of the operator's clock, between two decisions
NAMESPACES = (f"ns-{number}" for number in itertools.count())
FORECASTS = pytest.mark.parametrize("forecasts", [False, True], ids=["without forecast", "with forecast"])


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    process = RealPrometheus(tmp_path_factory.mktemp("prometheus"))
    process.start()
    yield process
    process.stop()


@dataclass(frozen=True)
class Engine:
    """A page of one engine. Requests end within their first second; `met` of them within each objective."""

    requests_per_scrape: float = 30.0
    met: float = 1.0
    tokens_met: float = 1.0
    running: float = 0.2
    kv_usage: float = 0.1
    waiting: float = 0.0
    counts_arrivals: bool = True
    names: str = "current"  # or "previous", of a version before metrics were renamed, or "both"
    restarted_s_ago: float | None = None  # its counters began anew then

    def page(self, seconds_ago):
        """The samples at one time by name and bucket."""
        begin = PAST_S + 1000
        if self.restarted_s_ago is not None and seconds_ago <= self.restarted_s_ago:
            begin = self.restarted_s_ago
        count = self.requests_per_scrape * (begin - seconds_ago) / SCRAPE_S
        page = {
            (queries.RUNNING, ""): self.running,
            (queries.WAITING, ""): self.waiting,
            (queries.KV_USAGE, ""): self.kv_usage,
        }
        if self.counts_arrivals:
            page[queries.RECEIVED, ""] = count
        for name, edge, met in (
            (queries.TTFT, "1.0", self.met),
            (queries.TPOT, "0.05", self.met),
            (queries.ITL, "0.05", self.tokens_met),
        ):
            page[f"{name}_bucket", edge] = met * count
            page[f"{name}_bucket", "+Inf"] = page[f"{name}_count", ""] = count
        for name, tokens in ((queries.PROMPT_LENGTH, 500.0), (queries.ANSWER_LENGTH, 100.0)):
            page[f"{name}_sum", ""], page[f"{name}_count", ""] = tokens * count, count
        return self._renamed(page)

    def _renamed(self, page):
        if self.names == "current":
            return page
        renamed = dict(page)
        for current, previous in queries.PREVIOUS_NAMES.items():
            renamed = {(name.replace(current, previous), le): value for (name, le), value in renamed.items()}
        if self.names == "both":
            return page | renamed
        return {key: value for key, value in renamed.items() if not key[0].startswith(queries.TPOT)}


CALM = Engine()
# One replica could not run as many requests within 0.7 of its 64, nor serve as many by the capacity model.
BUSY = Engine(requests_per_scrape=1500, running=40, kv_usage=0.3)


class Law:
    """The operator's reader and law about one LLMDeployment, whose replicas are as ordered at once."""

    def __init__(self, prometheus, *, ahead_s=0.0, forecasts=False, url=None, timeout_s=5.0):
        self.prometheus, self.namespace = prometheus, next(NAMESPACES)
        self.intent = replace(
            intent("m", ttft=Objective(90, 1000), tpot=Objective(90, 50), max_replicas=8),
            uid=self.namespace,
            namespace=self.namespace,
        )
        self.settings = Settings(
            engine_image="e",
            prometheus=PrometheusSettings(url=url or prometheus.url, timeout_seconds=timeout_s),
        )
        self.now = time.time() + ahead_s
        self.reader = MetricsReader(self.settings.prometheus, now=lambda: self.now)
        self.scaler = Scaler(params_of(self.settings), self.reader)
        self.inputs = CapacityInputs({self.intent.uid: FACTS_1B} if forecasts else {})
        self.replicas = 2
        self.states = []
        self.readings = []

    @contextmanager
    def patience(self, timeout_s):
        """Give up a query after another time: a busy machine takes long for those that are answered, too."""
        usual = self.settings.prometheus
        self.reader._prometheus._settings = usual.model_copy(update={"timeout_seconds": timeout_s})
        try:
            yield
        finally:
            self.reader._prometheus._settings = usual

    def pods(self, count):
        """The names of the pods of the first replicas: no other LLMDeployment has them."""
        return tuple(f"{self.namespace}-1-{number}" for number in range(count))

    def scraped(self, *engines, **changes):
        """Add the last half hour of the pages of the first pods to Prometheus."""
        self.prometheus.write(self.series(*engines, **changes))
        return self

    def series(self, *engines, job="engines", early_s=0.0, past_s=PAST_S, changed=None):
        """The series of pages, the last sample a second ago, or `early_s` earlier.

        `changed` are other last values.
        """
        now, found = time.time(), defaultdict(dict)
        for pod, engine in zip(self.pods(len(engines)), engines, strict=True):
            for back in range(0, past_s + 1, SCRAPE_S):
                ago = back + 1 + early_s
                for (name, le), value in engine.page(ago).items():
                    labels = {"__name__": name, "job": job, "namespace": self.namespace, "pod": pod}
                    labels |= {"model_name": "m", "engine": "0"} | ({"le": le} if le else {})
                    last = (changed or {}).get((name, le), value) if back == 0 else value
                    found[tuple(labels.items())][now - ago] = last
        return found

    async def run(self, rounds, step_s=STEP_S):
        """Read and decide; return the replicas after each round."""
        ordered = []
        for _ in range(rounds):
            self.now += step_s
            await self.reader.read((self.intent,), {self.intent.uid: self.pods(self.replicas)})
            running = (workload(self.intent, shape(), self.replicas),)
            found = self.scaler.decide((self.intent,), running, {}, self.now, capacity_inputs=self.inputs)
            result = found[self.intent.uid]
            self.replicas = result.decision.replicas
            self.states.append(result.signal.state)
            self.readings.append(self.reader.reading(self.intent))
            ordered.append(self.replicas)
        return ordered

    @property
    def sample(self):
        """The last good sample."""
        return self.readings[-1].sample

    @property
    def problem(self):
        """Why the last reading failed."""
        return self.readings[-1].problem


@asynccontextmanager
async def law(prometheus, **options):
    made = Law(prometheus, **options)
    try:
        yield made
    finally:
        await made.reader.close()


@FORECASTS
async def test_a_light_load_that_is_seen_removes_a_replica(prometheus, forecasts):
    async with law(prometheus, forecasts=forecasts) as calm:
        ordered = await calm.scraped(CALM, CALM).run(10)

        assert set(calm.states) == {SignalState.FRESH}
        assert ordered[-1] == 1


@FORECASTS
async def test_a_load_of_two_replicas_keeps_both(prometheus, forecasts):
    async with law(prometheus, forecasts=forecasts) as busy:
        ordered = await busy.scraped(BUSY, BUSY).run(10)

        assert set(busy.states) == {SignalState.FRESH}
        assert ordered == [2] * 10


async def test_objectives_that_are_missed_add_replicas(prometheus):
    async with law(prometheus) as missed:
        ordered = await missed.scraped(replace(BUSY, met=0.5), replace(BUSY, met=0.5)).run(7)

        assert ordered[-1] > 2


@FORECASTS
async def test_a_prometheus_that_stops_removes_no_replica(prometheus, forecasts):
    async with law(prometheus, forecasts=forecasts) as calm:
        await calm.scraped(CALM, CALM).run(4)

        prometheus.stop()
        try:
            assert await calm.run(20) == [2] * 20
        finally:
            prometheus.start()

        assert calm.states[:4] == [SignalState.FRESH] * 4
        assert calm.states[-1] is SignalState.BLIND
        assert "does not answer" in calm.problem


async def test_a_prometheus_that_starts_again_with_its_data_is_believed_from_then_on(prometheus):
    async with law(prometheus) as calm:
        await calm.scraped(CALM, CALM).run(3)
        prometheus.stop()
        assert await calm.run(6) == [2] * 6
        prometheus.start()

        assert await calm.run(5) == [2] * 5  # the evidence of a light load begins anew
        assert calm.states[-6:] == [SignalState.BLIND, *[SignalState.FRESH] * 5]
        assert (await calm.run(3))[-1] == 1


@FORECASTS
async def test_a_prometheus_that_lost_its_data_removes_and_adds_none(prometheus, forecasts):
    options = {"forecasts": forecasts}
    async with law(prometheus, **options) as calm, law(prometheus, **options) as busy:
        await calm.scraped(CALM, CALM).run(4)
        await busy.scraped(BUSY, BUSY).run(4)
        prometheus.stop()
        prometheus.lose_data()
        prometheus.start()

        assert await calm.run(9) == await busy.run(9) == [2] * 9
        assert {*calm.states[4:], *busy.states[4:]} == {SignalState.BLIND}

        # The first two scrapes: counters of long ago are no load of these seconds.
        calm.scraped(CALM, CALM, past_s=SCRAPE_S)
        busy.scraped(BUSY, BUSY, past_s=SCRAPE_S)
        assert await calm.run(4) == await busy.run(4) == [2] * 4
        assert busy.sample.requests <= 2 * 2 * BUSY.requests_per_scrape


@pytest.mark.parametrize("how", ["every query is late", "queries of series are late", "answers trickle"])
async def test_a_slow_prometheus_delays_no_round_beyond_its_timeout_and_removes_no_replica(prometheus, how):
    async with slow(prometheus, how) as proxy, law(prometheus, url=proxy.url, timeout_s=60) as calm:
        await calm.scraped(CALM, CALM).run(4)
        assert calm.states == [SignalState.FRESH] * 4

        proxy.is_slow = True
        with calm.patience(1.2):
            async with asyncio.timeout(15):
                assert await calm.run(3, step_s=150) == [2] * 3

        assert calm.states[-1] is SignalState.BLIND
        proxy.is_slow = False
        assert (await calm.run(8))[-1] == 1


class SlowProxy:
    """Passes queries on to Prometheus; while `is_slow`, late, or byte by byte without an end."""

    def __init__(self, upstream, how):
        self.upstream, self.how, self.is_slow, self.url = upstream, how, False, ""
        self.client = httpx.AsyncClient(trust_env=False, verify=False, timeout=60)  # noqa: S501 - no TLS

    async def pass_on(self, request):
        form = await request.read()
        if self.is_slow and self.how == "answers trickle":
            return await self._trickle(request)
        if self.is_slow and (self.how == "every query is late" or not form.startswith(b"query=time")):
            await asyncio.sleep(30)
        headers = {"Content-Type": request.headers["Content-Type"]}
        answer = await self.client.post(self.upstream + request.path, content=form, headers=headers)
        return web.Response(body=answer.content, status=answer.status_code)

    async def _trickle(self, request):
        response = web.StreamResponse()
        await response.prepare(request)
        while request.transport is not None and not request.transport.is_closing():
            await response.write(b" ")
            await asyncio.sleep(0.05)
        return response


@asynccontextmanager
async def slow(prometheus, how):
    proxy, app = SlowProxy(prometheus.url, how), web.Application()
    app.router.add_post("/api/v1/query", proxy.pass_on)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield proxy
    finally:
        await runner.cleanup()
        await proxy.client.aclose()


async def test_a_prometheus_without_series_removes_no_replica(prometheus):
    async with law(prometheus) as unknown:
        assert await unknown.run(10) == [2] * 10

        assert set(unknown.states) == {SignalState.BLIND}
        assert unknown.problem == ""


async def test_a_replica_that_is_not_scraped_removes_no_replica(prometheus):
    async with law(prometheus) as half:
        assert await half.scraped(CALM).run(8) == [2] * 8

        assert set(half.states) == {SignalState.THIN}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (queries.RUNNING, math.nan),
        (queries.RUNNING, math.inf),
        (queries.WAITING, -5.0),
        (queries.KV_USAGE, 1e12),
    ],
)
async def test_a_number_that_cannot_be_removes_no_replica_and_concerns_no_other(prometheus, name, value):
    async with law(prometheus) as wrong, law(prometheus) as calm:
        wrong.scraped(CALM, CALM, changed={(name, ""): value})

        assert await wrong.run(8) == [2] * 8
        assert wrong.problem
        calm.scraped(CALM, CALM)
        both = {one.intent.uid: one.pods(2) for one in (wrong, calm)}
        await calm.reader.read((wrong.intent, calm.intent), both)
        assert calm.reader.reading(wrong.intent).problem
        assert calm.reader.reading(calm.intent).problem == ""


@pytest.mark.parametrize("name", [f"{queries.TTFT}_count", queries.RECEIVED, f"{queries.PROMPT_LENGTH}_sum"])
async def test_a_counter_that_is_nan_neither_adds_nor_removes(prometheus, name):
    async with law(prometheus) as busy:
        busy.scraped(BUSY, BUSY, changed={(name, ""): math.nan})

        assert await busy.run(7) == [2] * 7


@pytest.mark.parametrize(("seconds_ago", "forecasts"), [(20, False), (40, True), (200, False)])
async def test_counters_that_begin_anew_are_no_violation_and_no_load(prometheus, seconds_ago, forecasts):
    restarted = replace(BUSY, restarted_s_ago=seconds_ago)
    async with law(prometheus, forecasts=forecasts) as both, law(prometheus, forecasts=forecasts) as one:
        assert max(await both.scraped(restarted, restarted).run(7)) == 2
        assert max(await one.scraped(restarted, BUSY).run(7)) == 2

        for sample in (both.sample, one.sample):
            for window in sample.windows(60):
                assert window.ttft_attainment == window.itl_attainment == 1
                scrapes = 2 * window.seconds / SCRAPE_S
                load = scrapes * BUSY.requests_per_scrape
                assert 0.4 * load <= window.arrived <= 1.1 * load


async def test_a_pod_that_two_jobs_scrape_is_one_replica_with_its_load_once(prometheus):
    async with law(prometheus) as once, law(prometheus) as twice:
        await once.scraped(BUSY, BUSY).run(1)
        twice.scraped(BUSY, BUSY).scraped(BUSY, BUSY, job="monitor", early_s=7)

        assert await twice.run(7) == [2] * 7
        single, double = once.sample, twice.sample
        assert (double.targets, double.running, double.waiting) == (2, 80, 0)
        assert double.kv_usage == pytest.approx(single.kv_usage)
        for counted, expected in zip(double.windows(60), single.windows(60), strict=True):
            # Two scrapes of one counter at other times: an increase differs by the load of half a scrape.
            most = 2 * BUSY.requests_per_scrape
            assert counted.requests == pytest.approx(expected.requests, abs=most)
            assert counted.arrived == pytest.approx(expected.arrived, abs=most)
            assert counted.running_mean == pytest.approx(expected.running_mean)
            assert counted.prompt_tokens_mean == pytest.approx(500, rel=0.3)
            assert counted.ttft_attainment == 1


@pytest.mark.parametrize("ahead_s", [600, -600])
async def test_a_wrong_clock_of_the_operator_changes_no_decision(prometheus, ahead_s):
    for engine, last in ((CALM, {1}), (BUSY, {2}), (replace(BUSY, met=0.5), range(3, 9))):
        async with law(prometheus) as right, law(prometheus, ahead_s=ahead_s) as wrong:
            ordered = await right.scraped(engine, engine).run(7)

            assert ordered[-1] in last
            assert await wrong.scraped(engine, engine).run(7) == ordered
            assert wrong.states == right.states


@pytest.mark.parametrize("names", ["previous", "both"])
async def test_replicas_of_two_engine_versions_are_read_as_one_fleet(prometheus, names):
    async with law(prometheus) as upgraded, law(prometheus) as same:
        await same.scraped(BUSY, BUSY).run(1)

        assert await upgraded.scraped(replace(BUSY, names=names), BUSY).run(7) == [2] * 7

        sample, expected = upgraded.sample, same.sample
        assert set(upgraded.states) == {SignalState.FRESH}
        assert (sample.targets, sample.running) == (2, 80)
        assert sample.kv_usage == pytest.approx(expected.kv_usage)
        assert (sample.itl_attainment, sample.tpot_attainment) == (1, 1)


async def test_a_full_cache_of_the_previous_version_keeps_its_replicas(prometheus):
    async with law(prometheus) as upgraded:
        full = replace(CALM, names="previous", kv_usage=0.9)

        assert await upgraded.scraped(full, CALM).run(7) == [2] * 7


async def test_tokens_that_are_late_in_the_previous_version_alone_add_a_replica(prometheus):
    async with law(prometheus) as upgraded:
        slow_tokens = replace(BUSY, names="previous", tokens_met=0.5)
        in_time = replace(BUSY, requests_per_scrape=100)

        ordered = await upgraded.scraped(slow_tokens, in_time).run(7)

        assert ordered[-1] > 2
