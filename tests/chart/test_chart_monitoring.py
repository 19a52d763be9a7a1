"""Alerts fire when they should, lead to a page that exists, and ask for metrics that exist."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tangram.fleet import Shape
from tangram.fleet.labels import OWNER_LABEL
from tangram.shell.objects import burn_rate_rules
from tangram.shell.objects.engine_pod import engine_labels

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "tangram"
RULES = CHART / "files" / "rules" / "tangram.yaml"
DASHBOARDS = sorted((CHART / "files" / "dashboards").glob("*.json"))
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
SUFFIXES = ("_bucket", "_sum", "_count", "_total")


def metric_names(text):
    return set(
        re.findall(r"\b(?:tangram_(?!dev_)[a-z0-9_]+|(?:vllm|tangram|llmdeployment):[a-z0-9_:]+)", text)
    )


def declared(path):
    """Metric names that a module declares, in every spelling Prometheus sees."""
    names = set(re.findall(r'"((?:tangram_|tangram:|vllm:)[a-z0-9_]+)"', path.read_text()))
    return names | {name + suffix for name in names for suffix in SUFFIXES}


def known():
    operator = declared(ROOT / "operator" / "tangram" / "shell" / "measure" / "metrics.py")
    operator |= declared(ROOT / "operator" / "tangram" / "partition" / "agent" / "metrics.py")
    operator |= {burn_rate_rules.REQUESTS, burn_rate_rules.MISSES}
    operator |= {f"{burn_rate_rules.MISS_RATIO}{window}" for window in burn_rate_rules.WINDOWS}
    return operator | declared(ROOT / "engine" / "tangram_engine" / "serve" / "metrics.py")


def expressions(dashboard):
    content = json.loads(dashboard.read_text())
    found = [target["expr"] for panel in content["panels"] for target in panel.get("targets", ())]
    return found + [
        variable["definition"] for variable in content["templating"]["list"] if "definition" in variable
    ]


def test_the_rules_are_valid(promtool):
    done = promtool("check", "rules", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_fires_when_it_should_and_not_before(promtool):
    done = promtool("test", "rules", str(Path(__file__).parent / "rules" / "alerts_test.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not():
    cases = yaml.safe_load((Path(__file__).parent / "rules" / "alerts_test.yaml").read_text())["tests"]
    checks = [check for case in cases for check in case["alert_rule_test"]]
    for alert in ALERTS:
        outcomes = {bool(check["exp_alerts"]) for check in checks if check["alertname"] == alert["alert"]}
        assert outcomes == {True, False}, alert["alert"]


@pytest.mark.parametrize("alert", ALERTS, ids=[alert["alert"] for alert in ALERTS])
def test_every_alert_says_how_bad_what_and_where_to_read_on(alert):
    assert alert["labels"]["severity"] in {"critical", "warning"}
    assert alert["for"]
    assert alert["annotations"].keys() == {"summary", "description", "runbook"}
    page = ROOT / alert["annotations"]["runbook"]
    assert page.name == f"{alert['alert']}.md"
    text = page.read_text()
    for part in ("**Means.**", "**Look.**", "**Helps.**"):
        assert part in text
    assert page.name in (page.parent / "README.md").read_text()


def test_labels_of_pods_that_dashboards_show_are_carried_and_copied(helm):
    shown = set(re.findall(r"tangram_dev_[a-z]+", "".join(path.read_text() for path in DASHBOARDS)))
    monitor = helm.objects({"podMonitor": {"enabled": True}}).one("PodMonitor")
    copied = set(monitor["spec"]["podTargetLabels"])
    assert {label.replace("tangram_dev_", "tangram.dev/") for label in shown} <= copied
    assert copied <= {*engine_labels("chat", Shape("L4", "gpu")), OWNER_LABEL}


def test_no_runbook_is_left_of_an_alert_that_is_no_more():
    pages = {path.stem for path in (ROOT / "docs" / "runbooks").glob("Tangram*.md")}
    assert pages == {*(alert["alert"] for alert in ALERTS), burn_rate_rules.ALERT}


def test_the_missed_objective_gives_way_to_a_record_of_the_llm_deployments_own_rules():
    (missed,) = (alert for alert in ALERTS if alert["alert"] == "TangramSLOMissed")
    assert missed["expr"].endswith(
        f"unless on (namespace, llmdeployment, objective) {burn_rate_rules.MISSES}"
    )


def test_rules_ask_for_metrics_that_exist():
    asked = {name for alert in ALERTS for name in metric_names(alert["expr"])}
    assert asked - known() == set()


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=[path.stem for path in DASHBOARDS])
def test_the_dashboard_asks_for_metrics_that_exist(dashboard):
    asked = {name for expression in expressions(dashboard) for name in metric_names(expression)}
    assert len(asked) > 15
    assert asked - known() == set()


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=[path.stem for path in DASHBOARDS])
def test_every_query_of_the_dashboard_is_valid_promql(dashboard, promtool, tmp_path):
    content = json.loads(dashboard.read_text())
    queries = [target["expr"] for panel in content["panels"] for target in panel.get("targets", ())]
    rules = [
        {"record": f"query{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(queries)
    ]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = promtool("check", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=[path.stem for path in DASHBOARDS])
def test_panels_do_not_overlap_and_every_one_has_its_own_id(dashboard):
    panels = json.loads(dashboard.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
