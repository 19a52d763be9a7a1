"""Values of a checkpoint's JSON files as typed structs; a refusal names the file and the key to mend."""

from typing import Any, TypeVar

import msgspec

from tangram_engine.validation import locate, whole_numbers_as_integers

from .errors import CheckpointError, invalid

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"

T = TypeVar("T")


def read_values(values: dict[str, Any], kind: type[T], file: str, key: str = "") -> T:
    """Read an object without its nulls; `key` holds it in the file. Raises CheckpointError."""
    present = {name: whole_numbers_as_integers(value) for name, value in values.items() if value is not None}
    try:
        return msgspec.convert(present, kind)
    except msgspec.ValidationError as error:
        path, message = locate(error)
        raise bad_value(".".join(filter(None, [key, path])), message, file) from None


def bad_value(key: str, message: str, file: str = CONFIG) -> CheckpointError:
    """The refusal of one value."""
    return invalid(f"{file}: {key}: {message}")
