"""Sampling parameters of requests that set none: what generation_config.json recommends, as vLLM reads it."""

import logging
from pathlib import Path

import msgspec

from tangram_engine.checkpoint.config_values import GENERATION_CONFIG
from tangram_engine.checkpoint.files import exists, read_bytes, strict_object
from tangram_engine.validation import whole_numbers_as_integers

from .bounded_values import MinP, RepetitionPenalty, Temperature, TokenCount, TopK, TopP

logger = logging.getLogger(__name__)

_LIMIT = 1 << 20  # bytes


class SamplingDefaults(msgspec.Struct, frozen=True):
    """The fields of generation_config.json that vLLM heeds, within the bounds of requests."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    max_new_tokens: TokenCount | None = None  # the longest answer, whatever a request asks for


def read_defaults(directory: Path, source: str) -> SamplingDefaults:
    """The defaults of a checkpoint; none with source "vllm".

    A value that a request could not have is ignored with a warning: it is a recommendation. Raises
    CheckpointError for a file that is no JSON object.
    """
    if source == "vllm" or not exists(directory, GENERATION_CONFIG):
        return SamplingDefaults()
    config = strict_object(read_bytes(directory, GENERATION_CONFIG, _LIMIT), GENERATION_CONFIG)
    recommended = {}
    for field in msgspec.structs.fields(SamplingDefaults):
        try:
            value = msgspec.convert(whole_numbers_as_integers(config.get(field.name)), field.type)
        except msgspec.ValidationError as error:
            logger.warning("%s: %s is ignored: %s", GENERATION_CONFIG, field.name, error)
        else:
            if value is not None:
                recommended[field.name] = value
    if recommended:
        logger.info("defaults of %s: %s (--generation-config vllm: none)", GENERATION_CONFIG, recommended)
    return SamplingDefaults(**recommended)
