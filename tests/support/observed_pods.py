"""The pods of a cluster as a watch shows them: simulated kubelets list them once, not five times a second."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from tangram.kube.client import CHANGES, ApiClient, ApiError, WatchEvent
from tangram.kube.kinds import PODS

RETRY_S = 0.2  # from the end of a watch until the pods are listed again


@dataclass
class ObservedPods:
    """The pods of all namespaces by UID; empty until they are listed.

    `on_change`: called after every change. A watch shows each change of a pod, in the order of the writes.
    """

    client: ApiClient
    by_uid: dict[str, dict[str, Any]] = field(default_factory=dict)
    on_change: list[Callable[[], None]] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Follow the pods during the block, through failures of the API server."""
        task = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(ApiError):
                await self._list_and_watch()
            await asyncio.sleep(RETRY_S)

    async def _list_and_watch(self) -> None:
        listing = await self.client.list(PODS)
        self.by_uid = {pod["metadata"]["uid"]: pod for pod in listing.items}
        self._changed()
        async with contextlib.aclosing(self.client.watch(PODS, listing.resource_version)) as events:
            async for event in events:
                if event.type == "ERROR":  # the version has expired: the pods are listed again
                    return
                if event.type in CHANGES:
                    self._take(event)

    def _take(self, event: WatchEvent) -> None:
        uid = event.object["metadata"]["uid"]
        if event.type == "DELETED":
            self.by_uid.pop(uid, None)
        else:
            self.by_uid[uid] = event.object
        self._changed()

    def _changed(self) -> None:
        for call in self.on_change:
            call()
