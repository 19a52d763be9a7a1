"""Readings from the pods themselves: windows, outages, changes of leader and of pods, and what follows."""

import asyncio
import inspect
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from tangram.fleet import Objective
from tangram.scaling import SignalState, classify
from tangram.shell.measure.engine_scraper import MOST_PODS, EngineScraper, FleetPods, metrics_url
from tangram.shell.measure.scaler import Scaler, params_of
from tangram.shell.measure.scraped_page import PageProblem, wanted_lines
from tangram.shell.settings import ScrapeSettings, Settings
from tangram.shell.snapshot.workloads import EnginePod
from tangram.simulator.metrics import EnginePage
from tests.support import metrics_pages
from tests.support.fleet import NOW, Cluster, intent, node, shape, snapshot, workload

CHAT = intent("chat", ttft=Objective(90, 500), max_replicas=4)
OTHER = intent("other", ttft=Objective(90, 500), max_replicas=4)
SETTINGS = Settings(engine_image="e")


def pod(name, *, ready=True):
    number = sum(name.encode())
    return EnginePod(f"uid-{name}", name, f"10.0.{number // 256}.{number % 256}", ready)


class Pages:
    """A fetcher without a network: `reply(ip)` is the body of a page, or raises why there is none."""

    def __init__(self, reply):
        self._reply = reply

    async def fetch(self, url):
        body = self._reply(urlsplit(url).hostname)
        return wanted_lines(await body if inspect.isawaitable(body) else body)

    async def close(self):
        pass


class Engines:
    """Engines behind pod addresses, a scraper, and time that passes only when a test lets it."""

    def __init__(self, **pods):
        self.now = 1000.0
        self.models, self.pages, self.failing, self.asked = {}, {}, {}, []
        self.pods = {}
        self.scraper = EngineScraper(
            ScrapeSettings(),
            now=lambda: NOW + self.now,
            clock=lambda: self.now,
            fetcher=Pages(self._reply),
        )
        for owner, names in pods.items():
            for name in names:
                self.add(owner, name)

    def add(self, owner, name, *, ready=True):
        self.pods.setdefault(f"uid-{owner}", []).append(pod(name, ready=ready))
        self.pages[pod(name).ip], self.models[pod(name).ip] = EnginePage(), owner

    def remove(self, name):
        self.pods = {uid: [p for p in pods if p.name != name] for uid, pods in self.pods.items()}

    def page(self, name):
        return self.pages[pod(name).ip]

    def fail(self, name, reply):
        self.failing[pod(name).ip] = reply

    def mend(self, name):
        del self.failing[pod(name).ip]

    def _reply(self, ip):
        self.asked.append(ip)
        failing = self.failing.get(ip)
        if isinstance(failing, Exception):
            raise failing
        if failing is not None:
            return failing
        return metrics_pages.text(metrics_pages.series(self.pages[ip], self.models[ip]))

    @property
    def fleet(self):
        return FleetPods((CHAT, OTHER), {uid: tuple(pods) for uid, pods in self.pods.items()})

    async def wait(self, seconds, each_scrape=lambda: None):
        """Scrape every 15 s, and evaluate at the end."""
        for _ in range(round(seconds / 15)):
            self.now += 15
            each_scrape()
            self.scraper.follow(self.fleet)
            for pods in self.fleet.pods.values():
                for one in pods:
                    await self.scraper.scrape(one)
        await self.scraper.evaluate(self.fleet)

    def reading(self, of=CHAT):
        return self.scraper.reading(of)

    def signal(self, ready, of=CHAT):
        reading = self.reading(of)
        return classify(
            reading.sample,
            reading.problem,
            ready=ready,
            params=params_of(SETTINGS),
            now=NOW + self.now,
            pods_read=reading.pods_read,
        )


def busy(page):
    """Fifteen seconds of an engine that misses half of its objectives."""
    for number in range(30):
        page.arrived()
        page.first_token(0.1 if number % 2 else 3.0, 500)
        page.finished(0.02, 500, 100, 4.0)
    page.running, page.waiting = 20, 0


@pytest.fixture
async def engines():
    these = Engines(chat=("a", "b", "c"), other=("d",))
    yield these
    await these.scraper.close()


async def test_the_load_of_all_pods_is_one_sample(engines):
    await engines.wait(120, lambda: [busy(engines.page(name)) for name in "abc"])

    reading = engines.reading()
    assert reading.problem == ""
    assert reading.pods_read == "3 of 3 pods"
    assert (reading.sample.targets, reading.sample.running, reading.sample.waiting) == (3, 60, 0)
    assert reading.sample.requests == pytest.approx(3 * 30 * 4)
    assert reading.sample.arrived == pytest.approx(3 * 30 * 4)
    assert reading.sample.ttft_attainment == pytest.approx(0.5)
    assert engines.signal(3).state is SignalState.FRESH


async def test_the_law_adds_replicas_for_what_pods_show(engines):
    cluster = Cluster(snapshot(node("b", mig_1g_10gb=7)), (CHAT,))
    owned = (workload(CHAT, shape("1g.10gb"), 3),)
    scaler = Scaler(params_of(SETTINGS), engines.scraper)
    await engines.wait(600, lambda: [busy(engines.page(name)) for name in "abc"])

    for _ in range(3):
        await engines.wait(15, lambda: [busy(engines.page(name)) for name in "abc"])
        result = scaler.decide(cluster.intents, owned, {CHAT.uid: 3}, NOW + engines.now)[CHAT.uid]

    assert result.decision.memory.replicas == 4
    assert result.signal.pods_read == "3 of 3 pods"


async def test_windows_count_nothing_until_scrapes_have_filled_them(engines):
    await engines.wait(60, lambda: busy(engines.page("a")))  # the first scrape was 45 s ago

    sample = engines.reading().sample
    assert (sample.targets, sample.running) == (3, 20)
    assert (sample.requests, sample.arrived, sample.running_mean, sample.ttft_attainment) == (None,) * 4
    assert engines.signal(3).state is SignalState.THIN

    await engines.wait(15, lambda: busy(engines.page("a")))

    sample = engines.reading().sample
    assert sample.requests is not None
    assert {window.seconds: window.requests for window in sample.wider} == {300: None, 1500: None}

    await engines.wait(285, lambda: busy(engines.page("a")))
    assert [window.requests is None for window in engines.reading().sample.wider] == [False, True]


async def test_pods_that_answer_no_more_are_blind_and_not_idle(engines):
    await engines.wait(120, lambda: busy(engines.page("a")))
    for name in "abc":
        engines.fail(name, PageProblem("does not answer (ConnectTimeout)"))

    await engines.wait(15)

    signal = engines.signal(3)
    assert signal.state is SignalState.BLIND
    assert "metrics were read from 0 of 3 pods" in signal.message
    assert "pod a does not answer (ConnectTimeout)" in signal.message
    assert engines.reading().sample.running is None

    for name in "abc":
        engines.mend(name)
    await engines.wait(15)
    assert engines.signal(3).state is SignalState.FRESH


async def test_a_pod_that_does_not_answer_counts_as_not_scraped(engines):
    await engines.wait(120, lambda: [busy(engines.page(name)) for name in "abc"])
    engines.fail("b", PageProblem("answers 503 to /metrics"))

    await engines.wait(15, lambda: [busy(engines.page(name)) for name in "abc"])

    reading = engines.reading()
    assert (reading.sample.targets, reading.sample.running) == (2, 40)
    assert (reading.pods_read, reading.problem) == ("2 of 3 pods", "pod b answers 503 to /metrics")
    assert engines.signal(3).state is SignalState.THIN


async def test_a_hostile_page_concerns_its_pod_alone(engines):
    await engines.wait(120, lambda: [busy(engines.page(name)) for name in "abcd"])
    engines.fail("b", b'vllm:num_requests_running{model_name="chat"} NaN')

    await engines.wait(15, lambda: [busy(engines.page(name)) for name in "abcd"])

    assert engines.reading().sample.targets == 2
    assert "'NaN'" in engines.reading().problem
    assert engines.reading(OTHER).problem == ""
    assert engines.signal(1, OTHER).state is SignalState.FRESH


async def test_a_defect_that_a_page_brings_out_concerns_its_pod_alone(engines, monkeypatch, caplog):
    slices = engines.scraper._parser.slices

    def defective(lines, model_name, pages):
        if model_name == "other":
            raise RuntimeError("a bug")
        return slices(lines, model_name, pages)

    monkeypatch.setattr(engines.scraper._parser, "slices", defective)
    await engines.wait(120)

    assert engines.reading().sample.targets == 3
    assert engines.reading(OTHER).sample.targets is None
    assert "please report this" in engines.reading(OTHER).problem
    assert len([record for record in caplog.records if record.exc_info]) == 1


async def test_a_pod_that_is_not_ready_yet_is_no_problem(engines):
    engines.add("chat", "e", ready=False)
    engines.fail("e", PageProblem("refuses connections"))

    await engines.wait(120, lambda: [busy(engines.page(name)) for name in "abc"])

    assert (engines.reading().pods_read, engines.reading().problem) == ("3 of 4 pods", "")
    assert engines.signal(3).state is SignalState.FRESH


async def test_an_engine_that_restarts_loses_no_requests(engines):
    await engines.wait(120, lambda: busy(engines.page("d")))
    engines.pages[pod("d").ip] = EnginePage()

    await engines.wait(60, lambda: busy(engines.page("d")))

    # 15 s of requests before the restart were not scraped; PromQL counts none of them either.
    assert engines.reading(OTHER).sample.requests == pytest.approx(30 * 4, rel=0.3)


async def test_a_pod_that_is_gone_leaves_no_series(engines):
    await engines.wait(120, lambda: [busy(engines.page(name)) for name in "abc"])
    engines.remove("c")

    await engines.wait(15, lambda: [busy(engines.page(name)) for name in "ab"])

    assert engines.reading().sample.targets == 2
    assert len(engines.scraper._store._targets) == len(engines.scraper._targets) == 3
    assert engines.asked.count(pod("c").ip) == 8


async def test_a_new_leader_starts_empty(engines):
    await engines.wait(120, lambda: busy(engines.page("a")))

    engines.scraper.clear()

    assert engines.reading().sample is None
    assert engines.signal(3).state is SignalState.BLIND
    assert engines.signal(3).message == "the pods have not been read yet"
    await engines.wait(30, lambda: busy(engines.page("a")))
    assert engines.reading().sample.requests is None


async def test_scrapes_are_kept_as_long_as_the_widest_window_needs_them(engines):
    await engines.wait(5000)

    kept = {len(target.rows) for target in engines.scraper._store._targets.values()}
    assert max(kept) <= 112
    assert min(kept) >= 101


async def test_other_objectives_need_a_new_reading(engines):
    await engines.wait(120, lambda: busy(engines.page("a")))

    changed = replace(CHAT, ttft=Objective(99, 250))

    assert engines.reading(changed).sample is None
    assert "changed" in engines.reading(changed).problem


async def test_an_objective_below_all_edges_is_the_problem_of_its_llm_deployment(engines):
    await engines.wait(75)
    odd = replace(CHAT, ttft=Objective(99, 0.5))

    await engines.scraper.evaluate(FleetPods((odd, OTHER), engines.fleet.pods))

    assert "no bucket edge" in engines.reading(odd).problem
    assert engines.reading(OTHER).problem == ""


async def test_an_llm_deployment_has_a_limit_of_pods():
    engines = Engines()
    engines.pods["uid-chat"] = [replace(pod("a"), uid=f"{number}") for number in range(MOST_PODS + 50)]

    engines.scraper.follow(engines.fleet)

    assert len(engines.scraper._targets) == MOST_PODS
    await engines.scraper.close()


class Count:
    """Calls, and the wait for a number of them."""

    def __init__(self, result=None):
        self.calls, self.result, self._changed = 0, result, asyncio.Condition()

    def __call__(self):
        self.calls += 1
        self._notifier = asyncio.ensure_future(self._notify())
        return self.result

    async def _notify(self):
        async with self._changed:
            self._changed.notify_all()

    async def more(self, calls):
        async with self._changed:
            least = self.calls + calls
            await asyncio.wait_for(self._changed.wait_for(lambda: self.calls >= least), 20)


async def running_scraper(engines, reply, leads, evaluated):
    settings = ScrapeSettings(interval_seconds=0.2, window_seconds=1)
    clock = asyncio.get_running_loop().time
    scraper = EngineScraper(settings, now=lambda: NOW, clock=clock, fetcher=Pages(reply))
    running = asyncio.create_task(scraper.run(lambda: engines.fleet, leads, evaluated))

    async def end():
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await scraper.close()

    return scraper, end


async def test_an_llm_deployment_has_a_limit_of_engines(engines, monkeypatch):
    monkeypatch.setattr("tangram.shell.measure.engine_scraper.MOST_PODS", 4)
    many = {"a": 3, "b": 2}
    for name, count in many.items():
        lines = [
            b'vllm:num_requests_running{engine="%d",model_name="chat"} 1\n' % number
            for number in range(count)
        ]
        engines.fail(name, b"".join(lines))
    engines.remove("c")

    await engines.wait(15)

    assert engines.reading().sample.running == 3
    assert engines.reading().problem == "pod b shows 2 engines, more than 4 of one LLMDeployment"


async def test_a_leader_scrapes_each_pod_once_per_interval_and_others_none():
    engines, leads, evaluated = Engines(chat=("a", "b"), other=("d",)), Count(False), Count()
    scraper, end = await running_scraper(engines, engines._reply, leads, evaluated)
    await leads.more(3)
    assert engines.asked == []

    leads.result = True
    await evaluated.more(5)
    asked = {one: engines.asked.count(one) for one in engines.asked}
    assert set(asked) == {pod(name).ip for name in "abd"}
    assert all(4 <= count <= 6 for count in asked.values())
    assert scraper.reading(CHAT).sample.targets == 2

    leads.result = False
    await leads.more(3)
    before = len(engines.asked)
    await leads.more(3)
    assert len(engines.asked) == before
    assert scraper._targets == {}
    await end()


async def test_a_pod_that_hangs_is_not_asked_twice_at_once():
    started, release, evaluated = [], asyncio.Event(), Count()

    async def hangs(ip):
        started.append(ip)
        await release.wait()
        raise PageProblem("answers 503 to /metrics")

    _, end = await running_scraper(Engines(chat=("a",)), hangs, lambda: True, evaluated)
    await evaluated.more(5)

    assert len(started) == 1
    release.set()
    await end()


@pytest.mark.parametrize(
    ("ip", "url"),
    [("10.1.2.3", "http://10.1.2.3:8000/metrics"), ("fd00::7", "http://[fd00::7]:8000/metrics")],
)
def test_a_pod_is_asked_at_its_address_and_the_port_of_engines(ip, url):
    assert metrics_url(EnginePod("u", "n", ip, True)) == url
