"""RMSNorm, the gated activation and rows in fp8 in the Triton interpreter, against plain torch."""

import pytest
import torch

from tangram_engine.kernels import fp8_rows, rms_norm
from tangram_engine.kernels import silu_mul as gating
from tangram_engine.kernels.rms_norm import RmsNorm

EPS = 1e-5
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)


@dtypes
@pytest.mark.parametrize(("tokens", "columns"), [(1, 64), (5, 100), (0, 16)])
def test_rows_are_normalised(dtype, tokens, columns):
    x = torch.randn(tokens, columns, dtype=dtype)
    weight = torch.rand(columns, dtype=dtype)

    got = rms_norm.rms_norm(x, weight, EPS)

    rtol, atol = rms_norm.TOLERANCE[dtype]
    torch.testing.assert_close(got, rms_norm.reference(x, weight, EPS), rtol=rtol, atol=atol)


@dtypes
@pytest.mark.parametrize(("tokens", "columns"), [(1, 64), (3, 1030), (0, 16)])
def test_the_gate_multiplies(dtype, tokens, columns):
    gate_up = torch.randn(tokens, 2 * columns, dtype=dtype)

    got = gating.silu_mul(gate_up)

    rtol, atol = gating.TOLERANCE[dtype]
    torch.testing.assert_close(got, gating.reference(gate_up), rtol=rtol, atol=atol)


@dtypes
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize(("tokens", "columns"), [(2, 64), (3, 100), (0, 16)])
def test_rows_become_fp8_with_a_scale_each(dtype, normed, tokens, columns):
    x = torch.randn(tokens, columns, dtype=dtype) * torch.tensor([[1e-2], [3.0], [1e2]], dtype=dtype)[:tokens]
    norm = RmsNorm(torch.rand(columns).to(dtype), EPS) if normed else None

    values, scales = fp8_rows.fp8_rows(x, norm)

    expected, expected_scales = fp8_rows.reference(x, norm)
    torch.testing.assert_close(scales, expected_scales, rtol=rms_norm.TOLERANCE[dtype][0], atol=0)
    # Triton's interpreter loses the carry where rounding reaches a power of two: the mantissa is 0 there.
    compared = expected.view(torch.uint8) & 7 != 0
    rtol, atol = fp8_rows.TOLERANCE[dtype]
    torch.testing.assert_close(values.float()[compared], expected.float()[compared], rtol=rtol, atol=atol)
    assert values.float().abs().amax(1).tolist() == [448.0] * tokens if tokens else not values.numel()


def test_a_row_of_zeros_stays_zero_in_fp8():
    values, scales = fp8_rows.fp8_rows(torch.zeros(1, 32))

    assert values.float().abs().max() == 0
    assert scales.isfinite().all()
    assert (scales > 0).all()
