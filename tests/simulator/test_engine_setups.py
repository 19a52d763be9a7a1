"""Engines of a simulation: limits and step times as sizing has them, and what an idle replica does."""

import pytest

from tangram.capacity.load.simulate import simulate
from tangram.capacity.load.traffic import SimulatedRequest
from tangram.capacity.memory.from_facts import architecture_from_facts
from tangram.catalog import InputError, known_model
from tangram.catalog.prices import Prices
from tangram.fleet import Traffic
from tangram.fleet.lengths import around
from tangram.simulator.cluster.engine_setups import EngineSetups
from tangram.simulator.cluster.well_known_facts import well_known_facts
from tests.support.fleet import FACTS_8B, FACTS_70B, shape
from tests.support.simulated_fleets import served_intent

CHAT = served_intent(traffic=Traffic(4.0, around(700), around(150)))


@pytest.mark.parametrize(("prompt", "answer"), [(1, 1), (600, 1), (600, 200), (7000, 40), (8100, 2)])
def test_an_idle_replica_answers_as_the_step_simulation_of_one_request(prompt: int, answer: int) -> None:
    setup = EngineSetups([(CHAT, FACTS_8B)], Prices({})).setup(CHAT.uid, shape())

    ttft_s, tpot_s = setup.idle_latency_s(prompt, answer)

    alone = simulate(setup.steps, setup.limits, [SimulatedRequest(0.0, prompt, answer)])
    assert ttft_s == pytest.approx(alone.ttft_s[0] + setup.request_s)
    assert tpot_s == pytest.approx(alone.tpot_s[0])


def test_a_model_that_does_not_fit_is_refused_with_what_it_needs() -> None:
    engines = EngineSetups([(CHAT, FACTS_70B)], Prices({}))

    with pytest.raises(InputError, match=r"needs 1\d\d\.\d GiB"):
        engines.setup(CHAT.uid, shape())


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Llama-3.1-70B", "Qwen3-32B", "Qwen2.5-7B"])
def test_facts_of_a_well_known_model_are_those_of_its_architecture(name: str) -> None:
    architecture = known_model(name)
    assert architecture is not None

    read = architecture_from_facts(well_known_facts(architecture))

    assert read.parameters == architecture.parameters
    assert read.groups[0].attention == architecture.groups[0].attention
    assert read.groups[0].intermediate_size == architecture.groups[0].intermediate_size


@pytest.mark.parametrize("name", ["DeepSeek-R1", "gpt-oss-120b", "Gemma-2-9B"])
def test_models_that_facts_cannot_describe_are_refused(name: str) -> None:
    architecture = known_model(name)
    assert architecture is not None

    with pytest.raises(InputError, match="is no dense decoder"):
        well_known_facts(architecture)
