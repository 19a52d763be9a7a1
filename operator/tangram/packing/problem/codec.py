"""Nouns as JSON and back: field for field, so that what is saved and read again gives the same plan."""

import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from tangram.catalog import InputError

Noun = TypeVar("Noun")
Spelling = Callable[[str], str]  # of fields; `str`: as the noun has them


@cache
def camel(name: str) -> str:
    """Spell a field as Kubernetes objects do: `created_at` is `createdAt`."""
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def to_json(value: object, spelling: Spelling = str) -> Any:
    """Return a noun as what `json` can write. Fields that have their default are left out."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [to_json(item, spelling) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        document = {}
        for name, spelled, default in _written(type(value), spelling):
            field_value = getattr(value, name)
            if field_value != default:
                document[spelled] = to_json(field_value, spelling)
        return document
    return value


def from_json(kind: type[Noun], document: object, where: str = "", spelling: Spelling = str) -> Noun:
    """Return the noun that `document` describes. Raises `InputError` with the key path of what is wrong."""
    read: Noun = _read(kind, document, where, spelling)
    return read


def _read(kind: Any, value: object, where: str, spelling: Spelling) -> Any:
    origin = get_origin(kind)
    if origin is tuple or hasattr(kind, "_fields"):
        return _tuple(kind, value, where, spelling)
    if origin in {Union, types.UnionType}:
        if value is None and type(None) in get_args(kind):
            return None
        return _read(_which(get_args(kind), value, spelling), value, where, spelling)
    if origin is Literal:
        return _one_of(get_args(kind), value, where)
    if is_dataclass(kind):
        return _noun(kind, value, where, spelling)
    return _scalar(kind, value, where)


def _which(kinds: tuple[Any, ...], value: object, spelling: Spelling) -> Any:
    """Return the kind that a value is meant to be: of several nouns the first that knows all of its keys."""
    some = [kind for kind in kinds if kind is not type(None)]
    keys = set(value) if isinstance(value, Mapping) else set()
    fit = (kind for kind in some if is_dataclass(kind) and keys <= _keys(kind, spelling))
    return next(fit, some[0])


def _noun(kind: Any, value: object, where: str, spelling: Spelling) -> Any:
    if not isinstance(value, Mapping):
        raise InputError(where or kind.__name__, f"must be a mapping, is {_short(value)}")
    names = _known(kind, spelling)
    unknown = sorted(str(key) for key in value if key not in names)
    if unknown:
        raise InputError(_path(where, unknown[0]), f"unknown key; {kind.__name__} has {', '.join(names)}")
    entries = {names[key]: (key, entry) for key, entry in value.items()}
    absent = [f.name for f in fields(kind) if _default(f) is MISSING and f.name not in entries]
    if absent:
        raise InputError(_path(where, spelling(absent[0])), "is required")
    hints = _hints(kind)
    read = {n: _read(hints[n], entry, _path(where, key), spelling) for n, (key, entry) in entries.items()}
    return kind(**read)


def _tuple(kind: Any, value: object, where: str, spelling: Spelling) -> Any:
    """Return a tuple. A NamedTuple is written as one, without the names."""
    if get_origin(kind) is tuple:
        return _sequence(get_args(kind), value, where, spelling)
    return kind(*_sequence(tuple(_hints(kind).values()), value, where, spelling))


def _sequence(kinds: tuple[Any, ...], value: object, where: str, spelling: Spelling) -> tuple[Any, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InputError(where, f"must be a list, is {_short(value)}")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_read(kinds[0], item, f"{where}[{i}]", spelling) for i, item in enumerate(value))
    if len(value) != len(kinds):
        raise InputError(where, f"must have {len(kinds)} entries, has {len(value)}")
    pairs = enumerate(zip(kinds, value, strict=True))
    return tuple(_read(kind, item, f"{where}[{i}]", spelling) for i, (kind, item) in pairs)


def _one_of(allowed: Sequence[Any], value: object, where: str) -> Any:
    if value not in allowed:
        raise InputError(where, f"{_short(value)} is none of {', '.join(map(str, allowed))}")
    return value


def _scalar(kind: Any, value: object, where: str) -> Any:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(_one_of([member.value for member in kind], value, where))
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise InputError(where, f"{_short(value)} is not a finite number")
        return number
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise InputError(where, f"must be {_NAMES.get(kind, kind.__name__)}, is {_short(value)}")
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _default(field: "Field[Any]") -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


@cache
def _written(kind: type, spelling: Spelling) -> tuple[tuple[str, str, Any], ...]:
    return tuple((field.name, spelling(field.name), _default(field)) for field in fields(kind))


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _known(kind: Any, spelling: Spelling) -> dict[str, str]:
    """Return the fields of a noun by their spelling."""
    return {spelling(field.name): field.name for field in fields(kind)}


def _keys(kind: Any, spelling: Spelling) -> set[str]:
    return set(_known(kind, spelling))


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


_PLAIN = frozenset((str, int, float, bool, type(None)))
_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
