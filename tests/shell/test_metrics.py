"""The gauges per LLMDeployment that the operator exports."""

import asyncio
import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tangram.plan import plan
from tangram.shell.measure.fault_log import FaultLog
from tangram.shell.measure.metrics import OperatorMetrics
from tangram.shell.measure.scaler import Scaler, ScalingResult
from tangram.shell.process.observation import Observer
from tangram.shell.process.round_report import RoundReporter
from tests.shell.test_scaling_log import DECISION, NEED
from tests.support.views import NOW, PARAMS, SETTINGS, node, one_round, running

BURSTY = ScalingResult(None, replace(DECISION, need=replace(NEED, spare=2)))
STEADY = ScalingResult(None, replace(DECISION, need=NEED))
REACTIVE = ScalingResult(None, replace(DECISION, need=None))


class NothingWritten:
    """Writes no status."""

    async def write(self, _statuses: object) -> list[Any]:
        return []


def reported(*rounds: dict[str, ScalingResult]) -> OperatorMetrics:
    """Return the metrics after rounds with these decisions, by name of the LLMDeployment."""
    metrics = OperatorMetrics()
    observer = Observer(SETTINGS, Scaler(PARAMS, None), FaultLog(metrics))
    no_plan: Any = SimpleNamespace(advice=lambda *_: None, pool_use=dict)
    nothing: Any = NothingWritten()
    reporter = RoundReporter(observer, no_plan, nothing, None, metrics)  # type: ignore[arg-type]
    for decisions in rounds:
        observer.faults.begin()
        seen = observer.observe(running("a", "b", "c").view(), NOW)
        uids = {intent.name: intent.uid for intent in seen.intents}
        seen = replace(seen, scaling={uids[name]: result for name, result in decisions.items()})
        asyncio.run(reporter.report(seen, plan(seen.snapshot, seen.parsed, NOW)))
        assert not observer.faults.faults
    return metrics


def exported(metrics: OperatorMetrics, metric: str, name: str, **more: str) -> float | None:
    labels = {"namespace": "ns", "llmdeployment": name, **more}
    return metrics.registry.get_sample_value(metric, labels)


def spare(metrics: OperatorMetrics, name: str) -> float | None:
    return exported(metrics, "tangram_spare_replicas", name)


def test_spare_replicas_are_exported_where_a_forecast_counts_them():
    metrics = reported({"a": BURSTY, "b": STEADY, "c": REACTIVE})

    assert [spare(metrics, name) for name in "abc"] == [2, 0, None]


def test_spare_replicas_of_an_earlier_round_are_not_exported():
    metrics = reported({"a": BURSTY, "b": BURSTY}, {"a": STEADY, "b": REACTIVE})

    assert [spare(metrics, name) for name in "ab"] == [0, None]


def test_an_llm_deployment_whose_spec_became_invalid_keeps_its_replicas_and_says_so_in_its_metrics():
    fleet = running("a", "b")
    edited = copy.deepcopy(fleet.llm_deployments[0])
    edited["spec"]["placement"] = {"allowedSKUs": ["H100"]}
    metrics = one_round(replace(fleet, llm_deployments=(edited, fleet.llm_deployments[1])).view()).metrics

    for name in "ab":
        assert exported(metrics, "tangram_desired_replicas", name) == 1
        assert exported(metrics, "tangram_ready_replicas", name) == 1
    assert exported(metrics, "tangram_placed_replicas", "a") == 1  # what runs is placed

    def accepted(name: str, status: str, reason: str) -> float | None:
        labels = {"type": "Accepted", "status": status, "reason": reason}
        return exported(metrics, "tangram_condition", name, **labels)

    assert accepted("a", "False", "InvalidSpec") == 1
    assert accepted("b", "True", "Valid") == 1


def test_the_forecast_and_what_a_replica_carries_are_exported():
    metrics = reported({"a": STEADY, "b": REACTIVE})

    bounds = [
        exported(metrics, "tangram_forecast_requests_per_second", "a", bound=b) for b in ("expected", "upper")
    ]
    assert bounds == [NEED.load.expected, NEED.load.upper]
    assert exported(metrics, "tangram_replica_requests_per_second", "a") == NEED.replica_rate
    assert exported(metrics, "tangram_forecast_requests_per_second", "b", bound="upper") is None


@pytest.mark.parametrize(
    ("unschedulable", "spec"),
    [(True, {}), (False, {"paused": True}), (False, {"priorityClassName": "gone"})],
    ids=["cordoned", "paused", "refused"],
)
def test_a_replica_that_serves_counts_as_placed_and_is_paid(unschedulable: bool, spec: Any):
    fleet = running("a", spec=spec)
    node_of = node("n1", 7)
    node_of["spec"]["unschedulable"] = unschedulable

    done = one_round(replace(fleet, nodes=(node_of,)).view())

    status = done.statuses["uid-a"]
    assert exported(done.metrics, "tangram_placed_replicas", "a") == 1
    assert exported(done.metrics, "tangram_desired_replicas", "a") == 1
    assert exported(done.metrics, "tangram_cost_dollars_per_hour", "a") == pytest.approx(0.44, abs=0.005)
    assert (status["placement"]["placedReplicas"], status["cost"]["perHour"]) == (1, "0.44")
