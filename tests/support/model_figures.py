"""Figures of models that tests compare with published or measured ones."""

from tangram.capacity.memory.footprint import Footprint, footprint
from tangram.capacity.memory.from_facts import architecture_from_facts
from tangram.catalog import Architecture
from tangram.catalog.models.layer_parts import LayerGroup
from tangram.fleet import CheckpointFacts


def footprint_from_facts(facts: CheckpointFacts) -> Footprint:
    """Return what one device holds, reads and computes when the bundled engine serves the checkpoint.

    The engine keeps weights, activations and KV cache in the data type that most weights are stored in.
    """
    return footprint(architecture_from_facts(facts), facts.dtype, kv=facts.dtype)


def active_parameters(architecture: Architecture) -> int:
    """Return those a generated token is multiplied with: chosen experts, the head, not the input embedding.

    The convention of the gpt-oss model card; other cards add the input embedding.
    """
    embedding = 0 if architecture.tied_embeddings else architecture.vocab_size * architecture.hidden_size
    idle = sum(
        group.count
        * (group.experts - group.experts_per_token)
        * _expert_elements(architecture.hidden_size, group)
        for group in architecture.groups
    )
    return architecture.parameters - architecture.other_parameters - embedding - idle


def _expert_elements(hidden: int, group: LayerGroup) -> int:
    inner = group.expert_intermediate_size
    matrices = (3 if group.gated else 2) * hidden * inner
    biases = (2 if group.gated else 1) * inner + hidden
    return matrices + (biases if group.expert_bias else 0)
