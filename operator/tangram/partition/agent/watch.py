"""The GPUNode and the Node of an agent, followed by watches: what begins a round at once.

A watch asks for one object by its name, resumes at the resourceVersion of its last event or bookmark, and
begins anew where the API server no longer knows that one.
Copies of the objects stand in for reads in rounds in which nothing is due, and for nothing else.
"""

import asyncio
import contextlib
import logging
import time
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tangram.kube.client import WATCH_S, ApiError, ProgressListener, WatchEvent, failure_of
from tangram.kube.kinds import GPU_NODES, NODES, Kind, Object
from tangram.kube.retry_delays import RetryDelays

FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 60.0  # before the next watch, after one that did not last
STEADY_S = 10.0  # a watch that lasts longer did last
log = logging.getLogger(__name__)


class WatchSource(Protocol):
    """Where the events of a watch come from: an `ApiClient`."""

    def watch(
        self,
        kind: Kind,
        resource_version: str | None,
        *,
        server_timeout_s: int,
        field_selector: str,
        on_open: ProgressListener,
    ) -> AsyncGenerator[WatchEvent, None]:
        """Yield the events after a version. Raises `ApiError`, 410 where the version is too old."""


@dataclass(slots=True)
class ObjectWatch:
    """One object as its watch shows it."""

    source: WatchSource
    kind: Kind
    name: str
    changed: Callable[[], None]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic
    _copy: Object | None = field(default=None, init=False)
    _is_current: bool = field(default=False, init=False)  # a stream continues the copy
    _version: str | None = field(default=None, init=False)
    _seen: Any = field(default=None, init=False)  # what a round depends on, in the last event
    _delays: RetryDelays = field(
        default_factory=lambda: RetryDelays(FIRST_DELAY_S, LONGEST_DELAY_S), init=False
    )
    _has_failed: bool = field(default=False, init=False)

    @property
    def copy(self) -> Object | None:
        """The object; None where it is not known at the moment."""
        return self._copy if self._is_current else None

    async def follow(self) -> None:
        """Watch for ever."""
        while True:
            await self.watch_once()

    async def watch_once(self) -> None:
        """Watch until the stream ends; after one that did not last, wait before the next one may begin."""
        began = self.clock()
        try:
            await self._watch()
        except ApiError as error:
            if error.status == 410:
                self._version, self._copy = None, None
            else:
                log.log(logging.DEBUG if self._has_failed else logging.WARNING, "%s: watching again", error)
                self._has_failed = True
        finally:
            self._is_current = False
        if self.clock() - began >= STEADY_S:
            self._delays.reset()
        else:
            await self.sleep(self._delays.next_s())

    async def _watch(self) -> None:
        events = self.source.watch(
            self.kind,
            self._version,
            server_timeout_s=WATCH_S + self._spread_s(),
            field_selector=f"metadata.name={self.name}",
            on_open=self._opened,
        )
        async with contextlib.aclosing(events):
            async for event in events:
                self._take(event)

    def _opened(self) -> None:
        self._is_current = True

    def _take(self, event: WatchEvent) -> None:
        if event.type == "ERROR":
            raise failure_of(event)
        obj = event.object
        try:
            meta = obj["metadata"]
            version, name = str(meta["resourceVersion"]), meta.get("name")
            is_deleted = event.type == "DELETED"
            seen = None if is_deleted or event.type == "BOOKMARK" else _what_rounds_depend_on(obj)
        except (KeyError, TypeError, AttributeError) as error:
            raise ApiError(0, "Garbled", f"watch of {self.kind.plural}: no event: {error!r}") from error
        if event.type != "BOOKMARK" and name != self.name:
            raise ApiError(0, "Garbled", f"watch of {self.kind.plural}: an event of {name}")
        self._version, self._has_failed = version, False
        if event.type == "BOOKMARK":
            return
        self._copy = None if is_deleted else _without_ballast(obj)
        if seen != self._seen:
            self._seen = seen
            self.changed()

    def _spread_s(self) -> int:
        """Return up to a minute by the node, so that watches of agents do not all end at once."""
        return zlib.crc32(f"{self.kind.kind}/{self.name}".encode()) % 60


class NodeWatch:
    """The watches of the GPUNode and the Node of one node. `copies` may be called from another thread."""

    def __init__(self, source: WatchSource, name: str, changed: Callable[[], None]) -> None:
        self._watches = [ObjectWatch(source, kind, name, changed) for kind in (GPU_NODES, NODES)]

    async def follow(self) -> None:
        """Watch both for ever."""
        await asyncio.gather(*(each.follow() for each in self._watches))

    def copies(self) -> tuple[Object, Object] | None:
        """Return the GPUNode and the Node; None where a watch does not know its object at the moment."""
        gpu_node, node = (each.copy for each in self._watches)
        return None if gpu_node is None or node is None else (gpu_node, node)


def _what_rounds_depend_on(obj: Object) -> Any:
    """Return what makes a round due: neither the agent's own statuses nor a kubelet's heartbeats do."""
    meta, status = obj["metadata"], obj.get("status") or {}
    if obj.get("kind") == "GPUNode":
        return meta.get("uid"), meta.get("generation")
    boot_id = (status.get("nodeInfo") or {}).get("bootID")
    return meta.get("uid"), meta.get("labels"), status.get("allocatable"), boot_id


def _without_ballast(obj: Object) -> Object:
    """Return the object without its largest parts, which the agent does not read."""
    obj["metadata"].pop("managedFields", None)
    if isinstance(obj.get("status"), dict):
        obj["status"].pop("images", None)
    return obj
