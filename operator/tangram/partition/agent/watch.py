"""The GPUNode and the Node of an agent, followed by watches: what begins a round at once.

A watch asks for one object by its name, resumes at the resourceVersion of its last event or bookmark, and
begins anew where the API server no longer knows that one. One that says nothing for `SILENCE_S` is ended.
Copies of the objects stand in for reads in rounds in which nothing is due, and for nothing else.
"""

import json
import logging
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from tangram.partition.agent.cluster import ClusterFailure, WatchExpired

SILENCE_S = 90.0  # the API server sends a bookmark each minute
LASTS_S = 300  # until the API server ends a watch, which is then resumed
FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 60.0  # before the next watch, after one that did not last
STEADY_S = 10.0  # a watch that lasts longer did last
log = logging.getLogger(__name__)


class WatchSource(Protocol):
    """Where the events of a watch come from."""

    def watch(
        self, kind: str, version: str | None, *, lasts_s: int, silence_s: float
    ) -> AbstractContextManager[Iterator[bytes]]:
        """Return the lines of a watch on this node's object of a kind, after a resourceVersion.

        Raises `WatchExpired` where the version is too old, and `ClusterFailure`.
        """


@dataclass(slots=True)
class ObjectWatch:
    """One object as its watch shows it. `follow` runs in a thread of its own."""

    source: WatchSource
    kind: str  # GPUNode or Node
    name: str
    changed: Callable[[], None]
    wait: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    silence_s: float = SILENCE_S
    _copy: dict[str, Any] | None = field(default=None, init=False)
    _is_current: bool = field(default=False, init=False)  # a stream continues the copy
    _version: str | None = field(default=None, init=False)
    _seen: Any = field(default=None, init=False)  # what a round depends on, in the last event
    _delay_s: float = field(default=FIRST_DELAY_S, init=False)
    _has_failed: bool = field(default=False, init=False)

    @property
    def copy(self) -> dict[str, Any] | None:
        """The object; None where it is not known at the moment."""
        return self._copy if self._is_current else None

    def follow(self) -> None:
        """Watch for ever."""
        while True:
            self.watch_once()

    def watch_once(self) -> None:
        """Watch until the stream ends; after one that did not last, wait before the next one may begin."""
        began = self.clock()
        try:
            self._watch()
        except WatchExpired:
            self._version, self._copy = None, None
        except ClusterFailure as error:
            log.log(logging.DEBUG if self._has_failed else logging.WARNING, "%s: watching again", error)
            self._has_failed = True
        self._is_current = False
        if self.clock() - began >= STEADY_S:
            self._delay_s = FIRST_DELAY_S
            return
        self.wait(self._delay_s * (0.5 + self._spread()))
        self._delay_s = min(2 * self._delay_s, LONGEST_DELAY_S)

    def _watch(self) -> None:
        lasts_s = LASTS_S + round(60 * self._spread())
        with self.source.watch(self.kind, self._version, lasts_s=lasts_s, silence_s=self.silence_s) as lines:
            self._is_current = True
            for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            event = json.loads(line)
            kind, obj = event["type"], event["object"]
            if kind == "ERROR":
                failure = WatchExpired if obj.get("code") == 410 else ClusterFailure
                raise failure(f"watching the {self.kind}: {obj.get('code')}: {obj.get('message')}")
            meta = obj["metadata"]
            version = str(meta["resourceVersion"])
            if kind != "BOOKMARK" and meta["name"] != self.name:
                raise ClusterFailure(f"watching the {self.kind}: an event of {meta['name']}")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ClusterFailure(f"watching the {self.kind}: no event: {error!r}") from error
        self._version, self._has_failed = version, False
        if kind == "BOOKMARK":
            return
        is_deleted = kind == "DELETED"
        self._copy = None if is_deleted else _without_ballast(obj)
        seen = None if is_deleted else _what_rounds_depend_on(obj)
        if seen != self._seen:
            self._seen = seen
            self.changed()

    def _spread(self) -> float:
        """Return a number from 0 to 1 by the node, so that agents do not call all at once."""
        return zlib.crc32(f"{self.kind}/{self.name}".encode()) / 2**32


class NodeWatch:
    """The watches of the GPUNode and the Node of one node."""

    def __init__(self, source: WatchSource, name: str, changed: Callable[[], None]) -> None:
        self._watches = [ObjectWatch(source, kind, name, changed) for kind in ("GPUNode", "Node")]

    def start(self) -> None:
        """Begin to watch, until the process ends."""
        for each in self._watches:
            threading.Thread(target=each.follow, name=f"watch-{each.kind}", daemon=True).start()

    def copies(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return the GPUNode and the Node; None where a watch does not know its object at the moment."""
        gpu_node, node = (each.copy for each in self._watches)
        return None if gpu_node is None or node is None else (gpu_node, node)


def _what_rounds_depend_on(obj: dict[str, Any]) -> Any:
    """Return what makes a round due: neither the agent's own statuses nor a kubelet's heartbeats do."""
    meta, status = obj["metadata"], obj.get("status") or {}
    if obj.get("kind") == "GPUNode":
        return meta.get("uid"), meta.get("generation")
    boot_id = (status.get("nodeInfo") or {}).get("bootID")
    return meta.get("uid"), meta.get("labels"), status.get("allocatable"), boot_id


def _without_ballast(obj: dict[str, Any]) -> dict[str, Any]:
    """Return the object without its largest parts, which the agent does not read."""
    obj["metadata"].pop("managedFields", None)
    if isinstance(obj.get("status"), dict):
        obj["status"].pop("images", None)
    return obj
