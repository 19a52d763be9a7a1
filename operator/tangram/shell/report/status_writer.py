"""Writes statuses: only those that changed, each on its own, by server-side apply on the status
subresource.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tangram.shell.api_server.client import ApiClient, ApiError, Guard
from tangram.shell.api_server.retry_delays import RetrySchedule
from tangram.shell.lead.lease import NotLeader
from tangram.shell.lead.write_order import ROUND_WRITE_S, round_robin
from tangram.shell.measure.fault_log import Failed, name_of
from tangram.shell.objects.kinds import LLM_DEPLOYMENTS, Kind, Object, key_of, uid_of
from tangram.shell.watch.expectations import Expectations

log = logging.getLogger(__name__)

STATUS = "tangram-status"
CONCURRENCY = 8
_UNDECLARED = re.compile(r"(?:^|[ :])\.status((?:\.\w+)+): field not declared in schema")


@dataclass(frozen=True, slots=True)
class NewStatus:
    """What the status of `obj` (as observed) should be."""

    obj: Object
    status: Object
    kind: Kind = LLM_DEPLOYMENTS


@dataclass(slots=True)
class StatusWriter:
    """Remembers what it sent, so that a status which the API server stores differently is not sent for
    ever.
    """

    client: ApiClient
    guard: Guard
    expectations: Expectations
    retries: RetrySchedule
    clock: Callable[[], float]
    written: Callable[[], None] = lambda: None  # told after each write, refused ones too
    failed: Failed = lambda _step, _what, _uid, _error: None  # told of each bug that a write brings out
    unfinished: bool = False  # the last round ended before all was written
    _sent: dict[str, tuple[Object, Object]] = field(default_factory=dict)  # uid -> (sent, stored)
    _refused: dict[str, str] = field(default_factory=dict)  # uid -> why, as it was logged
    _undeclared: set[tuple[str, str]] = field(default_factory=set)  # kind and field, as they were logged

    async def write(self, statuses: list[NewStatus]) -> list[NewStatus]:
        """Write what changed, namespaces in turn; return what was written. What is not begun within
        ROUND_WRITE_S is left to the next round.
        """
        slots, until = asyncio.Semaphore(CONCURRENCY), self.clock() + ROUND_WRITE_S
        self.unfinished = False

        async def one(new: NewStatus) -> NewStatus | None:
            async with slots:
                if self.clock() > until:
                    self.unfinished = True
                    return None
                try:
                    done = await self._write_one(new)
                except NotLeader:
                    raise
                except Exception as error:  # noqa: BLE001 - a bug of ours costs this object alone
                    self.retries.record_failure(_key(new), self.clock())
                    self.failed("status", name_of(new.obj), "", error)
                    return None
                self.written()
                return new if done else None

        turns = round_robin(filter(self._needed, statuses), lambda new: key_of(new.obj)[0])
        written = await asyncio.gather(*(one(new) for new in turns))
        return [new for new in written if new is not None]

    def forget(self, living: set[str]) -> None:
        """Forget objects that are gone."""
        for known in (self._sent, self._refused):
            for gone in known.keys() - living:
                del known[gone]

    def clear(self) -> None:
        """Forget everything (a new term of leadership)."""
        self._sent.clear()

    def _needed(self, new: NewStatus) -> bool:
        stored = new.obj.get("status") or {}
        if stored == new.status or self._sent.get(uid_of(new.obj)) == (new.status, stored):
            return False
        return not self.retries.blocked(_key(new), self.clock())

    async def _write_one(self, new: NewStatus) -> bool:
        meta, kind = new.obj["metadata"], new.kind
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {key: meta[key] for key in ("name", "namespace", "uid") if key in meta},
            "status": new.status,
        }
        try:
            result, whole = await self._apply(kind, body)
        except ApiError as error:
            if error.status == 404 or (error.status == 409 and "uid" in error.message.lower()):
                return False  # deleted, or deleted and created again: the mirror will tell
            self.retries.record_failure(_key(new), self.clock(), error.retry_after_s)
            self._tell(new, error)
            return False
        self._refused.pop(uid_of(new.obj), None)
        self.expectations.expect_write(kind, result, self.clock())
        if whole:
            self.retries.record_success(_key(new))
            self._sent[uid_of(new.obj)] = (new.status, result.get("status") or {})
        else:  # the rest is tried again: CRDs may be upgraded at any time
            self.retries.record_failure(_key(new), self.clock())
        return True

    async def _apply(self, kind: Kind, body: Object) -> tuple[Object, bool]:
        """Apply, without the fields that an older CRD does not have; say whether all of it was taken."""
        whole = True
        while True:
            try:
                result = await self.client.apply(
                    kind, body, manager=STATUS, force=True, subresource="status", guard=self.guard
                )
            except ApiError as error:
                found = _UNDECLARED.search(error.message)
                path = found[1].split(".")[1:] if found else []
                less = _without(body["status"], path)
                if less == body["status"]:
                    raise
                self._tell_undeclared(kind, ".".join(path))
                body, whole = body | {"status": less}, False
            else:
                return result, whole

    def _tell_undeclared(self, kind: Kind, path: str) -> None:
        if (kind.kind, path) not in self._undeclared:
            self._undeclared.add((kind.kind, path))
            log.warning(
                "the CRD of %s is older than this operator and has no status.%s: statuses go without it until"
                " CRDs are upgraded",
                kind.kind,
                path,
            )

    def _tell(self, new: NewStatus, error: ApiError) -> None:
        """Log a refusal, but not the same one again and again."""
        if self._refused.get(uid_of(new.obj)) != str(error):
            self._refused[uid_of(new.obj)] = str(error)
            log.warning("status of %s %s: %s", new.kind.kind, "/".join(filter(None, key_of(new.obj))), error)


def _key(new: NewStatus) -> str:
    return f"status {uid_of(new.obj)}"


def _without(status: Object, path: Sequence[str]) -> Object:
    """Return the status without one field; as it is where there is no such field."""
    if not path or path[0] not in status:
        return status
    key, *rest = path
    if not rest:
        return {name: value for name, value in status.items() if name != key}
    inner = status[key]
    return status | {key: _without(inner, rest)} if isinstance(inner, dict) else status
