"""Multi-token prediction layers: checkpoints store them, engines load them for speculative decoding only."""

from collections.abc import Iterator
from dataclasses import replace

from tangram.catalog.models.layer_parts import LayerGroup
from tangram.catalog.models.layer_tensors import layer_tensors, norm
from tangram.catalog.models.tensors import Shard, Tensor, TensorKind
from tangram.catalog.reading.fields import Fields

_MOST = 16  # layers


def no_draft(_fields: Fields, _last: LayerGroup) -> tuple[Tensor, ...]:
    """Return nothing: published checkpoints of the family store no such layers."""
    return ()


def with_own_embeddings(fields: Fields, last: LayerGroup) -> tuple[Tensor, ...]:
    """Return the draft of DeepSeek-V3 and GLM-4.5: it repeats embedding and head."""
    table = (fields.size("vocab_size"), fields.size("hidden_size"))
    drafts = _count(fields)
    copies = (
        Tensor(f"model.layers.*.{name}.weight", table, kind, Shard.VOCABULARY, drafts)
        for name, kind in (("embed_tokens", TensorKind.EMBEDDING), ("shared_head.head", TensorKind.HEAD))
    )
    return (*shared_embeddings(fields, last), *copies) if drafts else ()


def shared_embeddings(fields: Fields, last: LayerGroup) -> tuple[Tensor, ...]:
    """Return the draft of GLM-5: a layer like the last one behind a projection of two inputs."""
    return tuple(_behind_projection(fields, last, "model.layers.*", "eh_proj", _count(fields)))


def qwen(fields: Fields, last: LayerGroup) -> tuple[Tensor, ...]:
    """Return the draft of Qwen3-Next and Qwen3.5: one layer with full attention."""
    return tuple(
        _behind_projection(fields, last, "mtp.layers.*", "fc", fields.size("mtp_num_hidden_layers", 1))
    )


def _count(fields: Fields) -> int:
    return fields.size("num_nextn_predict_layers", 0, minimum=0, maximum=_MOST)


def _behind_projection(
    fields: Fields, last: LayerGroup, prefix: str, projection: str, drafts: int
) -> Iterator[Tensor]:
    if not drafts:
        return
    hidden = fields.size("hidden_size")
    for tensor in layer_tensors(hidden, replace(last, count=drafts)):
        yield replace(tensor, name=tensor.name.replace("model.layers.*", prefix))
    shape = (hidden, 2 * hidden)
    yield Tensor(f"{prefix}.{projection}.weight", shape, TensorKind.OTHER, Shard.REPLICATED, drafts)
    for name in ("enorm", "hnorm", "norm"):
        yield norm(f"{prefix}.{name}", hidden, drafts)
