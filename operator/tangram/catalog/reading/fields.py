"""Checked access to a JSON object from a user or a model hub."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tangram.catalog.reading.errors import InputError

LARGEST = 10**9  # no size in a config.json is near it; keeps products printable
_REQUIRED = object()


@dataclass(frozen=True, slots=True)
class Fields:
    """`values` as found under `where` ("config.json"); every getter raises `InputError` naming the key."""

    values: Mapping[str, Any]
    where: str

    def error(self, key: str, problem: str) -> InputError:
        """Return the error about one key."""
        return InputError(f"{self.where}: {_plain(key)}", problem)

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.values.get(key) is not None

    def size(self, key: str, default: Any = _REQUIRED, minimum: int = 1, maximum: int = LARGEST) -> int:
        """Return a whole number from `minimum` to `maximum`."""
        value = self.values.get(key)
        if value is None:
            if default is _REQUIRED:
                raise self.error(key, "is missing")
            value = default
        if not _is_whole(value) or not minimum <= value <= maximum:
            raise self.error(key, f"is {short(value)}, not a whole number from {minimum} to {maximum}")
        return int(value)

    def sizes(self, key: str) -> tuple[int, ...]:
        """Return a list of whole numbers from 0; empty where the key is not there."""
        sizes = self._list(key, lambda item: _is_whole(item) and item >= 0, "whole numbers")
        return tuple(int(item) for item in sizes)

    def ratio(self, key: str, default: float) -> float:
        """Return a number above 0 and at most 1,000,000."""
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e6:
            raise self.error(key, f"is {short(value)}, not a number above 0 and at most 1000000")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"is {short(value)}, not true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        value = self.values.get(key, default)
        if not isinstance(value, str):
            raise self.error(key, "is missing" if value is None else f"is {short(value)}, not a string")
        return value

    def names(self, key: str) -> tuple[str, ...]:
        """Return a list of strings; empty where the key is not there."""
        return tuple(self._list(key, lambda item: isinstance(item, str), "strings"))

    def under(self, key: str) -> "Fields | None":
        """Return the object under a key, None where there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(key, f"is {short(value)}, not an object")
        return Fields(value, f"{self.where}: {_plain(key)}")

    def entry(self, key: str, index: int) -> "Fields":
        """Return the object at a place of a list."""
        entries = self.values.get(key)
        if not isinstance(entries, list | tuple) or index >= len(entries):
            raise self.error(key, f"has no entry {index}" if entries is not None else "is missing")
        if not isinstance(entries[index], Mapping):
            raise self.error(key, f"has at {index} {short(entries[index])}, not an object")
        return Fields(entries[index], f"{self.where}: {_plain(key)}: {index}")

    def _list(self, key: str, is_valid: Callable[[Any], bool], items: str) -> Sequence[Any]:
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or not all(map(is_valid, value)):
            raise self.error(key, f"is {short(value)}, not a list of {items}")
        return value


def _plain(key: str) -> str:
    """Return a key of untrusted input on one line."""
    return key if key.isprintable() and len(key) <= 200 else short(key)


def _is_whole(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value) and value % 1 == 0
    return isinstance(value, int) and not isinstance(value, bool)


def short(value: object) -> str:
    """Return a value of the input, cut to what fits into one line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def shortened(names: Sequence[str], most: int = 3) -> str:
    """Return the first `most` names, and how many more there are: `a, b and 3 more`."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
