"""Scaling laws by name, and what they may know of an LLMDeployment."""

from dataclasses import replace

import pytest

from tangram.catalog import InputError
from tangram.catalog.prices import Prices
from tangram.fleet import Objective
from tangram.simulator.cluster.engine_setups import EngineSetups
from tangram.simulator.cluster.start_times import StartTimes
from tangram.simulator.control.laws_by_name import LAWS
from tangram.simulator.controllers import LawKnowledge
from tangram.simulator.run import SimulationSettings, run
from tests.support.fleet import FACTS_8B, shape
from tests.support.simulated_fleets import h100_nodes, poisson_trace, served, served_intent

TRACE = poisson_trace(3000, 10.0)


@pytest.fixture(scope="module")
def known():
    intent = served_intent()
    engine = EngineSetups([(intent, FACTS_8B)], Prices({})).setup(intent.uid, shape())
    return LawKnowledge(intent, engine, *TRACE.lengths, start_s=60.0)


@pytest.mark.parametrize(("name", "knob"), [("tangram", None), ("static", 2.0), ("hpa", None)])
def test_every_law_scales_a_deployment(known, name, knob):
    law = LAWS[name](known, knob)

    result = run((served(TRACE, law),), SimulationSettings(h100_nodes(8, 8))).deployments[0]

    assert result.attainment.requests == 3000
    assert 1 <= max(count.desired for count in result.counts) <= 16


@pytest.mark.parametrize(("name", "default"), [("tangram", 0.05), ("hpa", 0.7)])
def test_a_knob_is_handed_on_and_without_one_the_default_holds(known, name, default):
    assert LAWS[name](known, 0.25).knob == 0.25
    assert LAWS[name](known, None).knob == pytest.approx(default)


def test_the_operators_law_begins_with_the_lengths_of_the_trace_and_the_p90_of_starts(known):
    law = LAWS["tangram"](known, None)

    assert law._intent.traffic.input_tokens == TRACE.lengths[0]
    assert law._start_s == pytest.approx(78.0)


def test_the_capacity_is_known_of_each_shape_on_which_the_model_fits(known):
    engines = EngineSetups([(known.intent, FACTS_8B)], Prices({}))
    everywhere = replace(known, engines=engines)
    lengths = [tokens.mean for tokens in TRACE.lengths]
    h100, a100 = (everywhere.capacity_on(at)(*lengths) for at in (shape(), shape(sku="A100-80GB-SXM")))

    assert h100 == known.capacity(*lengths) == known.capacity_on(shape())(*lengths)
    assert 0.3 < a100.rate_at(95) / h100.rate_at(95) < 0.7
    assert everywhere.capacity_on(shape()) is everywhere.capacity_on(shape())
    assert everywhere.capacity_on(shape("1g.10gb", sku="A100-80GB-SXM")) is None
    assert known.capacity_on(shape(sku="A100-80GB-SXM")) is None


@pytest.mark.parametrize("knob", [None, 1.5, -1.0, 17.0])
def test_a_fixed_number_of_replicas_is_a_whole_number_that_is_allowed(known, knob):
    with pytest.raises(InputError, match="needs a number of replicas up to 16"):
        LAWS["static"](known, knob)


def test_objectives_that_no_rate_meets_are_an_error_of_the_input(known):
    hopeless = replace(known, intent=served_intent(tpot=Objective(95, 1)))

    with pytest.raises(InputError, match="meets the objectives at no rate on H100"):
        hopeless.replicas_for(1.0)


def test_replicas_for_a_rate_are_the_fewest_that_carry_it(known):
    rate = known.requests_per_second

    assert [known.replicas_for(share * rate) for share in (0.0, 1.0, 1.01, 4.5)] == [1, 1, 2, 5]


def test_the_rate_of_a_replica_is_the_highest_that_meets_its_objectives(known):
    below, above = (known.replica.under(share * known.requests_per_second) for share in (0.98, 1.05))

    assert below.ttft_s.p95 <= 1.5
    assert below.tpot_s.p95 <= 0.04
    assert above.ttft_s.p95 > 1.5 or above.tpot_s.p95 > 0.04


@pytest.mark.parametrize("seconds", [0.0, 3.0, 60.0, 600.0])
def test_start_times_of_a_mean_have_it(seconds):
    times = StartTimes.of_mean(seconds)

    assert times.mean_s == pytest.approx(seconds)
    assert times.image_pull.mean_s == 0.0
