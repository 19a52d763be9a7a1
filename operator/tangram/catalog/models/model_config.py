"""From a Hugging Face config.json to an `Architecture`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tangram.catalog.models.architecture import NO_VISION, Architecture
from tangram.catalog.models.families import FAMILIES, Family, layer_groups
from tangram.catalog.models.precision import ALIASES
from tangram.catalog.models.quantization import with_quantization
from tangram.catalog.reading.fields import Fields

CONFIG = "config.json"


def architecture_from_config(config: Mapping[str, Any], name: str, where: str = CONFIG) -> Architecture:
    """Return the decoder that a config.json describes. Raises `InputError` naming the key."""
    whole = Fields(config, where)
    family = FAMILIES[_family(whole)]
    fields = _decoder(whole, family)
    found = Architecture(
        name=name,
        hidden_size=fields.size("hidden_size"),
        vocab_size=fields.size("vocab_size"),
        groups=layer_groups(family, fields),
        tied_embeddings=_tied(whole, fields, family),
        max_position_embeddings=fields.size("max_position_embeddings"),
        dtype=_dtype(whole, fields),
        unquantised=family.unquantised,
        source=where,
        unverified=(NO_VISION,) if whole.has("vision_config") else (),
    )
    return with_quantization(found, whole.under("quantization_config"))


def _family(fields: Fields) -> str:
    found = fields.names("architectures")
    if not found:
        raise fields.error("architectures", "is missing")
    if found[0] not in FAMILIES:
        raise fields.error("architectures", f"{found[0]!r} is not supported; known are {', '.join(FAMILIES)}")
    return found[0]


def _decoder(whole: Fields, family: Family) -> Fields:
    fields = whole
    if family.under is not None:
        inner = whole.under(family.under)
        if inner is None:
            raise whole.error(family.under, "is missing")
        fields = inner
    return replace(fields, values={**family.defaults, **fields.values})


def _tied(whole: Fields, fields: Fields, family: Family) -> bool:
    holder = whole if whole.has("tie_word_embeddings") else fields
    return holder.flag("tie_word_embeddings", default=family.tied)


def _dtype(whole: Fields, fields: Fields) -> str:
    """A config without one is of bf16 weights: what most published checkpoints of these families hold."""
    places = [(holder, key) for holder in (whole, fields) for key in ("dtype", "torch_dtype")]
    holder, key = next((place for place in places if place[0].has(place[1])), places[0])
    found = holder.text(key, "bfloat16")
    if found not in {"bfloat16", "float16", "float32"}:
        raise holder.error(key, f"{found!r} is not bfloat16, float16 or float32")
    return ALIASES[found]
