"""Fields that a request model knows and refuses: they are declared, and never read."""

from collections.abc import Callable, Mapping
from typing import ClassVar, TypeVar

import msgspec
from msgspec import Raw

from . import fields
from .fields import unsupported
from .jsonio import decode_value

SMALL_VALUE = 16 << 10  # bytes of an object that is built as it comes
R = TypeVar("R", bound="Refusing")
_NULL = Raw(b"null")


class Refusing(msgspec.Struct, kw_only=True):
    """A part of a request, some of whose known fields are refused by name: see `refuses`."""

    unsupported: ClassVar[Mapping[str, fields.Neutral]] = {}

    def __post_init__(self) -> None:
        for name, neutral in self.unsupported.items():
            value = getattr(self, name)
            if value is not _NULL and _asks(value, neutral):
                raise unsupported(name)


def _asks(raw: Raw, neutral: fields.Neutral) -> bool:
    if len(memoryview(raw)) > SMALL_VALUE:
        return True  # equal to none of the values that ask for nothing
    return fields.asks(decode_value(raw, object), neutral)


def refuses(*tables: Mapping[str, fields.Neutral]) -> Callable[[type[R]], type[R]]:
    """Add the fields of the tables to a model, whose values stay as they were written."""
    names = {name: neutral for table in tables for name, neutral in table.items()}

    def extended(model: type[R]) -> type[R]:
        return msgspec.defstruct(  # type: ignore[return-value]
            model.__name__,
            [(name, Raw, _NULL) for name in names],
            bases=(model,),
            namespace={"unsupported": names},
            kw_only=True,
        )

    return extended
