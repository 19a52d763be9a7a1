"""The step-time model: what physics demands of it, whatever the coefficients."""

from dataclasses import fields, replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.capacity.hardware import Hardware, hardware
from tangram.capacity.memory.footprint import Footprint, footprint
from tangram.capacity.steps.calibration import coefficients_for, load
from tangram.capacity.steps.step_model import IDLE, Coefficients, StepModel, Wall, narrow
from tangram.catalog import InputError, known_model
from tangram.catalog import load as catalog

MODELS = ("Llama-3.1-8B", "Llama-3.1-70B", "Qwen3-32B", "gpt-oss-120b", "DeepSeek-V3")
ENTRIES = [load()["all"], *load()["engines"].values(), *load()["versions"].values()]
SHAPES = [
    (sku, profile.name)
    for sku, board in catalog().items()
    for profile in board.profiles
    if "+" not in profile.name
] + [(sku, None) for sku in catalog()]


def _model(name: str, weights: str = "bf16", ranks: int = 1, sku: str = "H100-80GB-SXM") -> StepModel:
    on = hardware(sku)
    architecture = known_model(name)
    assert architecture is not None
    found = footprint(architecture, weights, "bf16", ranks, on)
    return StepModel(found, on, coefficients_for("vllm").coefficients)


@st.composite
def models(draw: st.DrawFn) -> StepModel:
    sku, profile = draw(st.sampled_from(SHAPES))
    on = hardware(sku) if profile is None else hardware(sku, profile)
    architecture = known_model(draw(st.sampled_from(MODELS)))
    assert architecture is not None
    weights = draw(st.sampled_from(["bf16", "fp8", "nvfp4", "int4"]))
    ranks = draw(st.sampled_from([1, 2, 4, 8])) if profile is None else 1
    entry = draw(st.sampled_from(ENTRIES))
    kv = draw(st.sampled_from(["bf16", "fp8"]))
    found = _footprint(architecture.name, weights, kv, ranks, on)
    return StepModel(found, on, Coefficients(**entry["coefficients"]))


@cache
def _footprint(name: str, weights: str, kv: str, ranks: int, on: Hardware) -> Footprint:
    architecture = known_model(name)
    assert architecture is not None
    try:
        return footprint(architecture, weights, kv, ranks, on)
    except InputError:  # fp8 on a GPU without it
        return footprint(architecture, "bf16", "bf16", ranks, on)


batches = st.integers(0, 512)
contexts = st.integers(1, 131_072)
prompts = st.sampled_from([0, 1, 100, 2048, 8192])


@settings(max_examples=150, deadline=None)
@given(models(), batches, contexts, prompts)
def test_no_step_is_faster_than_the_data_sheet(
    model: StepModel, batch: int, context: int, prompt: int
) -> None:
    calibrated = model.step_s(batch, context, prompt, prompt / 2)

    bound = replace(model, coefficients=Coefficients()).step_s(batch, context, prompt, prompt / 2)

    assert calibrated.total >= bound.total


@settings(max_examples=150, deadline=None)
@given(models(), st.integers(1, 512), contexts, prompts)
def test_the_data_sheet_is_bytes_over_bandwidth_and_flop_over_flops(
    model: StepModel, batch: int, context: int, prompt: int
) -> None:
    """The oracle is written down apart from the model's terms."""
    foot, on = model.footprint, model.hardware
    step = replace(model, coefficients=Coefficients()).step_s(batch, context, prompt, prompt / 2)

    read = (foot.weight_read_bytes(batch + prompt) + batch * foot.kv_bytes(context)) / on.bandwidth
    fastest = max(value for _, value in on.flops)
    computed = (batch + prompt) * foot.linear_flops_per_token / fastest

    assert step.total >= max(read, computed) * (1 - 1e-9)


@settings(max_examples=100, deadline=None)
@given(models(), st.integers(1, 511), contexts, prompts)
def test_more_work_is_never_faster(model: StepModel, batch: int, context: int, prompt: int) -> None:
    now = model.step_s(batch, context, prompt, prompt / 2).total

    assert model.step_s(batch + 1, context, prompt, prompt / 2).total >= now
    assert model.step_s(batch, context + 1000, prompt, prompt / 2).total >= now
    assert model.step_s(batch, context, prompt + 100, prompt / 2).total >= now
    assert model.step_s(batch, context, prompt, prompt / 2 + 1000).total >= now


@settings(max_examples=100, deadline=None)
@given(models(), st.integers(1, 512), contexts, prompts, st.sampled_from(["bandwidth", "flops", "link"]))
def test_better_hardware_is_never_slower(
    model: StepModel, batch: int, context: int, prompt: int, what: str
) -> None:
    on = model.hardware
    better: Hardware = {
        "bandwidth": replace(on, bandwidth=on.bandwidth * 1.5),
        "flops": replace(on, flops=tuple((kind, value * 1.5) for kind, value in on.flops)),
        "link": replace(on, link_bandwidth=on.link_bandwidth * 1.5, nvlink=True),
    }[what]
    now = model.step_s(batch, context, prompt, prompt / 2).total

    assert replace(model, hardware=better).step_s(batch, context, prompt, prompt / 2).total <= now


@settings(max_examples=50, deadline=None)
@given(models(), st.integers(1, 512), contexts, prompts)
def test_parts_add_up_and_the_wall_is_the_largest(
    model: StepModel, batch: int, context: int, prompt: int
) -> None:
    step = model.step_s(batch, context, prompt, prompt / 2)
    parts = {
        Wall.COMPUTE: step.compute_s,
        Wall.MEMORY_BANDWIDTH: step.weights_s + step.kv_s,
        Wall.LAUNCH_OVERHEAD: step.launch_s,
        Wall.INTERCONNECT: step.communication_s,
    }

    assert sum(parts.values()) == pytest.approx(step.total)
    assert parts[step.wall] == max(parts.values())
    assert min(parts.values()) >= 0


def test_nothing_to_do_takes_no_time() -> None:
    assert _model("Llama-3.1-8B").step_s(0, 0) == IDLE


@pytest.mark.parametrize(
    ("name", "weights", "ranks", "sku", "step", "wall"),
    [
        ("Llama-3.1-8B", "bf16", 1, "L4", (1, 1000, 0), Wall.MEMORY_BANDWIDTH),
        ("Llama-3.1-8B", "bf16", 1, "H100-80GB-SXM", (0, 0, 8192), Wall.COMPUTE),
        ("Qwen3-0.6B", "bf16", 1, "H100-80GB-SXM", (1, 1000, 0), Wall.LAUNCH_OVERHEAD),
        ("Llama-3.1-70B", "fp8", 4, "L40S", (64, 1000, 2048), Wall.INTERCONNECT),
    ],
)
def test_the_wall_is_the_one_that_people_know(
    name: str, weights: str, ranks: int, sku: str, step: tuple[int, int, int], wall: Wall
) -> None:
    decode, context, prompt = step

    assert _model(name, weights, ranks, sku).step_s(decode, context, prompt, prompt / 2).wall is wall


def test_one_stream_of_8b_on_an_h100_is_as_fast_as_people_measure() -> None:
    """6.4 ms on vLLM, 6.3 ms on SGLang (benchmarks/calibrate/data/published.csv)."""
    assert _model("Llama-3.1-8B").decode_s(1, 1024).total == pytest.approx(6.4e-3, rel=0.15)


def test_tensor_parallelism_over_pcie_pays_for_every_all_reduce() -> None:
    nvlink = _model("Llama-3.1-70B", "fp8", 4, "H100-80GB-SXM")
    pcie = replace(nvlink, hardware=replace(nvlink.hardware, nvlink=False, link_bandwidth=31.5e9))

    ratio = pcie.decode_s(1, 1000).communication_s / nvlink.decode_s(1, 1000).communication_s

    assert ratio > 3


def test_four_bits_are_recognised_by_their_bytes_and_experts_left_alone() -> None:
    def found(name: str, weights: str) -> Footprint:
        return _model(name, weights, 8).footprint

    assert narrow(found("Llama-3.1-70B", "int4"))
    assert narrow(found("Llama-3.1-8B", "nvfp4"))
    assert not narrow(found("Llama-3.1-8B", "fp8"))
    assert not narrow(found("gpt-oss-120b", "mxfp4"))


def test_the_default_coefficients_are_the_data_sheet() -> None:
    """Factors are 1, times and counts 0: a new coefficient must not make the bound slower by default."""
    values = {field.name: getattr(Coefficients(), field.name) for field in fields(Coefficients)}

    assert all(
        value == (0.0 if name.endswith("_s") or name == "moved" else 1.0) for name, value in values.items()
    )
