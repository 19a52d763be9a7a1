"""Whose objects are written first: namespaces take turns, and a round writes for a bounded time. Pure."""

from collections.abc import Callable, Iterable
from itertools import chain, zip_longest
from typing import TypeVar

T = TypeVar("T")

ROUND_WRITE_S = 10.0
"""How long a round begins writes of one kind. What is left comes in the next round, which sees new wishes."""

_NONE = object()


def in_turn(items: Iterable[T], namespace: Callable[[T], str]) -> list[T]:
    """Order `items` so that namespaces take turns; within one their order stays. A namespace with thousands
    of LLMDeployments delays another by no more than the other has itself.
    """
    by_namespace: dict[str, list[T]] = {}
    for item in items:
        by_namespace.setdefault(namespace(item), []).append(item)
    turns = chain.from_iterable(zip_longest(*by_namespace.values(), fillvalue=_NONE))
    return [item for item in turns if item is not _NONE]  # type: ignore[misc]
