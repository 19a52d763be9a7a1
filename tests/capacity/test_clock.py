"""The clock of a replica gives the numbers of the step-time model, to the last bit."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.linear_steps import LinearSteps
from tangram.capacity.hardware import hardware
from tangram.capacity.memory.footprint import footprint
from tangram.capacity.steps.calibration import coefficients_for
from tangram.capacity.steps.clock import clock
from tangram.capacity.steps.step_model import Coefficients, StepModel
from tangram.catalog import InputError, known_model, known_models, skus
from tangram.fleet import WHOLE_GPU

decodes = st.one_of(st.just(0.0), st.floats(0, 512), st.floats(0, 1))
prompts = st.one_of(st.just(0.0), st.floats(0, 8192))
keys = st.floats(0, 200_000)
contexts = st.floats(0, 200_000)
coefficients = st.sampled_from(
    [
        Coefficients(),
        coefficients_for("vllm").coefficients,
        coefficients_for("vllm", "0.6.3").coefficients,
        coefficients_for("trtllm").coefficients,
        replace(Coefficients(), moved=2.0, reduce_s=1e-5, experts=1.3, unpack=2.5, narrow=1.4),
    ]
)


@st.composite
def models(draw: st.DrawFn) -> StepModel:
    name = draw(st.sampled_from(known_models()))
    form = draw(st.sampled_from([known_model(name).served_precision, "fp8", "int8", "int4", "nvfp4"]))
    ranks = draw(st.sampled_from([1, 2, 8]))
    board = hardware(draw(st.sampled_from(skus())), WHOLE_GPU, ranks)
    try:
        held = footprint(known_model(name), form, draw(st.sampled_from(["bf16", "fp8"])), ranks, board)
    except InputError:  # no engine splits or computes it so
        board = hardware("H100-80GB-SXM")
        held = footprint(known_model(name), known_model(name).served_precision, "bf16", 1)
    return StepModel(held, board, draw(coefficients))


@settings(max_examples=600, deadline=None)
@given(models(), contexts, decodes, prompts, keys)
def test_a_clock_is_the_step_time_model_to_the_last_bit(
    model: StepModel, context: float, decode: float, prompt: float, reach: float
) -> None:
    assert clock(model, context)(decode, prompt, reach) == model.step_s(decode, context, prompt, reach).total


@pytest.mark.parametrize("name", known_models())
def test_it_is_so_for_every_known_model(name: str) -> None:
    held = footprint(known_model(name), known_model(name).served_precision)
    model = StepModel(held, hardware("H200-141GB-SXM"), coefficients_for().coefficients)
    ask = clock(model, 1500.0)

    for decode, prompt in ((1.0, 0.0), (0.3, 7.5), (0.0, 2048.0), (61.7, 0.0), (200.0, 3000.0)):
        assert ask(decode, prompt, prompt / 2) == model.step_s(decode, 1500.0, prompt, prompt / 2).total


def test_any_other_model_of_steps_is_asked_itself() -> None:
    steps = LinearSteps(step=0.01, sequence=1e-5, context=2e-8, prompt=2e-5)

    assert clock(steps, 900.0)(12.5, 300.0, 150.0) == steps.step_s(12.5, 900.0, 300.0, 150.0).total
