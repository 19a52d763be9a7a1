"""The replicas that a load needs, beside what one fewer would lead to, and the limit that binds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.scaling import CapacityMemory, ScalingMemory
from tangram.scaling import feed_forward as law
from tangram.scaling.feed_forward import ExpectedMisses
from tangram.scaling.outlook.forecast import DISTRIBUTION, Forecast
from tangram.scaling.outlook.load_history import LoadHistory
from tangram.scaling.outlook.load_misses import MissedRequests
from tangram.scaling.outlook.load_outlook import LoadOutlook, NeedLimit, RunnerUp
from tangram.scaling.outlook.replica_capacity import ReplicaCapacity
from tests.scaling.test_feed_forward import CHAT, PARAMS, outlook, sample
from tests.support.examples import examples

MISSES_AT_ANY_LOAD = ReplicaCapacity(((99, 0.0), (95, 0.0), (90, 0.0), (80, 2.0), (50, 4.0)))
LOADS = st.lists(st.floats(0.01, 500), min_size=9, max_size=9).map(lambda rates: tuple(sorted(rates)))
CAPACITIES = st.lists(st.floats(0, 50), min_size=4, max_size=4).map(
    lambda rates: ReplicaCapacity(tuple(zip((99, 95, 90, 50), sorted(rates), strict=True)))
)
BUDGETS = st.sampled_from([0.5, 0.1, 0.05, 0.01])


def need(known=None, reading=None, *, queued=False):
    return law.needed(
        ScalingMemory(), PARAMS, CHAT, known or outlook(), reading or sample(5.0), queued=queued, now=0.0
    )


def missed(loads, capacity, backlog, replicas):
    """Return the expected share of misses by its definition."""
    weights = [share for _, share in DISTRIBUTION]
    misses = sum(
        w * load * capacity.missed_share((load + backlog) / replicas)
        for w, load in zip(weights, loads, strict=True)
    )
    return misses / sum(w * load for w, load in zip(weights, loads, strict=True))


@examples(100)
@given(LOADS, CAPACITIES, st.sampled_from([0.0, 0.0, 1.0, 40.0]), BUDGETS)
def test_the_limit_is_the_one_that_the_runner_up_breaks(loads, capacity, backlog, budget):
    misses = ExpectedMisses(Forecast(90.0, loads[4], loads), capacity, backlog)
    rate = capacity.rate_at(100 * (1 - budget))

    replicas = misses.replicas_within(budget, rate)
    limit = misses.limit(replicas, budget)

    share = missed(loads, capacity, backlog, replicas)
    fewer = missed(loads, capacity, backlog, replicas - 1) if replicas > 1 else None
    if limit is NeedLimit.FURTHER_REPLICA:
        assert share > budget
    else:
        assert share <= budget
        assert (limit is NeedLimit.ONE_REPLICA) == (fewer is None)
    if limit in (NeedLimit.ERROR_BUDGET, NeedLimit.QUEUE):
        assert fewer > budget
        without_queue = missed(loads, capacity, 0.0, replicas - 1)
        assert (limit is NeedLimit.QUEUE) == (backlog > 0 and without_queue <= budget)


def test_one_replica_fewer_would_exceed_the_error_budget():
    found = need()

    assert found.replicas == 3
    assert found.limit is NeedLimit.ERROR_BUDGET
    assert found.runner_up.replicas == 2
    assert found.missed_share <= found.error_budget < found.runner_up.missed_share
    assert "expected to miss with 3, " in found.cause
    assert found.cause.endswith("with 2, beyond the error budget of 10 %")


@pytest.mark.parametrize(
    ("requests", "missed_share", "planned"),
    [(0, 0.0, 0.1), (9e7, 0.0, 0.4), (9e7, 0.05, 0.25), (9e6, 0.2, 0.1)],
)
def test_what_few_misses_leave_of_the_error_budget_is_planned_with(requests, missed_share, planned):
    missed = MissedRequests().counted(requests, missed_share, 1e6)

    assert law.planned_budget(missed, 0.1) == pytest.approx(planned, rel=0.01)


def test_the_expected_load_is_planned_with_the_error_budget_of_the_objective():
    memory = ScalingMemory(capacity=CapacityMemory(missed=MissedRequests(9e6, 0.0, 1e6)))

    for rate in (1.0, 2.0, 5.0, 8.0, 13.0):
        found = law.needed(memory, PARAMS, CHAT, outlook(), sample(rate), queued=False, now=0.0)
        expected = ExpectedMisses(found.load.certain, outlook().capacity)
        assert expected.share(found.replicas) <= 0.1
        assert found.replicas == 1 or found.runner_up.missed_share > found.error_budget


def test_a_queue_is_named_where_it_is_why_one_fewer_does_not_do():
    found = need(reading=sample(5.0, waiting=300.0), queued=True)

    assert found.limit is NeedLimit.QUEUE
    assert found.cause.endswith("beyond the error budget of 10 % because of the queue")


def test_a_further_replica_that_prevents_too_little_is_named():
    found = need(LoadOutlook(outlook().history, MISSES_AT_ANY_LOAD, 60.0))

    assert found.limit is NeedLimit.FURTHER_REPLICA
    assert found.missed_share > found.error_budget
    assert f"; {found.replicas + 1} would prevent too few for the error budget of 10 %" in found.cause


def test_one_replica_has_no_runner_up():
    found = need(LoadOutlook(LoadHistory(0.0, (0.1,) * 240), outlook().capacity, 60.0), sample(0.1))

    assert (found.replicas, found.limit, found.runner_up) == (1, NeedLimit.ONE_REPLICA, None)
    assert found.cause.endswith("expected to miss with 1, within the error budget of 10 %")


@pytest.mark.parametrize("replica_rate", [0.05, 0.3, 2.0, 9.0])
def test_the_runner_up_costs_one_more_evaluation_at_most(monkeypatch, replica_rate):
    evaluated = []
    real = ExpectedMisses._per_second
    monkeypatch.setattr(ExpectedMisses, "_per_second", lambda self, n: evaluated.append(n) or real(self, n))
    known = outlook(replica_rate=replica_rate)
    found = need(known)
    with_runner_up = list(evaluated)

    evaluated.clear()
    capacity = known.capacity
    misses = ExpectedMisses(found.load, capacity)
    for budget in (found.error_budget, found.error_budget / 2):
        misses.least_part(budget, misses.replicas_within(budget, capacity.rate_at(90)))
    misses.share(found.replicas)
    more = ExpectedMisses(found.load.certain.times(1.05), capacity)
    for certain, budget in ((misses.of_certain_load, 0.1), (more, 0.05)):
        certain.least_part(budget, certain.replicas_within(budget, capacity.rate_at(90)))

    assert len(with_runner_up) <= len(evaluated) + 1
    if found.replicas > 1:
        assert found.runner_up == RunnerUp(found.replicas - 1, misses.share(found.replicas - 1))
