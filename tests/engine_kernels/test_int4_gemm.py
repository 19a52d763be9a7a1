"""Products of up to 64 rows with int4 weights, in one part or several, and the weights back in full."""

import pytest
import torch

from tangram_engine.kernels import int4_gemm as kernel
from tangram_engine.quantize import to_int4


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    """Outputs and parts begin as NaN: what a kernel does not write shows."""
    fresh = torch.Tensor.new_empty

    def poisoned(self, *shape, **options):
        made = fresh(self, *shape, **options)
        return made.fill_(float("nan")) if made.is_floating_point() else made

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)


@pytest.mark.parametrize(
    ("rows", "outputs", "columns", "multiprocessors", "dtype"),
    [
        (1, 64, 128, 0, torch.float32),
        (17, 70, 130, 0, torch.float16),
        (64, 5, 62, 0, torch.float16),
        (9, 65, 1300, 3, torch.float32),
        (9, 64, 1280, 9, torch.float16),
    ],
)
def test_the_kernel_computes_what_the_reference_does(
    monkeypatch, rows, outputs, columns, multiprocessors, dtype
):
    monkeypatch.setattr(kernel, "hardware", lambda _: (90, multiprocessors))
    weight = to_int4(torch.randn(outputs, columns) / columns**0.5)
    x, bias = torch.randn(rows, columns).to(dtype), torch.randn(outputs).to(dtype)
    rtol, atol = kernel.TOLERANCE[dtype]
    for shift in (None, bias):
        found = kernel.int4_gemm(x, weight, shift)
        torch.testing.assert_close(found, kernel.reference(x, weight, shift), rtol=rtol, atol=atol)


def test_a_row_does_not_depend_on_the_content_of_the_others():
    weight, x = to_int4(torch.randn(64, 256)), torch.randn(12, 256)
    whole = kernel.int4_gemm(x, weight, None)
    x[5] = float("nan")
    assert torch.equal(kernel.int4_gemm(x, weight, None)[:5], whole[:5])


@pytest.mark.parametrize("shape", [(33, 130), (4, 256)])
def test_dequantised_weights_are_those_of_the_format(shape):
    weight = to_int4(torch.randn(shape))
    out = torch.full(shape, float("nan"))
    assert torch.equal(kernel.dequantize(weight, out), weight.dequantized(torch.float32))


def test_programs_share_the_inputs_where_there_are_fewer_than_processors():
    assert [kernel.parts_of(blocks, 32, 132) for blocks in (96, 64, 448, 16)] == [2, 4, 1, 4]
    assert kernel.parts_of(16, 8, 132) == 1
