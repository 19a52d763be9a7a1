"""A request's JSON to the values that its pydantic model reads; what the model does not name is skipped.

msgspec decides how a value is built (strings, integers, arrays of them, objects of a nested model), pydantic
decides afterwards whether it is allowed. No field costs more than its bytes.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, TypedDict, get_args, get_origin

import msgspec
from pydantic import BaseModel

from .jsonio import ObjectDecoder, decode_value

SMALL_VALUE = 16 << 10  # bytes of a number or an object
# Bounded, so that the first integer of thousands of digits ends its array instead of being converted.
_Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Leaf = str | _Int64 | bool | None
_Items = list[_Leaf | list[_Leaf]]  # of type parameters at most one may be an array: arrays go two deep
_ANY = msgspec.json.Decoder()
_STRING = msgspec.json.Decoder(str)
# An object or array of a field that is not supported: whether it is empty is all that matters.
_Refused = _Leaf | list[msgspec.Raw] | dict[str, msgspec.Raw]


class InvalidField(ValueError):
    """A value that the field cannot take; `path` as a client would write it: messages.0.content."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


class RequestDecoder:
    """From bytes to the members of one request model."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._decoder = ObjectDecoder(_names(model))
        self._arrays = {
            name: msgspec.json.Decoder(_array_type(field.annotation))
            for name, field in model.model_fields.items()
            if _holds(field.annotation, list)
        }
        self._read = frozenset(model.model_fields)

    def decode(self, raw: bytes) -> dict[str, Any]:
        """The members that the model knows. Raises Malformed or InvalidField."""
        return {name: self._value(name, value) for name, value in self._decoder.decode(raw).items()}

    def _value(self, name: str, raw: msgspec.Raw) -> Any:
        first = bytes(memoryview(raw)[:1])
        try:
            if first == b'"' and name in self._read:
                return decode_value(_STRING, raw)
            if first == b"[" and name in self._arrays:
                return decode_value(self._arrays[name], raw)
            if len(memoryview(raw)) > SMALL_VALUE:
                if name not in self._read:
                    return raw  # equal to none of the values that ask for nothing
                raise InvalidField(name, f"a value of this kind has at most {SMALL_VALUE} bytes")
            return decode_value(_ANY, raw)
        except msgspec.ValidationError as error:
            message, _, path = str(error).partition(" - at ")
            raise InvalidField(name + _dotted(path), message) from None


def _dotted(path: str) -> str:
    """`$[0].content` as `.0.content`, in backquotes or not."""
    return path.strip("`").removeprefix("$").replace("[", ".").replace("]", "")


def _names(model: type[BaseModel]) -> list[str]:
    unsupported: Iterable[str] = getattr(model, "unsupported", ())
    return sorted({*model.model_fields, *unsupported})


def _array_type(annotation: Any) -> Any:
    nested = next(_models(annotation), None)
    return _Items if nested is None else list[_object_type(nested) | _Leaf]  # type: ignore[misc]


def _object_type(model: type[BaseModel]) -> Any:
    members: dict[str, Any] = dict.fromkeys(_names(model), _Refused)
    for name, field in model.model_fields.items():
        holds_array = _holds(field.annotation, list)
        members[name] = _Leaf | _array_type(field.annotation) if holds_array else _Leaf
    return TypedDict(model.__name__, members, total=False)  # type: ignore[operator]


def _parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for argument in get_args(annotation):
        yield from _parts(argument)


def _holds(annotation: Any, kind: type) -> bool:
    return any(get_origin(part) is kind for part in _parts(annotation))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    return (part for part in _parts(annotation) if isinstance(part, type) and issubclass(part, BaseModel))
