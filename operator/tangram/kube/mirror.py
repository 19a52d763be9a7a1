"""A local copy of the objects of one kind, kept current by list and watch.

Unlike kopf's stream, a new LIST *replaces* the copy, so that deletions during a disconnection are noticed.
A periodic LIST is compared with the copy; a difference that lasts is drift: it is counted and the mirror
lists again.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from tangram.kube.client import (
    CHANGES,
    WATCH_INACTIVITY_S,
    ApiClient,
    ApiError,
    Listing,
    WatchEvent,
    failure_of,
)
from tangram.kube.kinds import Kind, Object, key_of
from tangram.kube.retry_delays import RetryDelays
from tangram.kube.store import KeepFields, Store, as_version, version_of

log = logging.getLogger(__name__)

UNAVAILABLE_RETRY_S = 30.0  # longest time between LISTs of an optional kind that is not available
STABLE_S = 10.0  # after a shorter watch, or a shorter time since the LIST, the next one is delayed
DRIFT_GRACE_S = 5.0  # a younger difference may still arrive through the watch


@dataclass(frozen=True, slots=True)
class MirrorSource:
    """The objects that a mirror copies."""

    kind: Kind
    keep: KeepFields
    namespace: str = ""  # empty: all
    selector: str = ""
    optional: bool = False  # without the CRD, or the right to list, the mirror is empty and no error

    def __str__(self) -> str:
        return self.kind.plural + (f" in {self.namespace}" if self.namespace else "")


class RelistNeeded(Exception):  # a signal between two functions, not an error
    """The watch cannot continue from its version: list again."""


class KindUnavailable(ApiError):  # a signal rather than an error
    """An optional kind is not served (404), or the operator may not list it (403)."""


class Mirror:
    """The copy of one kind. Run `run()` as a task; read `store` at any time once `synced`."""

    def __init__(
        self,
        client: ApiClient,
        source: MirrorSource,
        *,
        changed: Callable[[], None],
        clock: Callable[[], float],
        relist_s: float = 300.0,
        drift: Callable[[str, int], None] = lambda _kind, _count: None,
    ) -> None:
        self.source = source
        self.store = self._new_store()
        self.lists = 0
        self._client, self._changed, self._clock = client, changed, clock
        self._relist_s, self._drift = relist_s, drift
        self._confirmed_at: float | None = None
        self._page_at: float | None = None
        self._listed_at: float | None = None
        self._synced = asyncio.Event()
        self._relist_requested = asyncio.Event()
        self._advanced = asyncio.Condition()
        self.forbidden = False  # whether the last LIST of an optional kind was refused for lack of rights
        self._unavailable = ""  # why an optional kind is not copied, as it was logged

    @property
    def synced(self) -> bool:
        """Whether a LIST was completed at least once."""
        return self._synced.is_set()

    @property
    def unavailable(self) -> bool:
        """Whether the last LIST of an optional kind found it not served or forbidden."""
        return bool(self._unavailable)

    @property
    def age_s(self) -> float:
        """Seconds since the API server last confirmed this copy: a LIST, an event, or a bookmark."""
        return float("inf") if self._confirmed_at is None else self._clock() - self._confirmed_at

    @property
    def stalled_s(self) -> float:
        """Seconds since the last response about this kind; pages of an unfinished LIST count, too."""
        return min(self.age_s, float("inf") if self._page_at is None else self._clock() - self._page_at)

    async def wait_synced(self) -> None:
        """Return once `synced`."""
        await self._synced.wait()

    async def wait_for(self, predicate: Callable[[Store], bool], timeout_s: float) -> bool:
        """Wait until `predicate` holds for the store; False when it does not within `timeout_s`."""
        async with self._advanced:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._advanced.wait_for(lambda: predicate(self.store))
            except TimeoutError:
                return False
            return True

    async def refresh(self, since: float = float("inf")) -> None:
        """Replace the copy by a new LIST (raises ApiError), unless its last LIST began after `since` (seconds
        of the clock). The watch continues.
        """
        if self._listed_at is not None and self._listed_at >= since:
            return
        listing = await self._listing()
        version = as_version(listing.resource_version)
        if version < self.store.version:
            return  # the watch is already ahead of this LIST
        await self._apply_change(self.store.replace(listing.items, version))

    async def refresh_if_available(self, since: float = float("inf")) -> None:
        """`refresh`, but without an error for an optional kind that is unavailable."""
        try:
            await self.refresh(since)
        except KindUnavailable as error:
            await self._apply_change(self._note_unavailable(error))

    def request_relist(self) -> None:
        """Request a new LIST and a new watch, because the copy may be wrong."""
        self._relist_requested.set()

    async def run(self) -> None:
        """List and watch until cancelled."""
        delays, listed_version = RetryDelays(), -1
        while True:
            began = self._clock()
            try:
                await self._list()
                listed_version, began = self.store.version, self._clock()
                await self._watch_with_drift_check()
            except RelistNeeded:
                if self._clock() - began < STABLE_S:
                    await asyncio.sleep(delays.next_s())
                else:
                    delays.reset()
            except KindUnavailable as error:
                delays.reset()
                await self._apply_change(self._note_unavailable(error))
                await self._relist_requested_within(min(UNAVAILABLE_RETRY_S, self._relist_s))
            except ApiError as error:
                if self.store.version > listed_version:
                    delays.reset()  # the watch was allowed, too, and sent an event
                await self._retry_after(error, delays)

    async def _retry_after(self, error: ApiError, delays: RetryDelays) -> None:
        delay = max(delays.next_s(), min(error.retry_after_s, 30.0))
        log.warning("mirror of %s: %s; retrying in %.1f s", self.source, error, delay)
        await asyncio.sleep(delay)

    async def _list(self) -> None:
        began = self._clock()
        listing = await self._listing()
        self._listed_at = began
        returned = self.unavailable
        if returned:
            log.info("mirror of %s: available again", self.source)
            self._unavailable, self.forbidden = "", False
        self.lists += 1
        self._relist_requested.clear()
        changed = self.store.replace(listing.items, as_version(listing.resource_version))
        await self._apply_change(changed or returned)

    def _new_store(self) -> Store:
        return Store(self._kept)

    async def _listing(self, keep: KeepFields | None = None, **form: str) -> Listing:
        source, keep = self.source, keep or self.store.keep
        try:
            return await self._client.list(
                source.kind, source.namespace, source.selector, keep, self._paged, **form
            )
        except ApiError as error:
            if source.optional and error.status in (403, 404):
                raise KindUnavailable(error.status, error.reason, error.message) from error
            raise

    def _paged(self) -> None:
        self._page_at = self._clock()

    def _kept(self, obj: Object) -> Object | None:
        """Keep the needed fields of one object. One that raises is left out and logged: the others stay."""
        try:
            return self.source.keep(obj)
        except Exception:
            log.exception("mirror of %s: %s is unreadable and left out", self.source, "/".join(key_of(obj)))
            return None

    def _note_unavailable(self, error: KindUnavailable) -> bool:
        """Empty the copy where the kind is not served, keep it where forbidden; return whether it changed."""
        if self._unavailable != str(error):
            self._unavailable = str(error)
            log.warning("mirror of %s: unavailable, continuing without it: %s", self.source, error)
        self.forbidden = error.status == 403
        self._relist_requested.clear()
        return error.status == 404 and self.store.clear()

    async def _relist_requested_within(self, seconds: float) -> None:
        """Wait until a LIST is requested, at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._relist_requested.wait()

    async def _watch_with_drift_check(self) -> None:
        """Watch until a new LIST is needed (RelistNeeded) or the API server reports an error (ApiError)."""
        checker = asyncio.create_task(self._check_drift())
        try:
            await self._watch_repeatedly()
        finally:
            checker.cancel()
            await asyncio.gather(checker, return_exceptions=True)

    async def _watch_repeatedly(self) -> None:
        delays = RetryDelays()
        while True:
            before, began = self.store.version, self._clock()
            try:
                await self._watch()
            except ApiError as error:
                if error.status != 0:
                    raise
                delay = delays.next_s()
                log.warning("watch of %s: %s; retrying in %.1f s", self.source, error.message, delay)
                await asyncio.sleep(delay)
                if self.age_s >= WATCH_INACTIVITY_S:
                    raise RelistNeeded from error  # a new kind has no bookmarks at first: list instead
            else:
                if self.store.version <= before and self._clock() - began < STABLE_S:
                    await asyncio.sleep(delays.next_s())  # ended at once, without an event
            if self.store.version > before:
                delays.reset()

    async def _watch(self) -> None:
        source, timeout_s = self.source, random.randint(240, 360)  # noqa: S311 - spreads reconnects, no secret
        events = self._client.watch(
            source.kind, str(self.store.version), source.namespace, source.selector, timeout_s
        )
        reading = asyncio.create_task(self._apply_all(events))
        relisting = asyncio.create_task(self._relist_requested.wait())
        try:
            await asyncio.wait({reading, relisting}, return_when=asyncio.FIRST_COMPLETED)
            if relisting.done():
                raise RelistNeeded
            await reading
        finally:
            for task in (reading, relisting):
                task.cancel()
            await asyncio.gather(reading, relisting, return_exceptions=True)

    async def _apply_all(self, events: AsyncGenerator[WatchEvent, None]) -> None:
        async with contextlib.aclosing(events):
            async for event in events:
                await self._apply_change(self._handle(event))

    def _handle(self, event: WatchEvent) -> bool:
        """Apply one event; return whether the store changed. Raises RelistNeeded and ApiError."""
        if event.type == "BOOKMARK":
            self.store.advance(as_version(str(event.object.get("metadata", {}).get("resourceVersion", ""))))
            return False
        if event.type == "ERROR":
            failure = failure_of(event)
            if failure.status == 410:
                log.info("watch of %s: too old to continue: %s", self.source, failure.message)
                raise RelistNeeded
            raise failure
        event.object.setdefault("apiVersion", self.source.kind.api_version)
        event.object.setdefault("kind", self.source.kind.kind)
        if event.type not in CHANGES:
            return False  # a type of event that this version does not know
        if event.type == "DELETED":
            return self.store.remove(event.object)
        return self.store.upsert(event.object)

    async def _apply_change(self, changed: bool) -> None:
        """Note a response of the API server; announce a change of the copy, and its first LIST."""
        first = not self.synced
        self._confirmed_at = self._clock()
        self._synced.set()
        async with self._advanced:
            self._advanced.notify_all()
        if changed or first:
            self._changed()

    async def _check_drift(self) -> None:
        """Compare the copy with a LIST periodically; a difference that lasts means a lost event."""
        while True:
            await asyncio.sleep(self._relist_s * random.uniform(0.9, 1.1))  # noqa: S311 - jitter
            try:
                lost = await self._lost_events()
            except KindUnavailable:
                self.request_relist()
                continue
            except ApiError as error:
                log.warning("periodic list of %s: %s", self.source, error)
                continue
            if lost:
                log.error(
                    "mirror of %s: %d objects differ from the API server; listing again", self.source, lost
                )
                self._drift(self.source.kind.plural, lost)
                self.request_relist()

    async def _lost_events(self) -> int:
        listing = await self._listing()
        listed_version = as_version(listing.resource_version)
        if self.store.version > listed_version:
            return 0  # the watch is ahead of this LIST: differences mean nothing
        suspects = self.store.mismatches(listing.items)
        if not suspects:
            return 0
        await asyncio.sleep(DRIFT_GRACE_S)
        listed = {key_of(item): version_of(item) for item in listing.items}
        return sum(
            self.store.identity(key) == before and before[1] < listed.get(key, listed_version)
            for key, before in suspects.items()
        )
