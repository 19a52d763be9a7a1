"""From safetensors to the packed tensors that the decoder multiplies with."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from tangram_engine.checkpoint import EMBEDDING, HEAD, Checkpoint, ModelSpec
from tangram_engine.models.linear import Linear


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Projections that share their input are one, side by side."""

    input_norm: Tensor  # [hidden]
    qkv: Linear  # hidden -> (heads + 2 kv_heads) D
    q_norm: Tensor | None  # [D]
    k_norm: Tensor | None  # [D]
    out: Linear  # heads D -> hidden
    post_norm: Tensor  # [hidden]
    gate_up: Linear  # hidden -> 2 intermediate
    down: Linear  # intermediate -> hidden


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights of a model. With tied embeddings, `head` multiplies with `embedding`."""

    embedding: Tensor  # [vocabulary, hidden]
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [hidden]
    head: Linear  # hidden -> vocabulary


class Source(Protocol):
    """Where tensors come from by name."""

    def __call__(self, name: str) -> Tensor:
        """The tensor as stored."""
        ...


def load_weights(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> Weights:
    """Read every tensor once, straight into its place on the device."""
    with ExitStack() as stack:
        files: dict[Any, Any] = {
            file: stack.enter_context(safe_open(file, framework="pt")) for file in checkpoint.files
        }

        def source(name: str) -> Tensor:
            tensor: Tensor = files[checkpoint.tensors[name].file].get_tensor(name)
            return tensor

        return assemble(checkpoint.spec, source, dtype, device)


def assemble(spec: ModelSpec, source: Source, dtype: torch.dtype, device: torch.device) -> Weights:
    """Pack the tensors of `source` in the way the decoder wants them."""

    def packed(*names: str) -> Tensor:
        parts = [source(name) for name in names]
        rows = sum(part.shape[0] for part in parts)
        whole = torch.empty(rows, *parts[0].shape[1:], dtype=dtype, device=device)
        for part, place in zip(parts, whole.split_with_sizes([part.shape[0] for part in parts]), strict=True):
            place.copy_(part)
        return whole

    def layers() -> Iterator[LayerWeights]:
        for index in range(spec.layers):
            at = f"model.layers.{index}"
            qkv = [f"{at}.self_attn.{name}_proj" for name in "qkv"]
            yield LayerWeights(
                input_norm=packed(f"{at}.input_layernorm.weight"),
                qkv=Linear(
                    packed(*(f"{name}.weight" for name in qkv)),
                    packed(*(f"{name}.bias" for name in qkv)) if spec.attention_bias else None,
                ),
                q_norm=packed(f"{at}.self_attn.q_norm.weight") if spec.qk_norm else None,
                k_norm=packed(f"{at}.self_attn.k_norm.weight") if spec.qk_norm else None,
                out=Linear(packed(f"{at}.self_attn.o_proj.weight")),
                post_norm=packed(f"{at}.post_attention_layernorm.weight"),
                gate_up=Linear(packed(f"{at}.mlp.gate_proj.weight", f"{at}.mlp.up_proj.weight")),
                down=Linear(packed(f"{at}.mlp.down_proj.weight")),
            )

    embedding = packed(EMBEDDING)
    return Weights(
        embedding=embedding,
        layers=tuple(layers()),
        norm=packed("model.norm.weight"),
        head=Linear(embedding if spec.tied_embeddings else packed(HEAD)),
    )
