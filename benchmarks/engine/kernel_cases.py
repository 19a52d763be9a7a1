"""Inputs of each kernel in the shapes of a model: random, in as many sets as keep the cache from answering.

A launcher and its `reference` take the same arguments and may change tensors among them in place.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.bench_rows import Unavailable
from benchmarks.engine.predictions import (
    FORMATS,
    INT4_GEMM_ROWS,
    LLAMA_8B,
    SMALL_LINEAR_ROWS,
    DecoderShape,
    kernel_row,
)

BLOCK_SIZE = 16
EPS = 1e-5


@dataclass(frozen=True, slots=True)
class KernelCase:
    """One kernel at one batch size. `name` and `weights` are those of its prediction."""

    module: str  # of tangram_engine.kernels
    name: str
    batch: int
    build: "Callable[[Inputs], tuple[Any, ...]]"
    weights: str = "bf16"
    variant: str = ""  # other inputs than those of the prediction
    dtype: torch.dtype | None = None  # of its tolerance, where it is not that of the model
    scratch: tuple[int, ...] = ()  # numbers of the arguments whose contents mean nothing afterwards
    sweep: tuple[int, ...] = ()  # batch sizes at which other tiles are tried

    @property
    def row(self) -> str:
        """Name of its row; that of its prediction, without a variant."""
        return kernel_row(self.name, self.weights, self.batch) + self.variant

    def launcher(self) -> Callable[..., Any]:
        """The function that launches it."""
        found: Callable[..., Any] = getattr(self.kernel(), self.module)
        return found

    def kernel(self) -> ModuleType:
        """The module. Raises Unavailable where this engine has no such kernel."""
        try:
            return importlib.import_module(f"tangram_engine.kernels.{self.module}")
        except ModuleNotFoundError as error:
            if error.name != f"tangram_engine.kernels.{self.module}":
                raise
            raise Unavailable(f"this engine has no kernel {self.module}") from error


@dataclass(frozen=True, slots=True)
class Inputs:
    """Where and how large: a source of random tensors."""

    shape: DecoderShape
    batch: int
    context: int
    max_num_seqs: int
    device: torch.device
    dtype: torch.dtype

    def random(self, *shape: int, std: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
        """Normal numbers."""
        return torch.empty(*shape, dtype=dtype or self.dtype, device=self.device).normal_(std=std)

    def integers(self, values: Tensor) -> Tensor:
        """int32 on the device."""
        return values.to(self.device, torch.int32)

    def cache(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """A layer's pool, tables, rows and positions: each row with `context` tokens in blocks of its own."""
        shape, count = self.shape, -(-(self.context + 1) // BLOCK_SIZE)
        blocks = self.batch * count
        pool = self.random(blocks + 1, 2, shape.kv_heads, BLOCK_SIZE, shape.head_dim)
        tables = torch.full((max(self.batch, self.max_num_seqs) + 1, count), blocks)
        tables[: self.batch] = torch.randperm(blocks).view(self.batch, count)
        rows = torch.arange(self.batch)
        positions = torch.full((self.batch,), self.context)
        return pool, self.integers(tables), self.integers(rows), self.integers(positions)


def rms_norm(inputs: Inputs) -> tuple[Any, ...]:
    """x, weight, eps."""
    return inputs.random(inputs.batch, inputs.shape.hidden), inputs.random(inputs.shape.hidden), EPS


def fp8_rows(inputs: Inputs) -> tuple[Any, ...]:
    """x: numbers that e4m3 has, the largest one in each row, so that every rounding is right."""
    x = inputs.random(inputs.batch, inputs.shape.intermediate, std=2.0).to(torch.float8_e4m3fn)
    x = x.to(inputs.dtype)
    x[:, 0] = 448.0
    return (x,)


def silu_mul(inputs: Inputs) -> tuple[Any, ...]:
    """gate_up."""
    return (inputs.random(inputs.batch, 2 * inputs.shape.intermediate),)


def store_kv(inputs: Inputs) -> tuple[Any, ...]:
    """qkv, rotation of its heads, pages."""
    from tangram_engine.kernels.store_kv import HeadRotation, Pages  # noqa: PLC0415

    shape = inputs.shape
    qkv = inputs.random(inputs.batch, (shape.heads + 2 * shape.kv_heads) * shape.head_dim)
    angles = inputs.random(inputs.context + 1, shape.head_dim // 2, dtype=torch.float32)
    pool, tables, rows, positions = inputs.cache()
    rope = torch.cat((angles.cos(), angles.sin()), -1)
    return qkv, HeadRotation(None, None, EPS, rope), Pages(rows, positions, tables, pool)


def decode_attention(inputs: Inputs) -> tuple[Any, ...]:
    """Arguments of `store_kv`, scratch."""
    from tangram_engine.kernels.decode_attention import scratch_size  # noqa: PLC0415

    shape, (qkv, rotation, pages) = inputs.shape, store_kv(inputs)
    longest = pages.tables.shape[1] * BLOCK_SIZE
    size = scratch_size(inputs.batch, longest, shape.heads, shape.head_dim)
    return qkv, rotation, pages, torch.empty(size, device=inputs.device)


def sample(inputs: Inputs, *, drawn: bool) -> tuple[Any, ...]:
    """logits, rows, device rows: greedy, or drawn at temperature 0.8 of top-p 0.9."""
    count, vocabulary = inputs.max_num_seqs + 1, inputs.shape.vocabulary
    parameters = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, 0.0])[:, None].repeat(1, count)  # the padding row's
    if drawn:
        parameters[:2, :-1] = torch.tensor([[0.8], [0.9]])
    zeros = partial(torch.zeros, device=inputs.device)
    table = SimpleNamespace(
        parameters=parameters.to(inputs.device),
        top_k=zeros(count, dtype=torch.int32),
        seed=zeros(count, dtype=torch.int64) + 7,
        positions=zeros(count, dtype=torch.int32) + inputs.context,
        last_tokens=zeros(count, dtype=torch.int32),
        counts=zeros(count, vocabulary, dtype=torch.int32),
    )
    logits = inputs.random(inputs.batch, vocabulary, std=2.0, dtype=torch.float32)
    return logits, inputs.integers(torch.arange(inputs.batch)), table


def linear(inputs: Inputs, name: str, weights: str) -> tuple[Any, ...]:
    """x, weight as it is stored, bias; gate and residual as the decoder has them for few rows."""
    columns = linear_columns(inputs.shape, name)
    outputs = (inputs.shape.head if name == "head" else inputs.shape.matrices[name]) // columns
    weight: Any = inputs.random(outputs, columns, std=0.02)
    if weights != "bf16":
        from tangram_engine.quantize import quantize  # noqa: PLC0415

        weight = quantize(weight, weights)
    x = inputs.random(inputs.batch, columns)
    residual = inputs.random(inputs.batch, outputs) if name in ("o", "down") else None
    if inputs.batch > SMALL_LINEAR_ROWS:
        return x, weight, None, residual
    return x, weight, None, name == "gate_up", residual


def linear_columns(shape: DecoderShape, name: str) -> int:
    """What a projection multiplies with."""
    return {"o": shape.heads * shape.head_dim, "down": shape.intermediate}.get(name, shape.hidden)


def cases(batches: tuple[int, ...]) -> list[KernelCase]:
    """All kernels at all batch sizes that they serve."""
    return [case for batch in batches for case in (*_of_a_layer(batch), *_linears(batch), *_sampler(batch))]


def _of_a_layer(batch: int) -> Iterator[KernelCase]:
    yield KernelCase("rms_norm", "rms_norm", batch, rms_norm, sweep=(256,))
    if batch > SMALL_LINEAR_ROWS:
        yield KernelCase("silu_mul", "silu_mul", batch, silu_mul, sweep=(256,))
        yield KernelCase("fp8_rows", "fp8_rows", batch, fp8_rows, "fp8", sweep=(256,))
    yield KernelCase("store_kv", "store_kv", batch, store_kv, sweep=(256,))
    yield KernelCase(
        "decode_attention", "decode_attention", batch, decode_attention, scratch=(3,), sweep=(1, 64, 256)
    )


def _linears(batch: int) -> Iterator[KernelCase]:
    if batch <= SMALL_LINEAR_ROWS:
        for name in LLAMA_8B.matrices:
            for weights in FORMATS:
                build = partial(linear, name=name, weights=weights)
                sweep = (1, 8) if name in ("qkv", "gate_up") else ()
                yield KernelCase("small_linear", f"linear {name}", batch, build, weights, sweep=sweep)
        yield KernelCase("small_linear", "linear head", batch, partial(linear, name="head", weights="bf16"))
    elif batch <= INT4_GEMM_ROWS:
        for name in LLAMA_8B.matrices:
            build = partial(linear, name=name, weights="int4")
            sweep = (batch,) if name in ("qkv", "gate_up") else ()
            yield KernelCase("int4_gemm", f"linear {name}", batch, build, "int4", sweep=sweep)


def _sampler(batch: int) -> Iterator[KernelCase]:
    for drawn, variant in ((False, ""), (True, ", top-p")):
        build = partial(sample, drawn=drawn)
        yield KernelCase("sample", "sample", batch, build, variant=variant, dtype=torch.float32)
