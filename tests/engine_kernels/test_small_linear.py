"""Products with few rows: all formats, odd sizes, and rows that do not depend on each other."""

import pytest
import torch

from tangram_engine.kernels import small_linear as kernel
from tangram_engine.quantize import quantize

FORMATS = ("plain", "fp8", "int4")
SIZES = [(1, 16, 512), (8, 16, 512), (3, 33, 130), (2, 5, 24)]  # rows, outputs, inputs
formats = pytest.mark.parametrize("form", FORMATS)


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


@formats
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("size", SIZES)
def test_the_kernel_computes_what_the_reference_does(form, dtype, size):
    x, weight, bias = inputs(form, *size, dtype)
    rtol, atol = kernel.TOLERANCE[dtype]
    for shift in (None, bias):
        found = kernel.small_linear(x, weight, shift)
        torch.testing.assert_close(found, kernel.reference(x, weight, shift), rtol=rtol, atol=atol)


@formats
def test_a_row_depends_neither_on_the_others_nor_on_their_number(form):
    x, weight, bias = inputs(form, 8, 16, 512)
    whole = kernel.small_linear(x, weight, bias)
    x[3] = float("nan")
    assert torch.equal(kernel.small_linear(x, weight, bias)[:3], whole[:3])
    assert torch.equal(kernel.small_linear(x[:1], weight, bias), whole[:1])


def test_every_e4m3_is_converted_without_the_instruction():
    values = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn)
    values = values[values.float().isfinite()][:252]
    weight = kernel.Fp8Weight(values.view(21, 12), torch.ones(21))
    product = kernel.small_linear(torch.eye(12)[:8], weight, None)
    assert torch.equal(product, values.view(21, 12)[:, :8].float().T)
