"""The queries on Prometheus' own engine: what they count, and what they must not count."""

import asyncio
import os
import subprocess
import time

import pytest
import yaml
from aiohttp import web

from e2e.cluster import packages
from e2e.cluster.apiserver import free_port
from e2e.cluster.base import ClusterError
from tangram.fleet import Objective, Objectives
from tangram.scaling import queries
from tangram.shell.measure.metrics_reader import MetricsReader
from tangram.shell.settings import PrometheusSettings
from tests.support.fleet import intent as llm

OURS = 'namespace="ns",model_name="m/x"'
ASKED = queries.for_deployment(
    "ns", "m/x", ("a", "b"), Objectives(Objective(90, 2000), Objective(90, 60)), 60
)
HISTOGRAMS = {queries.TTFT: "1", queries.TPOT: "0.05", queries.ITL: "0.05"}  # and the bucket that counts


@pytest.fixture(scope="module")
def promtool():
    try:
        program = packages.need("promtool")
    except ClusterError as missing:
        pytest.fail(f"these tests need promtool: {missing}", pytrace=False)
    env = {**os.environ, **packages.environment()}

    def run(path):
        command = [str(program), "test", "rules", str(path)]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)

    return run


def pod(name, labels=OURS, *, decimal=False, per_scrape=10, names="current"):
    """An engine that observes `per_scrape` requests per 15 s, nine tenths of them at or below the edge.

    `names`: "previous" is a version before the metrics were renamed and before TPOT, "both" one in between.
    """
    made = []
    for metric, edge in HISTOGRAMS.items():
        le = f"{edge}.0" if decimal and "." not in edge else edge
        for bucket, count in ((le, 0.9 * per_scrape), ("160", per_scrape), ("+Inf", per_scrape)):
            made.append((f'{metric}_bucket{{{labels},pod="{name}",le="{bucket}"}}', f"0+{count:g}x20"))
        made.append((f'{metric}_count{{{labels},pod="{name}"}}', f"0+{per_scrape}x20"))
    made.append((f'{queries.RUNNING}{{{labels},pod="{name}"}}', "4x20"))
    made.append((f'{queries.WAITING}{{{labels},pod="{name}"}}', "2x20"))
    made.append((f'{queries.KV_USAGE}{{{labels},pod="{name}"}}', "0.25x20"))
    if names == "previous":
        made = [(series, values) for series, values in made if not series.startswith(queries.TPOT)]
    for current, previous in queries.PREVIOUS_NAMES.items():
        renamed = [(series.replace(current, previous), values) for series, values in made]
        made = {"current": made, "previous": renamed, "both": [*dict(made + renamed).items()]}[names]
    return [{"series": series, "values": values} for series, values in made]


STRANGERS = pod("a", 'namespace="other",model_name="m/x"') + pod("a", 'namespace="ns",model_name="other"')

SUMS = ("waiting", "running", "running_mean", "requests", "kv_usage")
ONE_POD = {"targets": 1, "age_s": 0, "waiting": 2, "running": 4, "running_mean": 4, "requests": 40} | {
    "kv_usage": 0.25, "ttft_attainment": 0.9, "tpot_attainment": 0.9, "itl_attainment": 0.9,
}  # fmt: skip

SITUATIONS = {
    "two pods that spell a bucket differently": (
        [*pod("a"), *pod("b", decimal=True), *STRANGERS],
        {"targets": 2, "age_s": 0, "waiting": 4, "running": 8, "running_mean": 8, "requests": 80}
        | {"ttft_attainment": 0.9, "tpot_attainment": 0.9, "itl_attainment": 0.9},
    ),
    "two jobs that scrape one page": (
        [*pod("a", f'{OURS},job="annotations"'), *pod("a", f'{OURS},job="monitor",endpoint="http"')],
        ONE_POD,
    ),
    "two Prometheus servers of a federation": (
        [*pod("a", f'{OURS},prometheus_replica="0"'), *pod("a", f'{OURS},prometheus_replica="1"')],
        ONE_POD,
    ),
    "two engines on the page of one pod": (
        [*pod("a", f'{OURS},engine="0"'), *pod("a", f'{OURS},engine="1"')],
        {name: 2 * value if name in SUMS else value for name, value in ONE_POD.items()},
    ),
    "a page elsewhere that claims our namespace and model": ([*pod("a"), *pod("forged")], ONE_POD),
    "an engine with the names of previous versions": (
        pod("a", names="previous"),
        ONE_POD | {"tpot_attainment": None},
    ),
    "an engine that exports both names": (pod("a", names="both"), ONE_POD),
    "an engine that exports both names, scraped by two jobs": (
        pod("a", f'{OURS},job="annotations"', names="both") + pod("a", f'{OURS},job="monitor"', names="both"),
        ONE_POD,
    ),
    "two versions of the engine side by side": (
        [*pod("a", names="previous"), *pod("b", per_scrape=30)],
        {"targets": 2, "kv_usage": 0.5, "requests": 160, "itl_attainment": 0.9, "tpot_attainment": 0.9},
    ),
    "a pod without a request": (
        pod("a", per_scrape=0),
        {"targets": 1, "requests": 0}
        | dict.fromkeys(("ttft_attainment", "tpot_attainment", "itl_attainment")),
    ),
    "only strangers": (STRANGERS, dict.fromkeys(ASKED)),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_prometheus_answers_what_the_law_means(name, promtool, tmp_path):
    series, expected = SITUATIONS[name]
    checks = [
        {
            "expr": ASKED[query],
            "eval_time": "3m",
            "exp_samples": [] if value is None else [{"labels": "{}", "value": value}],
        }
        for query, value in expected.items()
    ]
    test = {"interval": "15s", "input_series": series, "promql_expr_test": checks}
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}))

    done = promtool(path)

    assert done.returncode == 0, done.stdout + done.stderr


PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model_name="m/x",engine="0"}} 4
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{model_name="m/x",engine="0"}} 2
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{model_name="m/x",engine="0",le="1.0"}} {count}
vllm:time_to_first_token_seconds_bucket{{model_name="m/x",engine="0",le="+Inf"}} {count}
vllm:time_to_first_token_seconds_count{{model_name="m/x",engine="0"}} {count}
vllm:time_to_first_token_seconds_sum{{model_name="m/x",engine="0"}} {count}
"""


@pytest.fixture
async def scraped_twice(tmp_path):
    """A Prometheus that scrapes one page by two jobs; its URL, once both have been there three times."""
    try:
        program = packages.need("prometheus")
    except ClusterError as missing:
        pytest.fail(f"this test needs prometheus: {missing}", pytrace=False)
    scrapes, enough = [], asyncio.Event()

    async def page(_request):
        scrapes.append(None)
        if len(scrapes) >= 8:
            enough.set()
        return web.Response(text=PAGE.format(count=10 * len(scrapes)))

    app = web.Application()
    app.router.add_get("/metrics", page)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    target = {"targets": [f"127.0.0.1:{runner.addresses[0][1]}"], "labels": {"namespace": "ns", "pod": "a"}}
    jobs = [{"job_name": name, "static_configs": [target]} for name in ("annotations", "monitor")]
    config = tmp_path / "prometheus.yml"
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
    address = f"127.0.0.1:{free_port()}"
    process = await asyncio.create_subprocess_exec(
        *(str(program), f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"),
        f"--web.listen-address={address}",
        env={**os.environ, **packages.environment()},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(60):
            await enough.wait()
        yield f"http://{address}"
    finally:
        process.terminate()
        await process.wait()
        await runner.cleanup()


async def test_a_page_that_two_jobs_scrape_is_counted_once(scraped_twice):
    settings = PrometheusSettings(
        url=scraped_twice, window_seconds=8, scrape_interval_seconds=1, timeout_seconds=10
    )
    intent = llm("m", namespace="ns", served_name="m/x", ttft=Objective(90, 1000))
    reader = MetricsReader(settings, now=time.time)

    await reader.read((intent,), {intent.uid: ("a",)})

    sample = reader.reading(intent).sample
    assert sample is not None, reader.reading(intent).problem
    assert (sample.targets, sample.running, sample.waiting) == (1, 4, 2)
    assert sample.ttft_attainment == 1
    await reader.close()
