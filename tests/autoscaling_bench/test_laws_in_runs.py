"""Published laws in whole runs: through a burst, on what is scraped of simulated engines."""

import pytest

from benchmarks.autoscaling import compared_laws
from benchmarks.autoscaling.laws import PUBLISHED, capacity_facts
from tangram.catalog.prices import Prices
from tangram.fleet.lengths import around
from tangram.simulator.cluster.engine_setups import EngineSetups
from tangram.simulator.cluster.faults import InjectedFaults, PrometheusOutage
from tangram.simulator.controllers import LawKnowledge, StaticReplicas
from tangram.simulator.run import SimulationSettings, run
from tangram.simulator.traffic.synthetic_traffic import RatePoint, TrafficDescription, generated
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
LAWS = sorted(PUBLISHED.keys() - {"hpa-kv", "aibrix-apa", "wva-v1-hpa"})


@pytest.fixture(scope="module")
def known():
    intent = served_intent(max_running_requests=SLOTS)
    setup = EngineSetups([(intent, FACTS_8B)], Prices({})).setup(intent.uid, shape())
    return LawKnowledge(intent, setup, around(700), around(150), start_s=120.0)


def result_of(law, **changes):
    settings = SimulationSettings(h100_nodes(4, 4, 4), seed=5, **changes)
    limits = {"max_running_requests": SLOTS, "max_replicas": 9}
    return run((served(TRACE, law, intent_changes=limits),), settings).deployments[0]


FEWEST = {"dynamo-throughput": 2}  # one for prefill, one for decode


@pytest.fixture(scope="module")
def one_replica():
    return result_of(StaticReplicas(1)).attainment.share


def test_a_profile_is_that_of_the_engine_at_the_rate_that_meets_the_objectives(known):
    facts = capacity_facts(known)

    assert 1 < facts.requests_per_second == known.requests_per_second < 8
    assert 0 < facts.running_requests <= facts.max_running == SLOTS
    assert facts.step_s(4, 800, 0) == pytest.approx(known.engine.steps.decode_s(4, 800).total)
    assert facts.step_s(4, 800, 0) < facts.step_s(4, 800, 500)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_knob_is_handed_on_and_without_one_the_published_default_holds(name, known):
    with_knob, by_default = PUBLISHED[name](known, 0.25), PUBLISHED[name](known, None)
    if name == "wva-v1-hpa":
        with_knob, by_default = with_knob._law, by_default._law

    assert with_knob.knob == 0.25
    assert by_default.knob == compared_laws.BY_NAME[name].default


@pytest.mark.parametrize("name", LAWS)
def test_a_law_adds_replicas_in_a_burst_and_removes_them_later(name, known, one_replica):
    result = result_of(PUBLISHED[name](known, None))

    most = max(count.desired for count in result.counts)
    assert 2 <= most <= 9
    assert result.counts[-1].desired < most
    assert result.attainment.share > one_replica


@pytest.mark.parametrize("name", LAWS)
def test_no_law_acts_while_prometheus_is_down_in_a_burst(name, known):
    faults = InjectedFaults(outages=(PrometheusOutage(320.0, 620.0),))

    result = result_of(PUBLISHED[name](known, None), faults=faults, duration_s=620.0)

    assert {count.desired for count in result.counts if 320 < count.at < 620} <= {FEWEST.get(name, 1)}
