"""Residual with RMSNorm and the gated activation in the Triton interpreter, against plain torch."""

import pytest
import torch

from tangram_engine.kernels import add_norm as norming
from tangram_engine.kernels import silu_mul as gating

EPS = 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("first", [False, True], ids=["add", "first"])
@pytest.mark.parametrize(("tokens", "columns"), [(1, 64), (5, 100), (0, 16)])
def test_the_residual_is_added_and_normalised(dtype, first, tokens, columns):
    x = None if first else torch.randn(tokens, columns, dtype=dtype)
    residual = torch.randn(tokens, columns, dtype=dtype)
    weight = torch.rand(columns, dtype=dtype)
    expected_residual = residual.clone()

    got = norming.add_norm(x, residual, weight, EPS)

    rtol, atol = norming.TOLERANCE[dtype]
    expected = norming.reference(x, expected_residual, weight, EPS)
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol)
    torch.testing.assert_close(residual, expected_residual, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("tokens", "columns"), [(1, 64), (3, 1030), (0, 16)])
def test_the_gate_multiplies(dtype, tokens, columns):
    gate_up = torch.randn(tokens, 2 * columns, dtype=dtype)

    got = gating.silu_mul(gate_up)

    rtol, atol = gating.TOLERANCE[dtype]
    torch.testing.assert_close(got, gating.reference(gate_up), rtol=rtol, atol=atol)
