"""Bytes of every tensor on one rank: from the checkpoint's headers where they are there, else by formula."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tangram.catalog import InputError
from tangram.catalog.models.architecture import Architecture, StoredTensor
from tangram.catalog.models.layer_parts import LayerGroup
from tangram.catalog.models.precision import PRECISIONS, Precision, precision
from tangram.catalog.models.tensors import Shard, Tensor, TensorKind

OTHER_BYTES = 2  # per parameter outside the decoder: vision towers are not quantised
SMALL_BLOCK = 32  # of mxfp4; engines pad to it


@dataclass(frozen=True, slots=True)
class RankTensor:
    """`tensor` as one rank of a group holds it."""

    tensor: Tensor
    shape: tuple[int, ...]
    precision: str
    nbytes: int  # of all `tensor.count`, scales and zeros included

    @property
    def elements(self) -> int:
        """Weights of all of them on this rank."""
        return self.tensor.count * math.prod(self.shape)


def rank_tensors(
    architecture: Architecture, weights: Precision, tensor_parallel: int
) -> tuple[RankTensor, ...]:
    """Every tensor of the decoder on one rank, by formula."""
    return tuple(_on_rank(architecture, tensor, weights, tensor_parallel) for tensor in architecture.tensors)


def weight_bytes(
    architecture: Architecture, weights: Precision, tensors: tuple[RankTensor, ...], tensor_parallel: int
) -> dict[TensorKind, int]:
    """Bytes of each kind on one rank; `tensors` are those of `rank_tensors`.

    The stored bytes win where the weights are served as they are stored.
    """
    if architecture.stored_tensors is not None and _is_stored_as(architecture, weights):
        return _stored_bytes(architecture.stored_tensors, tensors, tensor_parallel)
    sizes: dict[TensorKind, int] = {}
    for part in tensors:
        sizes[part.tensor.kind] = sizes.get(part.tensor.kind, 0) + part.nbytes
    if architecture.other_parameters:
        sizes[TensorKind.OTHER] = architecture.other_parameters * OTHER_BYTES
    return sizes


def stored_bytes(architecture: Architecture) -> int:
    """Bytes of the checkpoint's files: what engines load, and drafts."""
    form = precision(architecture.precision)
    tensors = rank_tensors(architecture, form, 1)
    drafts = (_on_rank(architecture, tensor, form, 1).nbytes for tensor in architecture.draft_tensors)
    return sum(weight_bytes(architecture, form, tensors, 1).values()) + sum(drafts)


def check_split(architecture: Architecture, weights: Precision, tensor_parallel: int) -> None:
    """Raise `InputError` where a group of this size cannot share the model, as engines refuse it."""
    tp, name = tensor_parallel, architecture.name
    if tp < 1:
        raise InputError("tensor parallel", f"{tp} is not a number of GPUs")
    for group in architecture.groups:
        heads, kv_heads = _heads(group)
        if heads % tp:
            raise InputError("tensor parallel", f"{tp} does not divide the {heads} heads of {name}")
        if kv_heads % tp and tp % kv_heads:
            raise InputError("tensor parallel", f"{tp} and {kv_heads} KV heads of {name}: neither divides")
        for size in (group.intermediate_size, group.expert_intermediate_size, group.shared_intermediate_size):
            if size % tp:
                raise InputError("tensor parallel", f"{tp} does not divide the MLP size {size} of {name}")
            _check_blocks(weights, size, tp, name)


def _heads(group: LayerGroup) -> tuple[int, int]:
    """Query and KV heads that ranks share; of a layer without attention, the heads of its state."""
    if group.attention is not None:
        return group.attention.heads, group.attention.kv_heads
    return (group.recurrent.heads, group.recurrent.heads) if group.recurrent else (0, 1)


def _check_blocks(weights: Precision, size: int, tp: int, name: str) -> None:
    """A group of features that shares a scale lies on one rank. Engines pad only the small groups of FP4."""
    group = weights.group or 1
    if tp > 1 and SMALL_BLOCK < group <= size and size // tp % group:
        raise InputError(
            "tensor parallel",
            f"{tp} cuts the MLP size {size} of {name} within a block of {group} ({weights.name})",
        )


def _on_rank(architecture: Architecture, tensor: Tensor, weights: Precision, tp: int) -> RankTensor:
    shape = tensor.on_rank(tp)
    rows, columns = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, shape[0])
    shares = _stored_formats(architecture, tensor) if weights.name == architecture.quantization else ()
    if shares:
        total = sum(count for _, count in shares)
        nbytes = sum(count * form.bytes_of(rows, columns) for form, count in shares)
        return RankTensor(tensor, shape, shares[0][0].name, tensor.count * nbytes // total)
    stays = not tensor.quantisable or tensor.kind in architecture.unquantised
    stored = _sixteen_bits(architecture) if weights.quantised and stays else weights
    return RankTensor(tensor, shape, stored.name, tensor.count * stored.bytes_of(rows, columns))


def _stored_formats(architecture: Architecture, tensor: Tensor) -> tuple[tuple[Precision, int], ...]:
    """Formats of the tensors of this name and shape, most of them first, with their numbers."""
    shares = [
        (precision(module.precision), module.count)
        for module in architecture.module_formats
        if (module.name, module.shape) == (tensor.name, tensor.shape)
    ]
    return tuple(sorted(shares, key=lambda share: -share[1]))


def _sixteen_bits(architecture: Architecture) -> Precision:
    """What quantised models leave alone; engines serve it in 16 bits even where it is stored in fp32."""
    return PRECISIONS["bf16" if architecture.dtype == "fp32" else architecture.dtype]


def _is_stored_as(architecture: Architecture, weights: Precision) -> bool:
    stored = precision(architecture.precision)
    return stored.name == weights.name or (stored.bits == weights.bits == 16)


def _stored_bytes(
    stored: tuple[StoredTensor, ...], tensors: tuple[RankTensor, ...], tp: int
) -> dict[TensorKind, int]:
    shares = _shares(tensors)
    sizes: dict[TensorKind, float] = {}
    for tensor in stored:
        kind = kind_of(tensor.name)
        share = shares.get(_module(tensor.name), shares.get(kind, 1.0)) if tp > 1 else 1.0
        sizes[kind] = sizes.get(kind, 0.0) + tensor.nbytes * share
    return {kind: math.ceil(size) for kind, size in sizes.items()}


def _shares(tensors: tuple[RankTensor, ...]) -> Mapping[str, float]:
    """Part that one rank holds, by module (`q_proj`) and by kind, for modules without a formula."""
    whole: dict[str, int] = {}
    part: dict[str, int] = {}
    for rank_tensor in tensors:
        keys = {str(rank_tensor.tensor.kind)}
        if rank_tensor.tensor.shard is not Shard.REPLICATED or len(rank_tensor.shape) == 2:
            keys.add(_module(rank_tensor.tensor.name))
        for key in keys:
            whole[key] = whole.get(key, 0) + rank_tensor.tensor.elements
            part[key] = part.get(key, 0) + rank_tensor.elements
    return {key: part[key] / whole[key] for key in whole}


def _module(name: str) -> str:
    """`model.layers.*.self_attn.q_proj.qweight` -> `self_attn.q_proj`, experts marked as such."""
    return ".".join(name.split(".")[-3:-1]) if ".experts." not in name else "experts." + name.split(".")[-2]


_KINDS = (
    (TensorKind.OTHER, re.compile(r"vision|visual|audio|multi_modal|projector")),
    (TensorKind.EMBEDDING, re.compile(r"(^|\.)embed_tokens\.")),
    (TensorKind.HEAD, re.compile(r"(^|\.)lm_head\.")),
    (TensorKind.ROUTER, re.compile(r"\.(shared_expert_gate|mlp\.gate|mlp\.router|block_sparse_moe\.gate)\.")),
    (TensorKind.SHARED_EXPERT, re.compile(r"\.shared_experts?\.")),
    (TensorKind.EXPERT, re.compile(r"\.experts\.")),
    (TensorKind.NORM, re.compile(r"(norm|layernorm)\.(weight|bias)$")),
    (TensorKind.ATTENTION, re.compile(r"\.self_attn\.|\.mixer\.[qkvo]_proj\.")),
    (TensorKind.RECURRENT, re.compile(r"\.(linear_attn|mamba|mixer)\.")),
    (TensorKind.MLP, re.compile(r"\.mlp\.")),
)


def kind_of(name: str) -> TensorKind:
    """Return the kind of a stored tensor, by its name."""
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), TensorKind.OTHER)
