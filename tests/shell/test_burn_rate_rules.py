"""The rules of an LLMDeployment on Prometheus' own engine: what they measure, and when their alerts fire."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tangram.api.llm_deployment.spec import LLM_DEPLOYMENT_NAME_PATTERN, SERVED_NAME_PATTERN
from tangram.fleet import Intent, Objective
from tangram.fleet.objective import PERCENTILES
from tangram.scaling.queries import TPOT, TPOT_BUCKETS, TTFT, TTFT_BUCKETS
from tangram.shell.objects.burn_rate_rules import (
    ALERT,
    ALERTS,
    LEAST_MISSES,
    LEAST_REQUESTS,
    MISS_RATIO,
    MISSES,
    REQUESTS,
    WINDOWS,
    rule_group,
)
from tests.support import promtool
from tests.support.fleet import intent as llm
from tests.support.promtool import counter

ROOT = Path(__file__).resolve().parents[2]
FIRING = f'sum by (long) (ALERTS{{alertname="{ALERT}",alertstate="firing"}})'
HOURS = 60
ALL_MISS = 1.0


def chat(percentile: int = 99, **changes: Any) -> Intent:
    return llm("chat", namespace="ns", served_name="m/x", ttft=Objective(percentile, 1000), **changes)


def engine(
    *phases: tuple[int, float, float],
    namespace: str = "ns",
    pod: str = "chat-0a1b2c3d-5f-x",
    le: str = "1",
    more: str = "",
) -> dict[str, str]:
    """Series of one engine: for so many minutes, so many requests a minute, and the share that misses."""
    labels = f'namespace="{namespace}",model_name="m/x",pod="{pod}"{more}'
    good = [(minutes, rate if rate < 0 else rate * (1 - share)) for minutes, rate, share in phases]
    every = counter(*((minutes, rate) for minutes, rate, _ in phases))
    return {
        f'{TTFT}_bucket{{{labels},le="{le}"}}': counter(*good),
        f'{TTFT}_bucket{{{labels},le="+Inf"}}': every,
        f"{TTFT}_count{{{labels}}}": every,
    }


def firing(*long: str) -> list[dict[str, Any]]:
    return [{"labels": f'{{long="{window}"}}', "value": 1} for window in long]


def assert_firing(
    path: Path, intent: Intent, series: dict[str, str], expected: dict[int, Any], every: str = "30s"
) -> None:
    """Check which alerts fire, by their long window, at the minutes of `expected`.

    `every`: the interval of the group, or a longer one for much traffic over hours, which is quicker.
    """
    checks = [
        {"expr": FIRING, "eval_time": f"{minute}m", "exp_samples": firing(*long)}
        for minute, long in expected.items()
    ]
    group = rule_group(intent, "")
    done = promtool.evaluate(path, [group], series, every, promql_expr_test=checks)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_outage_pages_once_it_has_used_up_what_an_hour_may_miss(tmp_path: Path) -> None:
    # 14.4 % of an hour are 8.6 minutes; 2.5 more for the rate over 5 minutes, and 2 for the delay.
    series = engine((60, 100, 0), (30, 100, ALL_MISS))
    assert_firing(tmp_path, chat(99), series, {60: (), 70: (), 75: ("1h",)})


# The objective allows 1 %: 14.4, 6 and 1 times the rate at which the budget lasts.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.20, ("1h", "3d", "6h")),
        (0.072, ("3d", "6h")),  # half of 14.4
        (0.03, ("3d",)),  # half of 6
        (0.005, ()),  # half of 1
    ],
)
def test_an_alert_fires_above_its_burn_rate_and_not_at_half_of_it(
    share: float, expected: tuple[str, ...], tmp_path: Path
) -> None:
    assert_firing(tmp_path, chat(99), engine((4 * HOURS, 1000, share)), {4 * HOURS: expected}, every="2m")


def test_an_alert_ends_soon_after_the_misses_end(tmp_path: Path) -> None:
    series = engine((60, 100, 0), (30, 100, ALL_MISS), (60, 100, 0))
    assert_firing(tmp_path, chat(99), series, {89: ("1h", "6h"), 97: ("6h",), 150: ()})


@pytest.mark.parametrize("percentile", PERCENTILES)
def test_an_outage_pages_whatever_the_percentile(percentile: int, tmp_path: Path) -> None:
    series = engine((60, 100, 0), (70, 100, ALL_MISS))
    assert_firing(tmp_path, chat(percentile), series, {120: ("1h", "6h") if percentile > 90 else ("1h",)})


def test_a_slow_request_among_few_pages_nobody(tmp_path: Path) -> None:
    series = engine((60, 0.4, 0), (5, 0.4, ALL_MISS), (5, 0.4, 0))
    assert_firing(tmp_path, chat(99), series, dict.fromkeys(range(60, 70), ()))


def test_misses_of_few_requests_page_nobody(tmp_path: Path) -> None:
    # All of 45 requests in an hour: the windows of pages hold fewer than 50.
    assert_firing(tmp_path, chat(99), engine((60, 0.75, ALL_MISS)), {45: (), 60: ()})


@pytest.mark.slow
def test_two_slow_requests_are_no_ticket(tmp_path: Path) -> None:
    # 2 of 145 requests are more than the 1 % that the objective allows, and have been for three hours.
    series = engine((HOURS, 0.4, 0), (2, 1, ALL_MISS), (5 * HOURS, 0.4, 0))
    assert_firing(tmp_path, chat(99), series, {6 * HOURS: ()})


@pytest.mark.parametrize(
    "series",
    [
        {},
        engine((5 * HOURS, 0, 0)),
        engine((60, 100, ALL_MISS), (50, -1, 0)),  # scaled to zero
        engine((5 * HOURS, 100, ALL_MISS), pod="summary-0a1b2c3d-5f-x"),
        {
            name.replace('"ns"', '"other"'): values
            for name, values in engine((2 * HOURS, 100, ALL_MISS)).items()
        },
    ],
    ids=["no engine", "no request", "no engine any more", "another LLMDeployment", "another namespace"],
)
def test_without_requests_no_alert_fires(series: dict[str, str], tmp_path: Path) -> None:
    assert_firing(tmp_path, chat(99), series, {100: ()})


def measured(
    path: Path, intent: Intent, series: dict[str, str], expected: Mapping[str, float | None]
) -> None:
    """Check expressions at the end of an hour."""
    checks = [
        {
            "expr": f"sum({expr})",
            "eval_time": "60m",
            "exp_samples": [] if value is None else [{"labels": "{}", "value": value}],
        }
        for expr, value in expected.items()
    ]
    done = promtool.evaluate(path, [rule_group(intent, "r")], series, promql_expr_test=checks)
    assert done.returncode == 0, done.stdout + done.stderr


def test_both_spellings_of_an_edge_count_and_a_page_read_twice_counts_once(tmp_path: Path) -> None:
    series = (
        engine((60, 60, 0.5), le="1.0")
        | engine((60, 60, 0), pod="chat-0a1b2c3d-5f-y", le="1", more=',job="a"')
        | engine((60, 60, 0), pod="chat-0a1b2c3d-5f-y", le="1", more=',job="b"')
    )
    measured(
        tmp_path, chat(), series, {REQUESTS: 2, MISSES: 0.5, f"{MISS_RATIO}5m": 0.25, f"{MISS_RATIO}3d": 0.25}
    )


def test_a_long_window_is_weighted_by_requests(tmp_path: Path) -> None:
    series = engine((30, 300, 0), (30, 100, ALL_MISS))
    done: dict[str, float | None] = {
        f"round({MISS_RATIO}{window} * 20) / 20": 0.25 for window in ("1h", "2h")
    }
    measured(tmp_path, chat(), series, done | {f"{MISS_RATIO}5m": 1})


def test_another_edge_begins_other_series(tmp_path: Path) -> None:
    former = {
        f'{REQUESTS}{{namespace="ns",llmdeployment="chat",objective="ttft",edge_seconds="0.5"}}': "1x60",
        f'{MISSES}{{namespace="ns",llmdeployment="chat",objective="ttft",edge_seconds="0.5"}}': "1x60",
    }
    expected = {f'{MISS_RATIO}6h{{edge_seconds="1"}}': 0.0, f'{MISS_RATIO}6h{{edge_seconds="0.5"}}': None}
    measured(tmp_path, chat(), former | engine((60, 60, 0)), expected)


def test_tpot_is_measured_per_finished_request(tmp_path: Path) -> None:
    series = {
        name.replace(TTFT, TPOT).replace('le="1"', 'le="0.05"'): values
        for name, values in engine((60, 60, 0.25)).items()
    }
    intent = llm("chat", namespace="ns", served_name="m/x", tpot=Objective(95, 60))
    measured(tmp_path, intent, series, {f'{MISS_RATIO}1h{{objective="tpot",edge_seconds="0.05"}}': 0.25})


def test_annotations_say_what_is_missed_in_words(tmp_path: Path) -> None:
    intent = llm("chat", namespace="ns", served_name="m/x", ttft=Objective(90, 1200))
    alert = {
        "exp_labels": {
            "severity": "critical", "long": "1h", "short": "5m",
            "namespace": "ns", "llmdeployment": "chat", "objective": "ttft", "edge_seconds": "1",
        },
        "exp_annotations": {
            "summary": "ns/chat uses up the error budget of its TTFT objective at more than 7.5 times the"
            " rate that lasts for 30 days",
            "description": "80% of the requests of the last hour took longer than 1200 ms to the first"
            " token (measured at the histogram edge of 1000 ms). The objective allows 10 %. More than 75 %,"
            " over the last hour and the last 5 minutes, use up what it allows in 30 days within 4 days.",
            "runbook_url": "https://wiki.example.com/TangramErrorBudgetBurn.md",
        },
    }  # fmt: skip
    done = promtool.evaluate(
        tmp_path,
        [rule_group(intent, "https://wiki.example.com/")],
        engine((12, 100, 0.8)),
        alert_rule_test=[{"eval_time": "12m", "alertname": ALERT, "exp_alerts": [alert]}],
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_objective_has_every_record_and_alert() -> None:
    both = chat(tpot=Objective(95, 60))
    rules = rule_group(both, "r")["rules"]

    per_objective = [
        REQUESTS,
        MISSES,
        *(f"{MISS_RATIO}{window}" for window in WINDOWS),
        *[ALERT] * len(ALERTS),
    ]
    assert [rule.get("record") or rule["alert"] for rule in rules] == 2 * per_objective


def test_no_threshold_is_out_of_reach_and_google_s_stand_where_they_can() -> None:
    thresholds = {p: [round(alert.threshold(p), 9) for alert in ALERTS] for p in PERCENTILES}

    assert thresholds == {
        50: [0.75, 0.75, 0.5],
        90: [0.75, 0.6, 0.1],
        95: [0.72, 0.3, 0.05],
        99: [0.144, 0.06, 0.01],
    }


def test_the_page_about_the_alert_is_there_and_has_its_numbers() -> None:
    text = (ROOT / "docs" / "runbooks" / f"{ALERT}.md").read_text()

    for part in ("**Means.**", "**Look.**", "**Helps.**"):
        assert part in text
    assert f"{LEAST_REQUESTS} requests" in text
    assert f"{LEAST_MISSES} of them" in text


HOSTILE = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), min_size=1, max_size=30
)
NASTY = st.sampled_from(
    ['"} or vector(1) #', "{{ $value }}", "{{", '{{ "x" | query }}', "\\", '\\"', "a\nb", "x|.*", "`", "'"]
)


def objectives(buckets: tuple[float, ...]) -> st.SearchStrategy[Objective | None]:
    edges = st.sampled_from([round(edge * 1000) for edge in buckets])
    return st.none() | st.builds(Objective, st.sampled_from(PERCENTILES), edges | st.integers(1, 600_000))


@st.composite
def deployments(draw: st.DrawFn, names: st.SearchStrategy[str], served: st.SearchStrategy[str]) -> Intent:
    ttft, tpot = draw(objectives(TTFT_BUCKETS)), draw(objectives(TPOT_BUCKETS))
    if ttft is None and tpot is None:
        ttft = Objective(90, 500)
    return llm(draw(names), namespace=draw(names), served_name=draw(served), ttft=ttft, tpot=tpot)


VALID = deployments(
    st.from_regex(LLM_DEPLOYMENT_NAME_PATTERN, fullmatch=True),
    st.from_regex(SERVED_NAME_PATTERN, fullmatch=True),
)


# Each example starts promtool: few of them, each with many LLMDeployments, and none to shrink the list.
@settings(
    max_examples=4,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(intents=st.lists(VALID | deployments(HOSTILE | NASTY, HOSTILE | NASTY), min_size=15, max_size=25))
def test_prometheus_accepts_the_rules_of_any_llm_deployment(
    intents: list[Intent], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("rules") / "rules.json"
    promtool.write_rules(path, *(rule_group(intent, "r") for intent in intents))

    done = promtool.run("check", "rules", str(path))

    assert done.returncode == 0, done.stdout + done.stderr


@given(intent=deployments(HOSTILE | NASTY, HOSTILE | NASTY))
def test_texts_of_users_stay_out_of_templates(intent: Intent) -> None:
    plain = llm("name", namespace="namespace", served_name="x", ttft=intent.ttft, tpot=intent.tpot)

    templates, expected = (
        [(rule["labels"], rule["annotations"]) for rule in rule_group(each, "r")["rules"] if "alert" in rule]
        for each in (intent, plain)
    )

    assert json.dumps(templates) == json.dumps(expected)


@pytest.mark.parametrize(
    ("name", "served_name"),
    [
        ("chat", 'm/x"} or vector(1) #'),
        ("chat", "m/x|.*"),
        ("chat", "\\"),
        (".+", "m/x"),
        ("chat-.+|x", "m/x"),
    ],
)
def test_a_hostile_name_counts_no_series_of_another(name: str, served_name: str, tmp_path: Path) -> None:
    intent = llm(name, namespace="ns", served_name=served_name, ttft=Objective(99, 1000))
    assert_firing(tmp_path, intent, engine((20, 100, ALL_MISS)), {15: ()})
