"""Post Kubernetes Events (events.k8s.io/v1) about Tangram's objects. Repeated Events become a series."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from tangram.fleet import EventNote
from tangram.fleet.times import rfc3339_micro
from tangram.kube.client import ApiClient, ApiError, Guard
from tangram.kube.kinds import EVENTS, LLM_DEPLOYMENTS, Kind, Object, uid_of
from tangram.shell.lead.lease import NotLeader

log = logging.getLogger(__name__)

REPORTER = "tangram.dev/operator"
SERIES_WINDOW_S = 600.0  # a later repetition becomes a new Event
CLUSTER_NAMESPACE = "default"  # where the API requires Events about cluster-scoped objects
MAX_NOTE = 1024  # limit of events.k8s.io/v1
MAX_REMEMBERED = 4096
MAX_QUEUED = 4096

_Identity: TypeAlias = tuple[str, str, str, str]  # uid, type, reason, note


@dataclass(slots=True)
class _Posted:
    namespace: str
    name: str
    count: int
    at: float


@dataclass(slots=True)
class EventRecorder:
    """Posts Events in the background (`run`). An Event that cannot be posted is logged and dropped."""

    client: ApiClient
    guard: Guard
    instance: str  # of the operator
    now: Callable[[], float]  # seconds since the epoch
    _posted: dict[_Identity, _Posted] = field(default_factory=dict)
    _queue: asyncio.Queue[tuple[Object, EventNote, Kind]] = field(
        default_factory=lambda: asyncio.Queue(MAX_QUEUED)
    )

    def add(self, obj: Object, note: EventNote, kind: Kind = LLM_DEPLOYMENTS) -> None:
        """Queue an Event about `obj`."""
        try:
            self._queue.put_nowait((obj, note, kind))
        except asyncio.QueueFull:
            log.warning("event %s about %s dropped: the queue is full", note.reason, obj["metadata"]["name"])

    async def run(self) -> None:
        """Post queued Events in order, until cancelled."""
        while True:
            obj, note, kind = await self._queue.get()
            try:
                await self.record(obj, note, kind)
            except NotLeader:
                log.info("event %s about %s dropped: not leading", note.reason, obj["metadata"]["name"])

    async def record(self, obj: Object, note: EventNote, kind: Kind = LLM_DEPLOYMENTS) -> None:
        """Post an Event about `obj` now. A repetition within the window raises the count of its series."""
        identity = (uid_of(obj), note.type, note.reason, note.message)
        now = self.now()
        posted = self._posted.pop(identity, None)
        try:
            if posted is not None and now - posted.at < SERIES_WINDOW_S:
                await self._count(posted, now)
                self._posted[identity] = posted
            else:
                self._posted[identity] = await self._post(obj, note, kind, now)
        except ApiError as error:
            log.info("event %s about %s not posted: %s", note.reason, obj["metadata"]["name"], error)
        while len(self._posted) > MAX_REMEMBERED:
            del self._posted[next(iter(self._posted))]

    async def _post(self, obj: Object, note: EventNote, kind: Kind, now: float) -> _Posted:
        meta = obj["metadata"]
        namespace = meta["namespace"] if kind.namespaced else CLUSTER_NAMESPACE
        name = f"{meta['name']}.{secrets.token_hex(8)}"
        event = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": rfc3339_micro(now),
            "reportingController": REPORTER,
            "reportingInstance": self.instance[:128],
            "action": "Reconcile",
            "reason": note.reason[:128],
            "type": note.type,
            "note": note.message[:MAX_NOTE],
            "regarding": {
                "apiVersion": kind.api_version,
                "kind": kind.kind,
                **({"namespace": namespace} if kind.namespaced else {}),
                "name": meta["name"],
                "uid": meta["uid"],
            },
        }
        await self.client.create(EVENTS, event, manager="tangram-events", guard=self.guard)
        return _Posted(namespace, name, 1, now)

    async def _count(self, posted: _Posted, now: float) -> None:
        posted.count, posted.at = posted.count + 1, now
        series = {"series": {"count": posted.count, "lastObservedTime": rfc3339_micro(now)}}
        await self.client.merge(EVENTS, posted.namespace, posted.name, series, guard=self.guard)
