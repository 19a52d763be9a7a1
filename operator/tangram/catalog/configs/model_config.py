"""Read an `Architecture` from a Hugging Face config.json."""

import difflib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tangram.catalog.configs.families import FAMILIES, Family, layers_of
from tangram.catalog.configs.quantization import with_quantization
from tangram.catalog.models.architecture import NO_VISION, Architecture
from tangram.catalog.models.layer_parts import LayerGroup
from tangram.catalog.models.precision import ALIASES
from tangram.catalog.reading.fields import Fields, short

CONFIG = "config.json"
# Beside `vision_config`: parts of a model that no formula counts.
_OTHER_PARTS = ("audio_config", "speech_config", "encoder_config")


def architecture_from_config(config: Mapping[str, Any], name: str, where: str = CONFIG) -> Architecture:
    """Return the decoder that a config.json describes. Raises `InputError` naming the key."""
    whole = Fields(config, where)
    family = FAMILIES[_family(whole)]
    fields = _decoder(whole, family)
    layers = layers_of(family, fields)
    architecture = Architecture(
        name=name,
        hidden_size=fields.size("hidden_size"),
        vocab_size=fields.size("vocab_size"),
        groups=_grouped(layers),
        tied_embeddings=_tied(whole, fields, family),
        max_position_embeddings=_context(fields),
        dtype=_dtype(whole, fields),
        unquantised=family.unquantised,
        other_parameters=_tower(whole, fields, family),
        extra_tensors=family.tensors(fields),
        draft_tensors=family.draft(fields, layers[-1]),
        engine_family=family.in_engine and _rotates_in_engine(fields, family),
        source=where,
        unverified=(NO_VISION,) if _is_partly_counted(whole, family) else (),
    )
    scheme = next(filter(None, (holder.under("quantization_config") for holder in (whole, fields))), None)
    return with_quantization(architecture, scheme, layers, family.module_names)


def _grouped(layers: tuple[LayerGroup, ...]) -> tuple[LayerGroup, ...]:
    """Equal layers together, in the order in which their kinds first appear."""
    return tuple(replace(layer, count=times) for layer, times in Counter(layers).items())


def _family(fields: Fields) -> str:
    names = fields.names("architectures")
    if not names:
        raise fields.error("architectures", "is missing")
    if names[0] not in FAMILIES:
        near = difflib.get_close_matches(names[0][:100], FAMILIES, n=3, cutoff=0.5) or list(FAMILIES)[:3]
        raise fields.error(
            "architectures",
            f"{short(names[0])} is not supported; of {len(FAMILIES)} known the nearest are {', '.join(near)}",
        )
    return names[0]


def _decoder(whole: Fields, family: Family) -> Fields:
    """Return the decoder's part. Older multimodal configs have its keys beside those of the tower."""
    fields = whole
    if family.under is not None and not (whole.has("hidden_size") and not whole.has(family.under)):
        inner = whole.under(family.under)
        if inner is None:
            raise whole.error(family.under, "is missing")
        fields = inner
    return replace(fields, values={**family.defaults, **fields.values})


def _tied(whole: Fields, fields: Fields, family: Family) -> bool:
    holder = whole if whole.has("tie_word_embeddings") else fields
    return holder.flag("tie_word_embeddings", default=family.tied)


def _context(fields: Fields) -> int:
    """Tokens of the longest request. YaRN stretches the positions of the training, as in vLLM."""
    positions = fields.size("max_position_embeddings")
    for key in ("rope_scaling", "rope_parameters"):
        rope = fields.under(key)
        if rope is not None and "yarn" in {
            rope.text(name) for name in ("rope_type", "type") if rope.has(name)
        }:
            original = "original_max_position_embeddings"  # in transformers, the one beside the block wins
            trained = fields.size(original, rope.size(original, positions))
            return int(trained * rope.ratio("factor", 1.0))
    return positions


def _rotates_in_engine(fields: Fields, family: Family) -> bool:
    """Whether the bundled engine has the rotary embedding of this config."""
    blocks = [rope for key in ("rope_scaling", "rope_parameters") if (rope := fields.under(key)) is not None]
    kinds = {rope.values.get("rope_type") or rope.values.get("type") or "default" for rope in blocks}
    whole = all(holder.ratio("partial_rotary_factor", 1.0) == 1.0 for holder in (fields, *blocks))
    return whole and kinds <= set(family.engine_rotations)


def _tower(whole: Fields, fields: Fields, family: Family) -> int:
    vision = whole.under("vision_config")
    return 0 if vision is None or family.tower is None else family.tower(vision, fields)


def _is_partly_counted(whole: Fields, family: Family) -> bool:
    missing = whole.has("vision_config") and family.tower is None
    return missing or any(whole.has(part) for part in _OTHER_PARTS)


def _dtype(whole: Fields, fields: Fields) -> str:
    """A config without one is of bf16 weights: what most published checkpoints of these families hold."""
    places = [(holder, key) for holder in (whole, fields) for key in ("dtype", "torch_dtype")]
    holder, key = next((place for place in places if place[0].has(place[1])), places[0])
    dtype = holder.text(key, "bfloat16")
    if dtype not in {"bfloat16", "float16", "float32"}:
        raise holder.error(key, f"{dtype!r} is not bfloat16, float16 or float32")
    return ALIASES[dtype]
