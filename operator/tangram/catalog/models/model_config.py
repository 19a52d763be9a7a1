"""Read an `Architecture` from a Hugging Face config.json."""

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
    architecture = Architecture(
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
    return with_quantization(architecture, whole.under("quantization_config"))


def _family(fields: Fields) -> str:
    names = fields.names("architectures")
    if not names:
        raise fields.error("architectures", "is missing")
    if names[0] not in FAMILIES:
        raise fields.error("architectures", f"{names[0]!r} is not supported; known are {', '.join(FAMILIES)}")
    return names[0]


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
    dtype = holder.text(key, "bfloat16")
    if dtype not in {"bfloat16", "float16", "float32"}:
        raise holder.error(key, f"{dtype!r} is not bfloat16, float16 or float32")
    return ALIASES[dtype]
