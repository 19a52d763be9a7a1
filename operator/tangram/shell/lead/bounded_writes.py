"""Run the writes of one round concurrently: namespaces in turn, for a bounded time, only while leading."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from tangram.shell.lead.lease import NotLeader
from tangram.shell.lead.write_order import ROUND_WRITE_S, round_robin

Item = TypeVar("Item")
Result = TypeVar("Result")

CONCURRENCY = 8  # writes at once


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

    async def begin(item: Item) -> tuple[Result, ...]:
        async with slots:
            if refusals or clock() > until:
                return ()
            try:
                return (await write(item),)
            except NotLeader as refusal:
                refusals.append(refusal)
                return ()

    results = await asyncio.gather(*(begin(item) for item in round_robin(items, namespace)))
    if refusals:
        raise refusals[0]
    return [result for begun in results for result in begun], all(results)
