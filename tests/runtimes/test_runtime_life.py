"""Each runtime from start to end, as its rendered pod runs it: probes, streams, metrics, SIGTERM.

The processes are stand-ins that read the command line and end as the engines do.
"""

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest

from e2e.cluster.apiserver import free_port
from tangram.fleet import ApplyDeployment, Objective, Shape
from tangram.shell.measure.engine_scraper import EngineScraper, FleetPods, metrics_url
from tangram.shell.objects import manifests
from tangram.shell.settings import ScrapeSettings
from tangram.shell.snapshot.workloads import EnginePod
from tests.runtimes.test_runtime_pods import INTENT, launch
from tests.shell.test_manifests import SETTINGS, container
from tests.support.runtimes import OTHERS, shipped

SHAPE = Shape("H100-80GB-SXM", "1g.10gb")
TOKEN_S = 0.02
CHAT = replace(INTENT, ttft=Objective(90, 100), tpot=Objective(90, 60), max_request_s=20)


def rendered(name):
    at = replace(SHAPE, runtime=name)
    action = ApplyDeployment("uid-1", at, 1, (), 4096, launch=launch(name))
    return container(manifests.deployment(CHAT, action, SETTINGS))


@asynccontextmanager
async def running(name, port, words=None, load_s=0.2):
    """Run the stand-in of a runtime with the words and variables of its pod."""
    engine = rendered(name)
    uid = "0d6cbb7e-uid-of-the-pod"
    given = {entry["name"]: entry.get("value", uid) for entry in engine["env"]}
    args = engine["args"] if words is None else words
    environment = {
        **{key: value for key, value in os.environ.items() if key in ("PATH", "PYTHONPYCACHEPREFIX")},
        **given,
        "STAND_IN_LOAD_S": str(load_s),
        "STAND_IN_TOKEN_S": str(TOKEN_S),
        "STAND_IN_HOST": "127.0.0.1",
        "STAND_IN_PORT": str(port),
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "e2e.runtimes.stand_in", name, *args),
        env=environment,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def status_of(session, port, probe):
    try:
        async with session.get(f"http://127.0.0.1:{port}{probe['httpGet']['path']}") as response:
            return response.status
    except aiohttp.ClientError:
        return None


async def ready(session, port, probe):
    for _ in range(500):
        if await status_of(session, port, probe) == 200:
            return
        await asyncio.sleep(0.02)
    raise TimeoutError


async def streamed(session, port, tokens, *, stream=True):
    """Return whether a stream came whole."""
    body = {"max_tokens": tokens, "stream": stream}
    async with session.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as response:
        if response.status != 200:
            return False
        try:
            answer = await response.read()
            return answer.endswith(b"data: [DONE]\n\n") and answer.count(b"token ") == tokens
        except aiohttp.ClientError:
            return False


@pytest.mark.parametrize("name", OTHERS)
def test_a_replica_starts_serves_is_measured_and_ends_without_cutting_a_stream(name):
    asyncio.run(life(name))


async def life(name):
    port, engine = free_port(), rendered(name)
    async with running(name, port) as process, aiohttp.ClientSession() as session:
        assert await status_of(session, port, engine["startupProbe"]) != 200
        await ready(session, port, engine["readinessProbe"])
        assert await status_of(session, port, engine["livenessProbe"]) == 200

        measuring = Measuring(name, port)
        long_stream = asyncio.create_task(streamed(session, port, 40))
        await asyncio.sleep(2 * TOKEN_S)
        await measuring.scrape()
        sample = (await measuring.reading()).sample
        assert (sample.targets, sample.running, sample.waiting) == (1, 1, 0)

        process.send_signal(signal.SIGTERM)
        assert await long_stream
        assert await process.wait() == 0
    await measuring.scraper.close()


@pytest.mark.parametrize("name", OTHERS)
def test_the_law_reads_the_same_of_every_dialect(name):
    """Streamed and other requests, which SGLang parts, count alike; objectives are between two edges."""

    async def measured():
        port = free_port()
        async with running(name, port, load_s=0.0), aiohttp.ClientSession() as session:
            await ready(session, port, rendered(name)["readinessProbe"])
            # Series begin with the first request: of counters that begin, no increase is known.
            await asyncio.gather(*(streamed(session, port, 3, stream=stream) for stream in (True, False)))
            measuring = Measuring(name, port)
            await measuring.scrape()
            await asyncio.gather(*(streamed(session, port, 5, stream=bool(i % 2)) for i in range(6)))
            await measuring.scrape()
            read = await measuring.reading()
        await measuring.scraper.close()
        return read, measuring.scraper.served_versions()

    read, versions = asyncio.run(measured())

    sample = read.sample
    # Six, extrapolated as Prometheus does: no further back than to where the counter was zero.
    assert sample.requests == pytest.approx(8)
    assert sample.ttft_attainment == 1.0
    assert sample.tpot_attainment == 1.0
    assert sample.answer_tokens_mean == pytest.approx((2 * 3 + 6 * 5) / 8)
    assert sample.prompt_tokens_mean == pytest.approx(8)
    assert read.pods_read == "1 of 1 pods"
    assert versions == ({} if name == "sglang" else {shipped(name).image: "0.33.0"})


@pytest.mark.parametrize(("timeout", "survives"), [("20", True), ("0", False)])
def test_without_its_shutdown_timeout_vllm_would_cut_the_stream(timeout, survives):
    """The stand-in can fail: the flag that the runtime requires is what saves the stream."""

    async def ended():
        port, words = free_port(), list(rendered("vllm")["args"])
        words[words.index("--shutdown-timeout") + 1] = timeout
        async with running("vllm", port, words, load_s=0.0) as process, aiohttp.ClientSession() as session:
            await ready(session, port, rendered("vllm")["readinessProbe"])
            stream = asyncio.create_task(streamed(session, port, 20))
            await asyncio.sleep(3 * TOKEN_S)
            process.send_signal(signal.SIGTERM)
            return await stream

    assert asyncio.run(ended()) is survives


def test_a_flag_that_the_engine_does_not_know_ends_it_at_once():
    async def ended():
        async with running("sglang", free_port(), ["--collect-tokens-histogram"]) as process:
            _, stderr = await process.communicate()
            return process.returncode, stderr.decode()

    status, stderr = asyncio.run(ended())

    assert status == 2
    assert "unrecognized arguments: --collect-tokens-histogram" in stderr


POD = {name: EnginePod(f"uid-{name}", f"chat-{name}", "127.0.0.1", True, shipped(name)) for name in OTHERS}


class Clock:
    """Seconds that pass when a test lets them."""

    def __init__(self):
        self.now = 5000.0

    def __call__(self):
        return self.now


class Measuring:
    """A scraper that follows the pod of a runtime at the port of its stand-in."""

    def __init__(self, name, port):
        self.clock, self.pod = Clock(), POD[name]
        self.fleet = FleetPods((CHAT,), {CHAT.uid: (self.pod,)})
        self.scraper = EngineScraper(
            ScrapeSettings(),
            now=self.clock,
            clock=self.clock,
            url_of=lambda pod: metrics_url(pod).replace(":8000/", f":{port}/"),
        )
        self.scraper.follow(self.fleet)
        self.clock.now += 4000  # scrapes have lasted for the widest window

    async def scrape(self):
        self.clock.now += 15
        await self.scraper.scrape(self.pod)

    async def reading(self):
        await self.scraper.evaluate(self.fleet)
        read = self.scraper.reading(CHAT)
        assert read.problem == ""
        return read
