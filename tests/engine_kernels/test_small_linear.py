"""Products with few rows: all formats, odd sizes, and rows that do not depend on each other."""

import re

import pytest
import torch

from tangram_engine.kernels import small_linear as kernel
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


@formats
@dtypes
@pytest.mark.parametrize("size", [*SIZES, (2, 5, 24)])
def test_the_kernel_computes_what_the_reference_does(form, dtype, size):
    x, weight, bias = inputs(form, *size, dtype)
    rtol, atol = kernel.TOLERANCE[dtype]
    for shift in (None, bias):
        found = kernel.small_linear(x, weight, shift)
        torch.testing.assert_close(found, kernel.reference(x, weight, shift), rtol=rtol, atol=atol)


@formats
@dtypes
@pytest.mark.parametrize("gated", [False, True], ids=["", "gated"])
@pytest.mark.parametrize("size", [(8, 16, 512), (3, 34, 130), (1, 6, 24)])
def test_gate_and_residual_are_those_of_separate_operations(form, dtype, gated, size):
    rows, outputs, _ = size
    x, weight, bias = inputs(form, *size, dtype)
    residual = torch.randn(rows, outputs // 2 if gated else outputs).to(dtype)
    rtol, atol = kernel.TOLERANCE[dtype]

    found = kernel.small_linear(x, weight, bias, gated)
    expected = kernel.reference(x, weight, bias, gated)
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)

    expected = kernel.reference(x, weight, bias, gated, residual.clone())
    assert kernel.small_linear(x, weight, bias, gated, residual) is residual
    torch.testing.assert_close(residual, expected, rtol=rtol, atol=atol)


def executed(ptx, word):
    """Registers after these instructions; the word is in $6."""
    registers = {"$6": word}
    for line in ptx.splitlines()[2:-1]:
        name, target, *operands = re.split("[ ,]+", line.rstrip(";"))
        a, *rest = (registers[each] if each in registers else int(each, 0) for each in operands)
        match name, rest:
            case "prmt.b32", (b, selector):
                chosen = [(a | b << 32) >> 8 * (selector >> 4 * byte & 7) & 255 for byte in range(4)]
                registers[target] = int.from_bytes(bytes(chosen), "little")
            case "lop3.b32", (b, c, 0xEA):
                registers[target] = a & b | c
            case "shl.b32", (count,):
                registers[target] = a << count & 0xFFFFFFFF
            case "shr.b32", (count,):
                registers[target] = a >> count
            case "mov.b32", ():
                registers[target] = a
            case unknown:
                pytest.fail(f"{unknown} is not an instruction of this test")
    return registers


@pytest.mark.parametrize("dtype", kernel.UNPACK, ids=str)
def test_instructions_unpack_what_the_interpreter_unpacks(dtype):
    for first in range(0, 256, 4):
        byte = torch.arange(first, first + 4)
        registers = executed(kernel.UNPACK[dtype], int.from_bytes(bytes(byte.tolist()), "little"))
        words = torch.tensor([registers[f"${number}"] for number in range(6)], dtype=torch.int64)
        low, high, ones = words.to(torch.uint32).view(dtype).view(3, 4).long()
        assert low.tolist() == (128 + byte % 16).tolist()
        assert high.tolist() == (128 + byte // 16).tolist()
        assert ones.tolist() == [1] * 4


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
