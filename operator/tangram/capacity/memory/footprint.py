"""What one rank of a replica holds, reads and computes: the input of the step-time model.

Ranks of a tensor-parallel group share each layer, stages of a pipeline share the layers. Stages differ: the
first has the input embedding, the last the head, and some have a layer more. A footprint is that of the
heaviest one, which every other waits for.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tangram.capacity.hardware import Hardware
from tangram.capacity.memory.weights import RankTensor, check_split, rank_tensors, weight_bytes
from tangram.catalog import InputError
from tangram.catalog.models.architecture import Architecture
from tangram.catalog.models.layer_parts import Attention, LayerGroup
from tangram.catalog.models.precision import Precision, kv_bytes, precision
from tangram.catalog.models.tensors import TensorKind

ALL_REDUCE_BYTES = 2  # activations cross the link in 16 bits whatever the weights are
_OUTSIDE_LAYERS = (TensorKind.EMBEDDING, TensorKind.HEAD, TensorKind.OTHER)


Reaches = tuple[tuple[float, float], ...]  # per kind of layer: FLOP per query and key, keys of its window


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes and FLOP of ONE rank, for one precision. Made by `footprint()`."""

    tensor_parallel: int
    layers: int  # of its stage
    hidden_size: int
    vocab_size: int
    weight_bytes: int  # resident on the rank: embeddings, heads, every expert, scales and zeros
    dense_read_bytes: int  # read by every step at any batch; of the input embedding only a tied head
    expert_read_bytes: int  # all routed experts of the rank (0: a dense model)
    experts: int  # routed experts per MoE layer (0: dense)
    experts_per_token: int
    # KV cache: (bytes per token, window in tokens or None for full attention), one entry per kind of layer
    kv: tuple[tuple[int, int | None], ...]
    linear_flops_per_token: float  # 2 x active parameters of the body's matrices (no head)
    head_flops_per_token: float  # once per sampled token, not per prompt token
    attention_flops: tuple[tuple[float, int | None], ...]  # FLOP per (token, context token) with its window
    compute: str  # data type of the matrix products: a key of `Hardware.flops`
    all_reduce_bytes_per_token: int  # of one all-reduce: hidden size x bytes; two per layer
    dequantised_bytes: int = 0  # largest projection in 16 bits: the engine's buffer for quantised weights
    state_bytes: int = 0  # of one request, whatever its length: state-space and linear-attention layers
    rope_dim: int = 128  # features of a head that turn with the position: the width of the engine's table
    pipeline_parallel: int = 1  # stages of the replica

    @property
    def ranks(self) -> int:
        """GPUs of the replica."""
        return self.tensor_parallel * self.pipeline_parallel

    def kv_bytes(self, tokens: float) -> float:
        """Bytes of cache that one request of `tokens` holds: a windowed layer keeps its window only."""
        held: float = 0
        for per_token, window in self.kv:  # each simulated step asks: no generator
            held += per_token * (window if window and window < tokens else tokens)
        return self.state_bytes + held

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache that the first tokens of a request take each, before any window is full."""
        return sum(per_token for per_token, _ in self.kv)

    def weight_read_bytes(self, tokens: float) -> float:
        """Bytes of weights that a step of `tokens` tokens reads: an expert is read if any token chose it."""
        if not self.experts:
            return float(self.dense_read_bytes)
        untouched: float = (1 - self.experts_per_token / self.experts) ** tokens
        return self.dense_read_bytes + self.expert_read_bytes * (1 - untouched)

    def attention_flops_of(self, tokens: float, context: float) -> float:
        """FLOP of `tokens` queries against `context` keys each (mean)."""
        return sum(tokens * per_pair * reach for per_pair, reach in self.reaches(context))

    def reaches(self, context: float) -> Reaches:
        """Return what one query costs that attends to `context` keys, by kind of layer."""
        return tuple(
            [
                (flops, window if window and window < context else context)
                for flops, window in self.attention_flops
            ]
        )


def footprint(
    architecture: Architecture,
    weights: str,
    kv: str = "bf16",
    tensor_parallel: int = 1,
    hardware: Hardware | None = None,
    pipeline_parallel: int = 1,
) -> Footprint:
    """Return what one rank holds, reads and computes.

    `weights` names a format of `catalog.precision`, `kv` is bf16, fp16 or fp8. Without `hardware` the
    format's best data type is assumed. Raises `InputError` where the ranks cannot share the model or the GPU
    cannot compute it.
    """
    form, element = precision(weights), kv_bytes(kv)
    check_split(architecture, form, tensor_parallel)
    check_stages(architecture, pipeline_parallel)
    compute = compute_type(form, hardware)  # before any tensor is counted
    tensors = rank_tensors(architecture, form, tensor_parallel)
    experts = max(architecture.groups, key=lambda group: group.experts)
    stage = on_stage(architecture, pipeline_parallel)
    share = stage.layers / architecture.layers
    held = _of_layers(weight_bytes(architecture, form, tensors, tensor_parallel), share)
    # One row of the input embedding is read per token: next to nothing. A vision tower runs once per image.
    idle = {TensorKind.EXPERT, TensorKind.OTHER} | (
        set() if architecture.tied_embeddings else {TensorKind.EMBEDDING}
    )
    return Footprint(
        tensor_parallel=tensor_parallel,
        layers=stage.layers,
        hidden_size=architecture.hidden_size,
        vocab_size=architecture.vocab_size,
        weight_bytes=sum(held.values()) - (_on_another_stage(held) if pipeline_parallel > 1 else 0),
        dense_read_bytes=sum(size for kind, size in held.items() if kind not in idle),
        expert_read_bytes=held.get(TensorKind.EXPERT, 0),
        experts=experts.experts,
        experts_per_token=experts.experts_per_token,
        kv=_kv(stage, element, tensor_parallel),
        linear_flops_per_token=2 * _active_elements(tensors, experts) * share,
        head_flops_per_token=2 * _head_elements(architecture, tensors),
        attention_flops=_attention_flops(stage, tensor_parallel),
        compute=compute,
        all_reduce_bytes_per_token=architecture.hidden_size * ALL_REDUCE_BYTES,
        dequantised_bytes=_largest_projection(architecture) // tensor_parallel * 2 if form.quantised else 0,
        rope_dim=max(
            (attention.rope_dim or attention.head_dim for _, attention in _attending(architecture)),
            default=128,
        ),
        # Inputs of convolutions have the type of the activations, whatever the KV cache has.
        state_bytes=_state_bytes(stage, max(2, element), tensor_parallel),
        pipeline_parallel=pipeline_parallel,
    )


def check_stages(architecture: Architecture, pipeline_parallel: int) -> None:
    """Raise `InputError` where a pipeline of so many stages cannot share the layers."""
    layers, name = architecture.layers, architecture.name
    if not 1 <= pipeline_parallel <= layers:
        problem = f"{pipeline_parallel} stages cannot share the {layers} layers of {name}"
        raise InputError("pipeline parallel", problem)


def on_stage(architecture: Architecture, stages: int) -> Architecture:
    """Return the layers of the heaviest stage: of each kind its share, rounded up."""
    groups = (replace(group, count=-(-group.count // stages)) for group in architecture.groups)
    return architecture if stages == 1 else replace(architecture, groups=tuple(groups))


def _of_layers(held: Mapping[TensorKind, int], share: float) -> dict[TensorKind, int]:
    """Return the bytes by kind with a share of the layers."""
    return {kind: size if kind in _OUTSIDE_LAYERS else math.ceil(size * share) for kind, size in held.items()}


def _on_another_stage(held: Mapping[TensorKind, int]) -> int:
    """Bytes that the heaviest stage does not hold: the smaller of input embedding and head. A tied one is on
    the first stage and on the last.
    """
    return min(held.get(TensorKind.EMBEDDING, 0), held.get(TensorKind.HEAD, 0))


def compute_type(form: Precision, hardware: Hardware | None) -> str:
    """Return the data type of the matrix products on this GPU. Raises `InputError` where it lacks all.

    Every GPU computes in fp32; data sheets have no rate for its matrix products, so 16 bits is the bound.
    """
    if hardware is None or form.name == "fp32":
        return form.compute[0]
    for kind in form.compute:
        if hardware.flops_of(kind) is not None:
            return kind
    raise InputError("precision", f"{hardware.sku} cannot compute {form.name}: it lacks {form.compute[0]}")


def _kv(architecture: Architecture, element: int, tp: int) -> tuple[tuple[int, int | None], ...]:
    by_window: dict[int | None, int] = {}
    for group, attention in _attending(architecture):
        per_token = element * _cached_elements(attention, tp) + attention.index_bytes
        by_window[attention.window] = by_window.get(attention.window, 0) + group.count * per_token
    return tuple((per_token, window) for window, per_token in by_window.items())


def _attending(architecture: Architecture) -> Iterator[tuple[LayerGroup, Attention]]:
    return ((group, group.attention) for group in architecture.groups if group.attention is not None)


def _cached_elements(attention: Attention, tp: int) -> int:
    """Elements per token on one rank. A latent is shared by all heads: every rank keeps it."""
    if attention.latent is not None or attention.shares_cache:
        return attention.kv_elements
    return -(-attention.kv_heads // tp) * (attention.head_dim + attention.v_head_dim)


def _state_bytes(architecture: Architecture, element: int, tp: int) -> int:
    """Bytes of the states of one request on one rank: ranks share their heads."""
    return sum(
        group.count * -(-group.recurrent.cache_bytes(element) // tp)
        for group in architecture.groups
        if group.recurrent is not None
    )


def _largest_projection(architecture: Architecture) -> int:
    """Elements of the largest matrix of a layer; what shares an input is one: q, k and v, gate and up."""
    largest = 0
    for group in architecture.groups:
        attention = group.attention
        qkv = attention.heads * attention.head_dim + attention.kv_elements if attention else 0
        mlp = 2 * max(group.intermediate_size, group.shared_intermediate_size, group.expert_intermediate_size)
        largest = max(largest, qkv, mlp)
    return largest * architecture.hidden_size


def _active_elements(tensors: tuple[RankTensor, ...], experts: LayerGroup) -> float:
    share = experts.experts_per_token / experts.experts if experts.experts else 0.0
    body = 0.0
    for part in tensors:
        if len(part.shape) == 2 and part.tensor.kind not in {TensorKind.EMBEDDING, TensorKind.HEAD}:
            body += part.elements * (share if part.tensor.kind is TensorKind.EXPERT else 1.0)
    return body


def _head_elements(architecture: Architecture, tensors: tuple[RankTensor, ...]) -> int:
    kind = TensorKind.EMBEDDING if architecture.tied_embeddings else TensorKind.HEAD
    return sum(part.elements for part in tensors if part.tensor.kind is kind)


def _attention_flops(architecture: Architecture, tp: int) -> tuple[tuple[float, int | None], ...]:
    """Two products per head and pair; MLA as decode does it, on the latent (weights absorbed)."""
    by_window: dict[int | None, float] = {}
    for group, attention in _attending(architecture):
        widths = attention.head_dim + attention.v_head_dim
        if attention.latent is not None:
            widths = 2 * attention.latent + attention.rope_dim
        flops = 2.0 * group.count * (attention.heads / tp) * widths
        by_window[attention.window] = by_window.get(attention.window, 0.0) + flops
    return tuple((per_pair, window) for window, per_pair in by_window.items())
