"""From safetensors to the packed tensors that the decoder multiplies with."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from tangram_engine.checkpoint import EMBEDDING, HEAD, Checkpoint, DecoderSpec, projection_inputs
from tangram_engine.kernels.ops import Ops
from tangram_engine.kernels.rms_norm import RmsNorm
from tangram_engine.models.linear import Linear


class Projection(Protocol):
    """y = x W^T + b, whatever W is stored as, with what the decoder computes before or after it."""

    def __call__(
        self, x: Tensor, norm: RmsNorm | None = None, *, gated: bool = False, residual: Tensor | None = None
    ) -> Tensor:
        """[rows, in] -> [rows, out].

        norm: of x, before the product. gated: silu(first half) * second half of the outputs. [rows, out / 2].
        residual [rows, out], never with a gate: the product is added to it in place, and it is returned.
        """
        ...


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Projections that share their input are one, side by side."""

    input_norm: RmsNorm
    qkv: Projection  # hidden -> (heads + 2 kv_heads) D
    q_norm: Tensor | None  # [D]
    k_norm: Tensor | None  # [D]
    out: Projection  # heads D -> hidden
    post_norm: RmsNorm
    gate_up: Projection  # hidden -> 2 intermediate
    down: Projection  # intermediate -> hidden


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights of a model. With tied embeddings, `head` multiplies with `embedding`."""

    embedding: Tensor  # [vocabulary, hidden]
    layers: tuple[LayerWeights, ...]
    norm: RmsNorm
    head: Projection  # hidden -> vocabulary


_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}

TensorSource = Callable[[str], Tensor]  # a tensor as it is stored, by its name
ReadMatrix = Callable[[], tuple[Tensor, Tensor | None]]  # weight [out, in] and bias [out], on the device
# How a layer's matrices become projections: in place, quantised, or read when they are needed.
MakeProjection = Callable[[ReadMatrix, Ops], Projection]


def in_place(read: ReadMatrix, ops: Ops) -> Projection:
    """Return a projection that keeps its weight as it is stored."""
    return Linear(*read(), ops)


def load_weights(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    ops: Ops,
    make: MakeProjection = in_place,
) -> Weights:
    """Read every tensor once, straight into its place on the device."""
    return assemble(checkpoint.spec, stored_tensors(checkpoint), dtype, device, ops, make)


def stored_tensors(checkpoint: Checkpoint) -> TensorSource:
    """Tensors of a checkpoint by name, as they lie in its files, which are mapped.

    Places, shapes and dtypes are those that `read_checkpoint` has validated: a second parser of the headers
    could refuse what the first one has accepted.
    """
    ends: dict[Path, int] = {}
    for entry in checkpoint.tensors.values():
        ends[entry.file] = max(ends.get(entry.file, 0), entry.offset + entry.nbytes)
    files = {file: torch.from_file(str(file), size=end, dtype=torch.uint8) for file, end in ends.items()}

    def source(name: str) -> Tensor:
        entry = checkpoint.tensors[name]
        dtype = _DTYPES[entry.dtype]
        raw = files[entry.file][entry.offset : entry.offset + entry.nbytes]
        if entry.offset % dtype.itemsize:  # the format does not ask for aligned headers
            raw = raw.clone()
        return raw.view(dtype).view(entry.shape)

    return source


def pairs_apart(source: TensorSource, head_dim: int) -> TensorSource:
    """Queries and keys for the rotation of pairs (i, i + D/2), of those that are stored for (2 i, 2 i + 1).

    Products of queries and keys stay what they are: both have their features in another order.
    """

    def reordered(name: str) -> Tensor:
        tensor = source(name)
        if ".q_proj." not in name and ".k_proj." not in name:
            return tensor
        pairs = tensor.view(-1, head_dim // 2, 2, *tensor.shape[1:])
        return pairs.transpose(1, 2).reshape(tensor.shape)

    return reordered


def assemble(
    spec: DecoderSpec,
    source: TensorSource,
    dtype: torch.dtype,
    device: torch.device,
    ops: Ops,
    make: MakeProjection = in_place,
) -> Weights:
    """Pack the tensors of `source` as the decoder needs them. The head stays as it is stored."""
    if spec.interleaved_rotation:
        source = pairs_apart(source, spec.head_dim)
    packing = _Packing(spec, source, dtype, device, ops, make)
    embedding = packing.packed(EMBEDDING)
    return Weights(
        embedding=embedding,
        layers=tuple(packing.layer(f"model.layers.{index}") for index in range(spec.layers)),
        norm=packing.norm("model.norm"),
        head=Linear(embedding if spec.tied_embeddings else packing.packed(HEAD), None, ops),
    )


@dataclass(frozen=True, slots=True)
class _Packing:
    """Stored tensors by name, put together on the device as the decoder multiplies with them."""

    spec: DecoderSpec
    source: TensorSource
    dtype: torch.dtype
    device: torch.device
    ops: Ops
    make: MakeProjection

    def packed(self, *names: str) -> Tensor:
        """These tensors, one below the other."""
        parts = [self.source(name) for name in names]
        rows = [part.shape[0] for part in parts]
        whole = torch.empty(sum(rows), *parts[0].shape[1:], dtype=self.dtype, device=self.device)
        for part, place in zip(parts, whole.split_with_sizes(rows), strict=True):
            place.copy_(part)
        return whole

    def norm(self, name: str) -> RmsNorm:
        """The norm of a module."""
        return RmsNorm(self.packed(f"{name}.weight"), self.spec.rms_norm_eps)

    def project(self, *names: str, bias: bool = False) -> Projection:
        """The modules that share their input as one projection."""

        def read() -> tuple[Tensor, Tensor | None]:
            weight = self.packed(*(f"{name}.weight" for name in names))
            return weight, self.packed(*(f"{name}.bias" for name in names)) if bias else None

        return self.make(read, self.ops)

    def layer(self, at: str) -> LayerWeights:
        """The layer with this prefix."""
        qkv, gate_up = projection_inputs(self.spec)
        heads_normed = self.spec.qk_norm
        return LayerWeights(
            input_norm=self.norm(f"{at}.input_layernorm"),
            qkv=self.project(*(f"{at}.self_attn.{name}" for name in qkv), bias=self.spec.attention_bias),
            q_norm=self.packed(f"{at}.self_attn.q_norm.weight") if heads_normed else None,
            k_norm=self.packed(f"{at}.self_attn.k_norm.weight") if heads_normed else None,
            out=self.project(f"{at}.self_attn.o_proj"),
            post_norm=self.norm(f"{at}.post_attention_layernorm"),
            gate_up=self.project(*(f"{at}.mlp.{name}" for name in gate_up)),
            down=self.project(f"{at}.mlp.down_proj"),
        )
