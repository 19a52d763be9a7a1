"""The simulator beside another one, AISimulate, which served the same scenarios when it was recorded."""

import pytest

from benchmarks.aisimulate.__main__ import recorded
from benchmarks.aisimulate.ours import simulated
from benchmarks.aisimulate.scenarios import scenarios

PREEMPTIONS, STARTS_AND_DRAINS, PREFIX_CACHE = (
    "one replica, 2 requests/s, a fifth of the KV blocks",
    "2 to 5 replicas, 8 minutes of conversations",
    "4 replicas, 10 minutes of long prompts, prefix caching",
)


@pytest.mark.parametrize("name", [PREEMPTIONS, STARTS_AND_DRAINS, PREFIX_CACHE])
def test_attainment_latency_and_cost_are_those_of_another_simulator(name):
    scenario = next(one for one in scenarios() if one.name == name)
    peer = recorded()[name]

    own = simulated(scenario)

    assert own.attained == pytest.approx(peer.attained, abs=0.005)
    assert own.replica_hours == pytest.approx(peer.replica_hours, rel=0.01)
    assert own.ttft_s[:2] == pytest.approx(peer.ttft_s[:2], rel=0.02)
    assert own.tpot_s[:2] == pytest.approx(peer.tpot_s[:2], rel=0.02)


def test_every_scenario_is_recorded():
    assert list(recorded()) == [one.name for one in scenarios()]
