"""The line that the operator logs of a changed number of replicas."""

import json
from dataclasses import replace

import pytest

from tangram.scaling import ScalingDecision, ScalingMemory
from tangram.scaling.outlook.forecast import Forecast
from tangram.scaling.outlook.load_outlook import NeedLimit, ReplicaNeed, RunnerUp
from tangram.shell.measure import scaler
from tests.support.fleet import intent

LOAD = Forecast(90.0, 20.0, (20.0,) * 9)
NEED = ReplicaNeed(9, 10, LOAD, 2.4, 0.00841, 0.0, 0.01, NeedLimit.ERROR_BUDGET, RunnerUp(8, 0.023))
ONE = replace(NEED, replicas=1, limit=NeedLimit.ONE_REPLICA, runner_up=None)
DECISION = ScalingDecision(0.0, 9, 8, "LoadForecast", NEED.cause, ScalingMemory(), need=NEED)


def logged(decision):
    return json.loads(json.dumps(scaler._log_record(intent(), None, decision)))


def test_a_decision_by_a_forecast_is_logged_with_the_runner_up_and_the_limit():
    record = logged(DECISION)

    assert (record["neededReplicas"], record["runnerUpReplicas"]) == (9, 8)
    assert (record["expectedMissedShare"], record["runnerUpExpectedMissedShare"]) == (0.00841, 0.023)
    assert (record["limit"], record["errorBudget"]) == ("ErrorBudget", 0.01)


@pytest.mark.parametrize("spare", [0, 2])
def test_the_spare_replicas_of_a_forecast_are_logged(spare):
    assert logged(replace(DECISION, need=replace(NEED, spare=spare)))["spareReplicas"] == spare


def test_without_a_forecast_no_spare_is_logged():
    assert "spareReplicas" not in logged(replace(DECISION, need=None))


@pytest.mark.parametrize("need", [None, ONE], ids=["without a forecast", "one replica"])
def test_without_a_runner_up_none_is_logged(need):
    assert not [name for name in logged(replace(DECISION, need=need)) if name.startswith("runnerUp")]
