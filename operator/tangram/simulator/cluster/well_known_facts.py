"""What an inspect Job would report of a checkpoint of a well-known model."""

from dataclasses import replace

from tangram.capacity.memory.from_facts import architecture_from_facts
from tangram.catalog import Architecture, InputError
from tangram.catalog.models.precision import precision
from tangram.fleet import CheckpointFacts


def well_known_facts(architecture: Architecture) -> CheckpointFacts:
    """Return the facts of a dense decoder. Raises `InputError` for models that facts cannot describe."""
    group = architecture.groups[0]
    attention = group.attention
    uniform = all(replace(other, count=group.count) == group for other in architecture.groups)
    dense = attention is not None and not attention.latent and not group.experts and not group.recurrent
    if attention is None or not uniform or not dense or architecture.quantization:
        raise InputError(architecture.name, "is no dense decoder of alike layers in 16 or 32 bits")
    element = precision(architecture.dtype).bits // 8
    parameters = architecture.parameters
    facts = CheckpointFacts(
        architecture=architecture.name,
        digest=f"well-known:{architecture.name}:{parameters}",
        dtype=architecture.dtype,
        layers=architecture.layers,
        hidden_size=architecture.hidden_size,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        vocab_size=architecture.vocab_size,
        max_position_embeddings=architecture.max_position_embeddings,
        parameters=parameters,
        weight_bytes=parameters * element,
        embedding_bytes=architecture.vocab_size * architecture.hidden_size * element,
        tied_embeddings=architecture.tied_embeddings,
        attention_bias=attention.bias,
        qk_norm=attention.qk_norm,
    )
    if architecture_from_facts(facts).parameters != parameters:
        raise InputError(architecture.name, "has tensors that the facts of a checkpoint do not tell apart")
    return facts
