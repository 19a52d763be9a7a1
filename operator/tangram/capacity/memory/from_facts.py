"""The architecture of an inspected checkpoint (`tangram-engine inspect`)."""

from dataclasses import replace
from functools import lru_cache

from tangram.catalog.configs.compressed import architecture_of
from tangram.catalog.models.architecture import Architecture, StoredTensor
from tangram.catalog.models.layer_parts import Attention, LayerGroup
from tangram.catalog.models.precision import precision
from tangram.fleet import CheckpointFacts

MLP_SIZE = "MLP size (from the number of parameters)"  # in `Architecture.unverified`


@lru_cache(maxsize=1024)
def architecture_from_facts(facts: CheckpointFacts) -> Architecture:
    """Return the decoder whose tensors take exactly `facts.weight_bytes`.

    Facts hold no size of the MLP: it is what attention and embeddings leave of the parameters. Where that is
    no whole number (a family with tensors of its own), it is rounded and marked as unverified.
    """
    if facts.config:
        return architecture_of(facts.config)
    attention = Attention(
        heads=facts.heads,
        kv_heads=facts.kv_heads,
        head_dim=facts.head_dim,
        v_head_dim=facts.head_dim,
        bias=facts.attention_bias,
        qk_norm=facts.qk_norm,
    )
    bare = Architecture(
        name=facts.architecture,
        hidden_size=facts.hidden_size,
        vocab_size=facts.vocab_size,
        groups=(LayerGroup(facts.layers, attention, intermediate_size=0),),
        tied_embeddings=facts.tied_embeddings,
        max_position_embeddings=facts.max_position_embeddings,
        dtype=facts.dtype,
        source=f"inspected checkpoint {facts.digest[:12]}",
    )
    left = facts.parameters - bare.parameters
    per_feature = 3 * facts.layers * facts.hidden_size
    inner = max(1, round(left / per_feature))
    decoder = replace(bare, groups=(LayerGroup(facts.layers, attention, inner),))
    exact = decoder.parameters == facts.parameters
    return replace(decoder, stored_tensors=_stored(decoder, facts), unverified=() if exact else (MLP_SIZE,))


def _stored(architecture: Architecture, facts: CheckpointFacts) -> tuple[StoredTensor, ...]:
    """Tensors that add up to the inspected bytes: the largest takes what single types differ by."""
    element = precision(facts.dtype).bits // 8
    stored = [
        StoredTensor(tensor.name, facts.dtype, tensor.shape, tensor.count, tensor.elements * element)
        for tensor in architecture.tensors
    ]
    difference = facts.weight_bytes - sum(tensor.nbytes for tensor in stored)
    largest = max(range(len(stored)), key=lambda index: stored[index].nbytes)
    stored[largest] = replace(stored[largest], nbytes=stored[largest].nbytes + difference)
    return tuple(stored)
