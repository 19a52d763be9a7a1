"""Published laws in whole runs: through a burst, on what is scraped of simulated engines."""

import pytest

from tangram.catalog.prices import Prices
from tangram.simulator.cluster.engine_setups import EngineSetups
from tangram.simulator.cluster.faults import InjectedFaults, PrometheusOutage
from tangram.simulator.controllers import (
    DynamoLoad,
    DynamoThroughput,
    HPAOnQueue,
    HPAOnUtilisation,
    KEDAOnPrometheus,
    KnativePodAutoscaler,
    LatencySaturation,
    QueueModel,
    StaticReplicas,
    WVASaturation,
    WVATokens,
    capacity_facts,
)
from tangram.simulator.run import SimulationSettings, run
from tangram.simulator.traffic.generated import RatePoint, TrafficDescription, generated
from tests.support.fleet import FACTS_8B, shape
from tests.support.simulated_fleets import h100_nodes, served, served_intent

SLOTS = 6
BURST = TrafficDescription(
    tuple(RatePoint(*point) for point in ((0, 1), (300, 1), (330, 8), (900, 8), (930, 1), (1800, 1))),
    700,
    150,
)
TRACE = generated(BURST, seed=1)
# Not the laws on the KV cache: with six slots it is never full.
LAWS = {
    "hpa-queue": lambda _: HPAOnQueue(),
    "hpa-running": lambda _: HPAOnUtilisation(max_running=SLOTS),
    "keda": lambda _: KEDAOnPrometheus(),
    "knative": KnativePodAutoscaler,
    "wva-v1": lambda _: WVASaturation(),
    "wva-v2": WVATokens,
    "queue-model": QueueModel,
    "dynamo-throughput": DynamoThroughput,
    "dynamo-load": DynamoLoad,
    "llm-d-slo": LatencySaturation,
}


@pytest.fixture(scope="module")
def facts():
    intent = served_intent(max_running_requests=SLOTS)
    setup = EngineSetups([(intent, FACTS_8B)], Prices({})).setup(intent.uid, shape())
    return capacity_facts(
        setup.steps, setup.limits, 700.0, 150.0, intent.objectives, price_per_hour=3.0, start_s=120.0
    )


def result_of(law, **faults):
    settings = SimulationSettings(h100_nodes(4, 4, 4), seed=5, faults=InjectedFaults(**faults))
    changes = {"max_running_requests": SLOTS, "max_replicas": 9}
    return run((served(TRACE, law, intent_changes=changes),), settings).deployments[0]


FEWEST = {"dynamo-throughput": 2}  # one for prefill, one for decode


@pytest.fixture(scope="module")
def one_replica():
    return result_of(StaticReplicas(1)).attainment.share


def test_a_profile_is_the_rate_that_meets_the_objectives(facts):
    assert 1 < facts.requests_per_second < 8
    assert 1 <= facts.running_requests <= SLOTS
    assert facts.step_s(4, 800, 0) < facts.step_s(4, 800, 500)


@pytest.mark.parametrize("name", LAWS)
def test_a_law_adds_replicas_in_a_burst_and_removes_them_later(name, facts, one_replica):
    result = result_of(LAWS[name](facts))

    most = max(count.desired for count in result.counts)
    assert 2 <= most <= 9
    assert result.counts[-1].desired < most
    assert result.attainment.share > one_replica


@pytest.mark.parametrize("name", LAWS)
def test_no_law_acts_while_prometheus_is_down_in_a_burst(name, facts):
    down = PrometheusOutage(320.0, 620.0)

    result = result_of(LAWS[name](facts), outages=(down,))

    assert {count.desired for count in result.counts if 320 < count.at < 620} <= {FEWEST.get(name, 1)}
