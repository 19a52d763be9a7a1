"""config.json as inspect Jobs report it: compressed, since a termination message has 4,096 bytes."""

import base64
import binascii
import json
import zlib
from functools import lru_cache

from tangram.catalog.configs.model_config import architecture_from_config
from tangram.catalog.models.architecture import Architecture
from tangram.catalog.reading.errors import InputError

MOST_BYTES = 1 << 20  # of a config.json
_WHERE = "config.json"


@lru_cache(maxsize=512)
def architecture_of(compressed: str) -> Architecture:
    """Return the decoder of a compressed config.json, named by its class. Raises `InputError`."""
    try:
        stream = zlib.decompressobj()
        text = stream.decompress(base64.b64decode(compressed, validate=True), MOST_BYTES)
        config = json.loads(text)
    except (ValueError, binascii.Error, zlib.error, RecursionError) as error:
        raise InputError(_WHERE, f"cannot be read from the report: {type(error).__name__}") from error
    if stream.unconsumed_tail or not isinstance(config, dict):
        raise InputError(_WHERE, f"is no object of at most {MOST_BYTES} bytes")
    names = config.get("architectures")
    name = str(names[0])[:128] if isinstance(names, list) and names else ""
    return architecture_from_config(config, name)
