"""Convert mirrored objects one by one; an object that cannot be converted is reported and left out. Pure."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tangram.kube.kinds import Object

T = TypeVar("T")

SkipHandler = Callable[[Object, Exception], None]
"""Called with each object that could not be converted, and the error."""


def ignore_skipped(_obj: Object, _error: Exception) -> None:
    """Report nothing."""


def convert_each(
    objects: Iterable[Object], convert: Callable[[Object], T], on_skipped: SkipHandler
) -> Iterator[T]:
    """Convert each object on its own: an error in one object of one namespace must not end the round."""
    for obj in objects:
        try:
            converted = convert(obj)
        except Exception as error:  # noqa: BLE001 - `on_skipped` counts and logs it
            on_skipped(obj, error)
        else:
            yield converted


def living(objects: Iterable[Object]) -> list[Object]:
    """Return the objects that are not being deleted."""
    return [obj for obj in objects if not obj["metadata"].get("deletionTimestamp")]


def integer_or_zero(value: object) -> int:
    """Return an integer field, 0 where it is none."""
    return value if isinstance(value, int) else 0


def count_of(value: object) -> int:
    """Return a count of replicas or devices. Raises ValueError for what the API server would not store."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise ValueError(f"{str(value)[:40]!r} is not a count of replicas")
    return value
