"""The queries on Prometheus' own engine: what they count, and what they must not count."""

import os
import subprocess

import pytest
import yaml

from e2e.cluster import packages
from e2e.cluster.base import ClusterError
from tangram.fleet import Objective
from tangram.scaling import Objectives, queries

OURS = 'namespace="ns",model_name="m/x"'
ASKED = queries.for_deployment("ns", "m/x", Objectives(Objective(90, 2000), Objective(90, 60)), 60)
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


def pod(name, labels=OURS, *, decimal=False, per_scrape=10):
    """An engine that observes `per_scrape` requests per 15 s, nine tenths of them at or below the edge."""
    made = []
    for metric, edge in HISTOGRAMS.items():
        le = f"{edge}.0" if decimal and "." not in edge else edge
        for bucket, count in ((le, 0.9 * per_scrape), ("160", per_scrape), ("+Inf", per_scrape)):
            made.append((f'{metric}_bucket{{{labels},pod="{name}",le="{bucket}"}}', f"0+{count:g}x20"))
        made.append((f'{metric}_count{{{labels},pod="{name}"}}', f"0+{per_scrape}x20"))
    made.append((f'{queries.RUNNING}{{{labels},pod="{name}"}}', "4x20"))
    made.append((f'{queries.WAITING}{{{labels},pod="{name}"}}', "2x20"))
    return [{"series": series, "values": values} for series, values in made]


STRANGERS = pod("a", 'namespace="other",model_name="m/x"') + pod("a", 'namespace="ns",model_name="other"')

SITUATIONS = {
    "two pods that spell a bucket differently": (
        [*pod("a"), *pod("b", decimal=True), *STRANGERS],
        {"targets": 2, "age_s": 0, "waiting": 4, "running": 8, "running_mean": 8, "requests": 80}
        | {"ttft_attainment": 0.9, "tpot_attainment": 0.9, "itl_attainment": 0.9},
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
