"""Which product computes how many rows, in the interpreter; all agree with the dequantised weights."""

import pytest
import torch

from tangram_engine.kernels import int4_gemm, small_linear
from tangram_engine.kernels.ops import kernel_ops
from tangram_engine.models.linear import Linear
from tangram_engine.models.quantized import EACH_WAY, QuantizedLinear, compute_each_way
from tangram_engine.quantize import quantize


@pytest.fixture
def called(monkeypatch):
    """Names of the kernels that were launched."""
    names = []

    def watched(module, name):
        launcher = getattr(module, name)

        def record(*arguments):
            names.append(name)
            return launcher(*arguments)

        monkeypatch.setattr(module, name, record)

    watched(small_linear, "small_linear")
    watched(int4_gemm, "int4_gemm")
    watched(int4_gemm, "dequantize")
    return names


@pytest.mark.parametrize(
    ("form", "rows", "kernel"),
    [
        ("fp8", 8, ["small_linear"]),
        ("fp8", 9, []),
        ("int4", 8, ["small_linear"]),
        ("int4", 9, ["int4_gemm"]),
        ("int4", 64, ["int4_gemm"]),
        ("int4", 65, ["dequantize"]),
        ("int4", 0, ["dequantize"]),
    ],
)
def test_the_number_of_rows_and_the_format_choose_the_product(called, form, rows, kernel):
    stored, bias = quantize(torch.randn(16, 256), form), torch.randn(16)
    buffer, x = torch.full((5000,), float("nan")), torch.randn(rows, 256)
    product = QuantizedLinear(stored, bias, buffer, kernel_ops(), scaled=False)(x)
    expected = x @ stored.dequantized(torch.float32).T + bias
    torch.testing.assert_close(product, expected, rtol=1e-4, atol=1e-3)
    assert called == kernel


def test_each_kernel_of_a_projection_is_used_once_before_requests_come(called):
    stored = quantize(torch.randn(16, 128), "int4")
    made = QuantizedLinear(stored, None, torch.empty(2048), kernel_ops(), scaled=False)
    compute_each_way(made, torch.zeros(EACH_WAY[-1], 128))
    assert called == 4 * ["int4_gemm"] + 2 * ["dequantize"]


@pytest.mark.parametrize(("rows", "kernel"), [(8, ["small_linear"]), (9, []), (0, [])])
def test_weights_as_they_are_stored_take_the_kernel_for_few_rows(called, rows, kernel):
    weight, bias = torch.randn(16, 256).half() / 16, torch.randn(16).half()
    x = torch.randn(rows, 256).half()
    torch.testing.assert_close(
        Linear(weight, bias, kernel_ops())(x), (x @ weight.T) + bias, rtol=4e-3, atol=4e-3
    )
    assert called == kernel
