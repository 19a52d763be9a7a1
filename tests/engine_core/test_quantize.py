"""Weights in 8 and 4 bits: nearest values, exact sizes, and a model that computes with them."""

import copy
import logging
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from tangram.capacity.memory.weights import rank_tensors
from tangram.capacity.memory.weights import weight_bytes as operators_weight_bytes
from tangram.catalog.configs.model_config import architecture_from_config
from tangram.catalog.models.precision import precision
from tangram_engine.checkpoint import CheckpointError
from tangram_engine.checkpoint.config import parse_config
from tangram_engine.config import EngineConfig
from tangram_engine.kernels.ops import reference_ops
from tangram_engine.models import quantized_on_load
from tangram_engine.models.quantized import QuantizedLinear, largest_projection
from tangram_engine.quantize import FORMATS, GROUP, bytes_of, quantizable, quantize
from tangram_engine.run.memory import dequantization_bytes, weight_bytes
from tests.contracts.memory_golden import LLAMA, MODELS, sizes

CPU = torch.device("cpu")
SHAPES = [(3, 128), (5, 256), (4, 192), (7, 2), (1, 130), (2, 62)]
forms = pytest.mark.parametrize("form", FORMATS)


@pytest.fixture(autouse=True)
def _same_random_numbers():
    torch.manual_seed(0)


@forms
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_each_weight_becomes_the_nearest_value_of_the_format(form, dtype, shape):
    weight = (torch.randn(shape) * torch.logspace(-3, 1, shape[0])[:, None] + 0.05).to(dtype)
    stored = quantize(weight, form)
    error = (stored.dequantized(torch.float32) - weight.float()).abs()
    if form == "fp8":
        limit = torch.maximum(weight.float().abs() / 16, stored.scales[:, None] / 1024)
    else:
        limit = stored.scales.float().repeat_interleave(GROUP, 1)[:, : shape[1]] * 0.5001
    assert (error <= limit + 1e-9).all()
    assert stored.shape == shape


@pytest.mark.parametrize("form", FORMATS)
def test_rows_are_converted_in_parts_without_a_seam(form, monkeypatch):
    weight = torch.randn(9, 192)
    whole = quantize(weight, form).dequantized(torch.float32)
    monkeypatch.setattr("tangram_engine.quantize.formats.CHUNK", 400)
    assert torch.equal(quantize(weight, form).dequantized(torch.float32), whole)


@forms
def test_zeros_and_values_of_one_sign_are_represented(form):
    weight = torch.stack((torch.zeros(128), torch.full((128,), 0.3), torch.linspace(-2, -1, 128)))
    found = quantize(weight, form).dequantized(torch.float32)
    assert torch.equal(found[0], weight[0])
    torch.testing.assert_close(found, weight, rtol=0.07, atol=0)


@forms
def test_values_below_the_smallest_scale_are_near_zero_and_finite(form):
    found = quantize(torch.full((1, 128), 1e-12), form).dequantized(torch.float32)
    assert found.abs().max() <= 1e-7


@forms
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_not_finite_is_refused(form, bad):
    weight = torch.ones(4, 128)
    weight[2, 5] = bad
    with pytest.raises(CheckpointError, match=r"not finite.*start without --quantize"):
        quantize(weight, form)


@forms
@pytest.mark.parametrize("shape", [*SHAPES, (4096, 14336)])
def test_engine_and_operator_count_the_same_bytes(form, shape):
    assert bytes_of(form, *shape) == precision(form).bytes_of(*shape)
    if shape in SHAPES:
        weight = quantize(torch.randn(shape), form)
        stored = [getattr(weight, field.name) for field in fields(weight)]
        assert sum(tensor.nbytes for tensor in stored) == bytes_of(form, *shape)


def test_an_odd_number_of_inputs_has_no_int4():
    assert [quantizable(form, columns) for form in FORMATS for columns in (62, 63)] == [
        True,
        True,
        True,
        False,
    ]


VARIANTS = ("llama", "qwen2-tied", "qwen3-tied")
PROMPT = [5, 17, 101, 33, 198, 64, 9]


@forms
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_quantised_model_computes_with_what_its_weights_stand_for(
    checkpoint, engine, run, greedy, form, variant
):
    """Equal to `transformers` with dequantised weights in the layers; head, embedding and norms untouched."""
    _, reference = checkpoint(variant)
    changed = copy.deepcopy(reference)
    with torch.no_grad():
        for name, parameter in changed.named_parameters():
            if name.endswith("_proj.weight"):
                parameter.copy_(quantize(parameter, form).dequantized(torch.float32))
    outputs = run(engine(variant, quantize=form), [greedy("a", PROMPT)])["a"]
    tokens = PROMPT + [output.token for output in outputs]
    with torch.inference_mode():
        logits = changed(torch.tensor([tokens])).logits[0]
        plain = reference(torch.tensor([tokens])).logits[0]
    expected = torch.log_softmax(logits, -1)[len(PROMPT) - 1 : -1]
    found = torch.tensor([output.logprob for output in outputs])
    chosen = torch.tensor(tokens[len(PROMPT) :])
    torch.testing.assert_close(found, expected.gather(1, chosen[:, None])[:, 0], atol=1e-4, rtol=0)
    assert (logits - plain).abs().max() > 1e-3  # else the format would not be in use


@forms
def test_the_engine_says_which_format_it_keeps(engine, form):
    assert engine("llama", quantize=form).info.quantize == form
    assert engine("llama").info.quantize is None


def test_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match="quantize 'int3' is not one of fp8, int4"):
        EngineConfig(Path("m"), quantize="int3")


def test_a_matrix_that_has_no_int4_stays_as_it_is_stored(caplog):
    spec = parse_config(LLAMA | sizes(1, 64, 113, 4, 2, 199, 256), {}, "fp32")
    weight = torch.randn(64, 113)
    with caplog.at_level(logging.INFO):
        kept = quantized_on_load(spec, "int4", torch.float32, CPU)(lambda: (weight, None), reference_ops())
    x = torch.randn(3, 113)
    torch.testing.assert_close(kept(x), x @ weight.T)
    assert "64 x 113 has no int4" in caplog.text


@forms
def test_the_buffer_holds_the_largest_matrix_that_is_dequantised(form):
    spec = parse_config(LLAMA | sizes(1, 64, 112, 4, 2, 199, 256), {}, "fp32")
    assert dequantization_bytes(spec, torch.float32) == 4 * 64 * 224
    buffer = torch.empty(largest_projection(spec))
    weight, bias, x = torch.randn(224, 64), torch.randn(224), torch.randn(70, 64)
    stored = quantize(weight, form)
    product = QuantizedLinear(stored, bias, buffer, reference_ops(), scaled=False)(x)
    torch.testing.assert_close(product, x @ stored.dequantized(torch.float32).T + bias)


@forms
@pytest.mark.parametrize("name", ["Llama-3-8B", "Qwen2.5-7B", "Qwen3-0.6B", "tiny, one KV head, bias"])
def test_engine_and_operator_count_the_same_bytes_of_a_quantised_model(form, name):
    config, dtype, _ = MODELS[name]
    dtype = "bf16" if dtype == "fp32" else dtype
    architecture = architecture_from_config(
        config | {"torch_dtype": {"bf16": "bfloat16", "fp16": "float16"}[dtype]}, "x"
    )
    theirs = operators_weight_bytes(
        architecture, precision(form), rank_tensors(architecture, precision(form), 1), 1
    )
    ours = weight_bytes(parse_config(config, {}, dtype), torch.bfloat16, form)
    assert {kind: size for kind, size in ours.items() if size} == theirs
