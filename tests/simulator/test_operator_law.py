"""The operator's own law in a simulated fleet: the same readings and memory as in the operator."""

from dataclasses import replace

import pytest

from tangram.scaling.outlook.replica_capacity import ReplicaCapacity
from tangram.simulator.cluster.faults import InjectedFaults, PrometheusOutage
from tangram.simulator.cluster.start_times import Delay, StartTimes
from tangram.simulator.control.operator_law import OperatorLaw
from tangram.simulator.run import SimulationSettings, run
from tests.support.simulated_fleets import h100_nodes, poisson_trace, served, served_intent

pytestmark = pytest.mark.slow

FLEET = SimulationSettings(h100_nodes(16), seed=5)
CAPACITY = ReplicaCapacity(((99, 14.0), (95, 17.0), (90, 18.0), (50, 21.0)))
STARTS = StartTimes(1.0, Delay(0.0), Delay(40.0, 0.2), Delay(18.0, 0.2), 1.0)


def law(**changes):
    return OperatorLaw(served_intent(**changes), lambda _: lambda _prompt, _answer: CAPACITY, start_s=75.0)


def test_constant_load_comes_to_a_constant_number_of_replicas():
    result = run((served(poisson_trace(82_800, 23.0), law(), start_times=STARTS),), FLEET).deployments[0]

    assert result.counts[-1].desired in (2, 3)
    assert result.counts[-1].at <= 2700, result.counts
    assert result.attainment.share > 0.97
    assert result.reversals_per_day <= 24.1  # one in the hour: behind the queue of the start


def test_after_a_leap_it_attains_as_much_as_a_reactive_law_that_buys_twice_the_replicas():
    def once(feed_forward):
        controller = law() if feed_forward else OperatorLaw(served_intent(), lambda _: None)
        return run((served(trace, controller, start_times=STARTS),), FLEET).deployments[0]

    trace = poisson_trace(30_000, 10.0)
    steps = tuple(
        replace(r, arrival_s=r.arrival_s if r.arrival_s < 900 else 900 + (r.arrival_s - 900) / 4)
        for r in trace.requests
    )
    trace = replace(trace, requests=steps)

    reactive, forecasting = once(feed_forward=False), once(feed_forward=True)

    assert forecasting.attainment.share >= reactive.attainment.share - 0.01
    assert forecasting.use.usd <= 0.75 * reactive.use.usd


def test_an_outage_of_prometheus_changes_nothing():
    faults = InjectedFaults(outages=(PrometheusOutage(600.0, 1500.0),))
    trace = poisson_trace(30_000, 15.0)

    result = run((served(trace, law(), start_times=STARTS),), replace(FLEET, faults=faults)).deployments[0]

    assert result.blind_actions == 0
    assert len({count.desired for count in result.counts if 660 <= count.at <= 1500}) <= 1


def test_bounds_hold_at_every_round():
    trace = poisson_trace(20_000, 60.0)

    result = run(
        (
            served(
                trace,
                law(max_replicas=3, min_replicas=2),
                intent_changes={"max_replicas": 3, "min_replicas": 2},
            ),
        ),
        FLEET,
    )

    assert {count.desired for count in result.deployments[0].counts} <= {2, 3}
