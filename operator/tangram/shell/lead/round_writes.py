"""Run the writes of one round concurrently: namespaces in turn, for a bounded time, only while leading."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import chain, zip_longest
from typing import Any, TypeVar

from tangram.shell.lead.lease import NotLeader

Item = TypeVar("Item")
Result = TypeVar("Result")

CONCURRENCY = 8  # writes at once
ROUND_WRITE_S = 10.0
"""For how long a round starts writes of one kind. The rest is left to the next round, with a new plan."""

NOT_BEGUN: Any = object()  # instead of the result of a write
_NO_ITEM: Any = object()


async def write_in_turn(
    items: Iterable[Item],
    namespace: Callable[[Item], str],
    write: Callable[[Item], Awaitable[Result]],
    clock: Callable[[], float],
) -> tuple[list[Result], bool]:
    """Return the results of `write` in order, and whether it was called for all items: none begins after
    ROUND_WRITE_S. Raises NotLeader once all writes that had begun have ended.
    """
    slots, until = asyncio.Semaphore(CONCURRENCY), clock() + ROUND_WRITE_S
    refusals: list[NotLeader] = []

    async def write_in_time(item: Item) -> Any:  # a Result or NOT_BEGUN
        async with slots:
            if refusals or clock() > until:
                return NOT_BEGUN
            try:
                return await write(item)
            except NotLeader as refusal:
                refusals.append(refusal)
                return NOT_BEGUN

    results = await asyncio.gather(*map(write_in_time, _round_robin(items, namespace)))
    if refusals:
        raise refusals[0]
    begun = [result for result in results if result is not NOT_BEGUN]
    return begun, len(begun) == len(results)


def _round_robin(items: Iterable[Item], namespace: Callable[[Item], str]) -> list[Item]:
    """Order `items` so that namespaces alternate; within one their order stays. A namespace with thousands of
    LLMDeployments delays each item of another namespace by at most as many items as that one has.
    """
    by_namespace: dict[str, list[Item]] = {}
    for item in items:
        by_namespace.setdefault(namespace(item), []).append(item)
    ordered = chain.from_iterable(zip_longest(*by_namespace.values(), fillvalue=_NO_ITEM))
    return [item for item in ordered if item is not _NO_ITEM]
