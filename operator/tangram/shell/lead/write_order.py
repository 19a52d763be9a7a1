"""The order of writes in a round: namespaces alternate, and a round writes for a bounded time. Pure."""

from collections.abc import Callable, Iterable
from itertools import chain, zip_longest
from typing import TypeVar

T = TypeVar("T")

ROUND_WRITE_S = 10.0
"""For how long a round starts writes of one kind. The rest is left to the next round, with a new plan."""

_NONE = object()


def round_robin(items: Iterable[T], namespace: Callable[[T], str]) -> list[T]:
    """Order `items` so that namespaces alternate; within one their order stays. A namespace with thousands of
    LLMDeployments delays each item of another namespace by at most as many items as that one has.
    """
    by_namespace: dict[str, list[T]] = {}
    for item in items:
        by_namespace.setdefault(namespace(item), []).append(item)
    ordered = chain.from_iterable(zip_longest(*by_namespace.values(), fillvalue=_NONE))
    return [item for item in ordered if item is not _NONE]  # type: ignore[misc]
