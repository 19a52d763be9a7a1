"""Write the statuses of LLMDeployments and GPUPools: only changed ones, fair to namespaces, with back-off."""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tangram.kube.client import ApiClient, ApiError, Guard
from tangram.kube.kinds import LLM_DEPLOYMENTS, Kind, Object, key_of, uid_of
from tangram.kube.retry_delays import RetrySchedule
from tangram.shell.lead.lease import NotLeader
from tangram.shell.lead.round_writes import write_in_turn
from tangram.shell.measure.fault_log import FaultHandler, display_name
from tangram.shell.watch.expectations import Expectations

log = logging.getLogger(__name__)

STATUS = "tangram-status"  # field manager
_UNDECLARED = re.compile(r"(?:^|[ :])\.status((?:\.\w+)+): field not declared in schema")


@dataclass(frozen=True, slots=True)
class NewStatus:
    """The status to write, and the object with its present status."""

    obj: Object
    status: Object
    kind: Kind = LLM_DEPLOYMENTS

    @property
    def retry_key(self) -> str:
        """The key of its back-off."""
        return status_retry_key(uid_of(self.obj))


@dataclass(slots=True)
class StatusWriter:
    """Writes statuses. A status that the API server stores in another form is not sent again."""

    client: ApiClient
    guard: Guard
    expectations: Expectations
    retries: RetrySchedule
    clock: Callable[[], float]
    written: Callable[[], None] = lambda: None  # called after each write, refused ones included
    failed: FaultHandler = lambda _step, _name, _uid, _error: None  # called with each bug that a write meets
    unfinished: bool = False  # the last round left writes to the next one
    _sent: dict[str, tuple[Object, Object]] = field(default_factory=dict)  # by UID: as sent, as stored
    _refused: dict[str, str] = field(default_factory=dict)  # by UID: the refusal as it was logged
    _undeclared: set[tuple[str, str]] = field(default_factory=set)  # kind and field that were logged

    async def write(self, statuses: list[NewStatus]) -> list[NewStatus]:
        """Write what changed, and return what was written. Writes not begun within ROUND_WRITE_S are left to
        the next round. Raises NotLeader.
        """
        results, finished = await write_in_turn(
            filter(self._is_due, statuses), lambda new: key_of(new.obj)[0], self._try_write, self.clock
        )
        self.unfinished = not finished
        return [new for new in results if new is not None]

    def forget(self, existing_uids: set[str]) -> None:
        """Forget deleted objects."""
        for uid in self._sent.keys() - existing_uids:
            del self._sent[uid]
        for uid in self._refused.keys() - existing_uids:
            del self._refused[uid]

    def clear(self) -> None:
        """Forget what was sent, at the start of a term."""
        self._sent.clear()

    def _is_due(self, new: NewStatus) -> bool:
        stored = new.obj.get("status") or {}
        if stored == new.status or self._sent.get(uid_of(new.obj)) == (new.status, stored):
            return False
        return not self.retries.blocked(new.retry_key, self.clock())

    async def _try_write(self, new: NewStatus) -> NewStatus | None:
        """Write one status; return it if it was written."""
        try:
            is_written = await self._write(new)
        except NotLeader:
            raise
        except ApiError as error:
            self.retries.record_failure(new.retry_key, self.clock(), error.retry_after_s)
            self._log_refusal(new, error)
            is_written = False
        except Exception as error:  # noqa: BLE001 - a bug of ours stops this object alone
            self.retries.record_failure(new.retry_key, self.clock())
            self.failed("status", display_name(new.obj), "", error)
            return None
        self.written()
        return new if is_written else None

    async def _write(self, new: NewStatus) -> bool:
        stored, is_complete = await self._apply(new)
        if stored is None:
            return False
        self._refused.pop(uid_of(new.obj), None)
        self.expectations.expect_write(new.kind, stored, self.clock())
        if is_complete:
            self.retries.record_success(new.retry_key)
            self._sent[uid_of(new.obj)] = (new.status, stored.get("status") or {})
        else:  # retry the missing fields: CRDs may be upgraded at any time
            self.retries.record_failure(new.retry_key, self.clock())
        return True

    async def _apply(self, new: NewStatus) -> tuple[Object | None, bool]:
        """Apply the status without the fields that an older CRD does not have. Return the stored object
        (None: deleted), and whether the status is complete.
        """
        status = new.status
        while True:
            try:
                stored = await apply_status(self.client, self.guard, new.kind, new.obj, status, STATUS)
            except ApiError as error:
                undeclared = _UNDECLARED.search(error.message)
                path = undeclared[1].split(".")[1:] if undeclared else []
                shorter = _without(status, path)
                if shorter == status:
                    raise
                self._log_undeclared(new.kind, ".".join(path))
                status = shorter
            else:
                return stored, status == new.status

    def _log_undeclared(self, kind: Kind, path: str) -> None:
        if (kind.kind, path) not in self._undeclared:
            self._undeclared.add((kind.kind, path))
            log.warning(
                "the CRD of %s is older than this operator and has no status.%s: statuses lack it until the"
                " CRDs are upgraded",
                kind.kind,
                path,
            )

    def _log_refusal(self, new: NewStatus, error: ApiError) -> None:
        """Log a refusal, unless it is the same as the last one of this object."""
        if self._refused.get(uid_of(new.obj)) != str(error):
            self._refused[uid_of(new.obj)] = str(error)
            log.warning("status of %s %s: %s", new.kind.kind, "/".join(filter(None, key_of(new.obj))), error)


async def apply_status(
    client: ApiClient, guard: Guard, kind: Kind, obj: Object, status: Object, manager: str
) -> Object | None:
    """Write the status of `obj` by server-side apply on its status subresource. Return the object as stored;
    None if it was deleted, or deleted and created again. Raises ApiError.
    """
    meta = obj["metadata"]
    body = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {key: meta[key] for key in ("name", "namespace", "uid") if key in meta},
        "status": status,
    }
    try:
        return await client.apply(kind, body, manager=manager, force=True, subresource="status", guard=guard)
    except ApiError as error:
        if error.status == 404 or (error.status == 409 and "uid" in error.message.lower()):
            return None  # the mirror will show it
        raise


def status_retry_key(uid: str) -> str:
    """Return the back-off key of the status of an object."""
    return f"status {uid}"


def _without(status: Object, path: Sequence[str]) -> Object:
    """Return the status without the field at `path`, unchanged if it has no such field."""
    if not path or path[0] not in status:
        return status
    key, *rest = path
    if not rest:
        return {name: value for name, value in status.items() if name != key}
    inner = status[key]
    return status | {key: _without(inner, rest)} if isinstance(inner, dict) else status
