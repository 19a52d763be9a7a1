"""Products with few rows: all formats, odd sizes, and rows that do not depend on each other."""

import pytest
import torch

from tangram_engine.kernels import small_linear as kernel
from tangram_engine.kernels.rms_norm import RmsNorm
from tangram_engine.quantize import quantize

FORMATS = ("plain", "fp8", "int4")
SIZES = [(1, 16, 512), (8, 16, 512), (3, 34, 130), (2, 6, 24)]  # rows, outputs, inputs
formats = pytest.mark.parametrize("form", FORMATS)
dtypes = pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)


def inputs(form, rows, outputs, columns, dtype=torch.float16):
    x = torch.randn(rows, columns).to(dtype)
    weight = (torch.randn(outputs, columns) / columns**0.5).to(dtype)
    stored = weight if form == "plain" else quantize(weight, form)
    return x, stored, torch.randn(outputs).to(dtype)


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    """Outputs begin as NaN: what a kernel does not write shows."""
    fresh = torch.Tensor.new_empty

    def poisoned(self, *shape, **options):
        made = fresh(self, *shape, **options)
        return made.fill_(float("nan")) if made.is_floating_point() else made

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)


def assert_as_the_reference(x, *arguments, residual=None, **options):
    expected = kernel.reference(x, *arguments, **options, residual=residual and residual.clone())
    found = kernel.small_linear(x, *arguments, **options, residual=residual)
    rtol, atol = kernel.TOLERANCE[x.dtype]
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
    return found


@formats
@dtypes
@pytest.mark.parametrize("size", [*SIZES, (2, 5, 24)])
def test_the_kernel_computes_what_the_reference_does(form, dtype, size):
    x, weight, bias = inputs(form, *size, dtype)
    for shift in (None, bias):
        assert_as_the_reference(x, weight, shift)


@formats
@dtypes
@pytest.mark.parametrize("gated", [False, True], ids=["", "gated"])
@pytest.mark.parametrize("normed", [False, True], ids=["", "normed"])
@pytest.mark.parametrize("size", SIZES)
def test_norm_gate_and_residual_are_those_of_separate_operations(form, dtype, gated, normed, size):
    rows, outputs, columns = size
    x, weight, bias = inputs(form, *size, dtype)
    x *= torch.linspace(0.1, 30.0, rows)[:, None].to(dtype)
    norm = RmsNorm(torch.rand(columns).to(dtype) + 0.5, 1e-5) if normed else None
    x = x if normed else x / 30
    residual = torch.randn(rows, outputs // 2 if gated else outputs).to(dtype)
    expected = kernel.reference(x, weight, bias, norm, gated, residual.clone())
    plain = kernel.reference(x, weight, bias, norm, gated)
    rtol, atol = kernel.TOLERANCE[dtype]
    found = kernel.small_linear(x, weight, bias, norm, gated)
    torch.testing.assert_close(found, plain, rtol=rtol, atol=atol)
    assert kernel.small_linear(x, weight, bias, norm, gated, residual) is residual
    torch.testing.assert_close(residual, expected, rtol=rtol, atol=atol)


@formats
def test_a_row_depends_neither_on_the_others_nor_on_their_number(form):
    x, weight, bias = inputs(form, 8, 16, 512)
    norm = RmsNorm(torch.rand(512).half(), 1e-5)
    whole = kernel.small_linear(x, weight, bias, norm)
    x[3] = float("nan")
    assert torch.equal(kernel.small_linear(x, weight, bias, norm)[:3], whole[:3])
    assert torch.equal(kernel.small_linear(x[:1], weight, bias, norm), whole[:1])


def test_every_e4m3_is_converted_without_the_instruction():
    values = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn)
    values = values[values.float().isfinite()][:252]
    weight = kernel.Fp8Weight(values.view(21, 12), torch.ones(21))
    product = kernel.small_linear(torch.eye(12)[:8], weight, None)
    assert torch.equal(product, values.view(21, 12)[:, :8].float().T)
