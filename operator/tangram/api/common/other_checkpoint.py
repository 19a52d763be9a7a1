"""Facts of a checkpoint that only other runtimes serve, from its config.json."""

from tangram.catalog.configs.compressed import architecture_of
from tangram.fleet import CheckpointFacts


def facts_from_config(config: str, digest: str, weight_bytes: int, why: str) -> CheckpointFacts:
    """Return the facts that a compressed config.json implies. `why`: the refusal of the bundled engine.

    Numbers of layers that differ among each other are those of the first group with attention. Raises
    `InputError` for a model that no formula counts.
    """
    architecture = architecture_of(config)
    attention = next((group.attention for group in architecture.groups if group.attention), None)
    heads, kv_heads, head_dim = (
        (attention.heads, attention.kv_heads, attention.head_dim) if attention else (1, 1, 1)
    )
    table = architecture.vocab_size * architecture.hidden_size
    return CheckpointFacts(
        architecture=architecture.name,
        digest=digest,
        dtype=architecture.dtype,
        layers=architecture.layers,
        hidden_size=architecture.hidden_size,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=architecture.vocab_size,
        max_position_embeddings=architecture.max_position_embeddings,
        parameters=architecture.parameters,
        weight_bytes=weight_bytes,
        embedding_bytes=2 * table,
        tied_embeddings=architecture.tied_embeddings,
        attention_bias=bool(attention and attention.bias),
        qk_norm=bool(attention and attention.qk_norm),
        refused_by_engine=why,
        config=config,
    )
