"""A local copy of one kind of object, kept true by list and watch.

Unlike kopf's stream, a new LIST *replaces* the copy, so deletions that happened while we were disconnected
are noticed. A periodic LIST is compared with the copy; what differs and stays different is drift, counted
and healed.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from tangram.shell.api_server.client import (
    CHANGES,
    WATCH_INACTIVITY_S,
    ApiClient,
    ApiError,
    Listing,
    WatchEvent,
)
from tangram.shell.api_server.retry_delays import RetryDelays
from tangram.shell.objects.kinds import Kind, Object, key_of
from tangram.shell.watch.store import KeepFields, Store, as_version

log = logging.getLogger(__name__)

ABSENT_S = 30.0  # an optional kind that is not there is looked for this often
SETTLED_S = 10.0  # a watch that ends sooner, or a LIST that is doubted sooner, waits before the next
MAX_MESSAGE = 1000
DRIFT_GRACE_S = 5.0  # a difference younger than this may still be on its way through the watch


@dataclass(frozen=True, slots=True)
class MirrorSource:
    """What a mirror copies."""

    kind: Kind
    keep: KeepFields
    namespace: str = ""  # empty: all
    selector: str = ""
    optional: bool = False  # without its CRD there are none of it; without the right to see it, so it seems

    def __str__(self) -> str:
        return self.kind.plural + (f" in {self.namespace}" if self.namespace else "")


class Gone(Exception):  # a signal between two functions, not an error
    """The watch cannot continue from where it was: list again."""


class Absent(ApiError):  # a signal rather than an error
    """An optional kind is not served (404), or we may not see it (403)."""


class Mirror:
    """Run `run()` as a task; read `store` at any time once `synced`."""

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
        self.store = Store(self._kept)
        self.lists = 0
        self._client, self._changed, self._clock = client, changed, clock
        self._relist_s, self._drift = relist_s, drift
        self._contact: float | None = None
        self._progress: float | None = None
        self._listed_at: float | None = None
        self._synced = asyncio.Event()
        self._relist_wanted = asyncio.Event()
        self._moved = asyncio.Condition()
        self._absence = ""  # why an optional kind is not copied, as it was logged

    @property
    def synced(self) -> bool:
        """Whether a whole LIST has been taken at least once."""
        return self._synced.is_set()

    @property
    def absent(self) -> bool:
        """Whether an optional kind was not there, or could not be seen, when last looked for."""
        return bool(self._absence)

    @property
    def age_s(self) -> float:
        """Seconds since the API server last confirmed this copy: a LIST, an event, or a bookmark."""
        return float("inf") if self._contact is None else self._clock() - self._contact

    @property
    def stalled_s(self) -> float:
        """Seconds since anything came of this kind, a page of a LIST that is not done included."""
        return min(self.age_s, float("inf") if self._progress is None else self._clock() - self._progress)

    async def wait_synced(self) -> None:
        """Return once `synced`."""
        await self._synced.wait()

    async def wait_for(self, predicate: Callable[[Store], bool], timeout_s: float) -> bool:
        """Wait until `predicate` holds for the store; False when it does not within `timeout_s`."""
        async with self._moved:
            try:
                await asyncio.wait_for(self._moved.wait_for(lambda: predicate(self.store)), timeout_s)
            except TimeoutError:
                return False
            return True

    async def refresh(self, since: float = float("inf")) -> None:
        """Take a LIST and replace the copy with it (raises ApiError), unless the one that it has was begun
        after `since` (seconds of the clock). The watch continues.
        """
        if self._listed_at is not None and self._listed_at >= since:
            return
        listing = await self._listing()
        version = as_version(listing.resource_version)
        if version < self.store.version:
            return  # the watch is already further than this LIST
        await self._took(self.store.replace(listing.items, version))

    async def refresh_if_there(self, since: float = float("inf")) -> None:
        """`refresh`, but an optional kind that is not there is none."""
        try:
            await self.refresh(since)
        except Absent as absent:
            await self._took(self._absent(absent))

    def want_relist(self) -> None:
        """Ask for a new LIST and a new watch (after a doubt about the copy)."""
        self._relist_wanted.set()

    async def run(self) -> None:
        """List and watch for ever. Only cancellation ends it."""
        backoff, listed = RetryDelays(), -1
        while True:
            began = self._clock()
            try:
                await self._list()
                listed, began = self.store.version, self._clock()
                await self._follow()
            except Gone:
                if self._clock() - began < SETTLED_S:
                    await asyncio.sleep(backoff.next_s())
                else:
                    backoff.reset()
            except Absent as absent:
                backoff.reset()
                await self._took(self._absent(absent))
                await self._wanted_or(ABSENT_S)
            except ApiError as error:
                if self.store.version > listed:
                    backoff.reset()  # the watch was allowed, too, and brought something
                delay = max(backoff.next_s(), min(error.retry_after_s, 30.0))
                log.warning("mirror of %s: %s; again in %.1f s", self.source, error, delay)
                await asyncio.sleep(delay)

    async def _list(self) -> None:
        began = self._clock()
        listing = await self._listing()
        self._listed_at = began
        if self._absence:
            log.info("mirror of %s: it is there now", self.source)
            self._absence = ""
        self.lists += 1
        self._relist_wanted.clear()
        changed = self.store.replace(listing.items, as_version(listing.resource_version))
        first = not self.synced
        self._synced.set()
        await self._took(changed or first)

    async def _listing(self) -> Listing:
        source = self.source
        try:
            return await self._client.list(
                source.kind, source.namespace, source.selector, self.store.keep, self._paged
            )
        except ApiError as error:
            if source.optional and error.status in (403, 404):
                raise Absent(error.status, error.reason, error.message) from error
            raise

    def _paged(self) -> None:
        self._progress = self._clock()

    def _kept(self, obj: Object) -> Object | None:
        """Keep the needed fields of one object. One that raises is left out and logged: the others stay."""
        try:
            return self.source.keep(obj)
        except Exception:
            log.exception("mirror of %s: %s is left out", self.source, "/".join(key_of(obj)))
            return None

    def _absent(self, absent: Absent) -> bool:
        """Take it that there is none of this kind, or, not being allowed to know, that all is as before."""
        if self._absence != str(absent):
            self._absence = str(absent)
            log.warning("mirror of %s: going on without: %s", self.source, absent)
        changed = absent.status == 404 and self.store.replace([], self.store.version)
        first = not self.synced
        self._synced.set()
        self._relist_wanted.clear()
        return changed or first

    async def _wanted_or(self, seconds: float) -> None:
        """Wait until a LIST is asked for, at most so long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._relist_wanted.wait(), seconds)

    async def _follow(self) -> None:
        """Watch until a new LIST is needed (Gone) or the LIST itself is in doubt (ApiError)."""
        checker = asyncio.create_task(self._check_drift())
        try:
            await self._watch_on()
        finally:
            checker.cancel()
            await asyncio.gather(checker, return_exceptions=True)

    async def _watch_on(self) -> None:
        backoff = RetryDelays()
        while True:
            before, began = self.store.version, self._clock()
            try:
                await self._watch()
            except ApiError as error:
                if error.status != 0:
                    raise
                delay = backoff.next_s()
                log.warning("watch of %s: %s; again in %.1f s", self.source, error.message, delay)
                await asyncio.sleep(delay)
                if self.age_s >= WATCH_INACTIVITY_S:
                    raise Gone from error  # a new kind has no bookmarks at first: only a LIST confirms it
            else:
                if self.store.version <= before and self._clock() - began < SETTLED_S:
                    await asyncio.sleep(backoff.next_s())  # ended at once, without a word
            if self.store.version > before:
                backoff.reset()

    async def _watch(self) -> None:
        source, timeout_s = self.source, random.randint(240, 360)  # noqa: S311 - spreads reconnects, no secret
        events = self._client.watch(
            source.kind,
            str(self.store.version),
            source.namespace,
            source.selector,
            server_timeout_s=timeout_s,
        )
        reading = asyncio.create_task(self._take_all(events))
        doubting = asyncio.create_task(self._relist_wanted.wait())
        try:
            await asyncio.wait({reading, doubting}, return_when=asyncio.FIRST_COMPLETED)
            if doubting.done():
                raise Gone
            await reading
        finally:
            for task in (reading, doubting):
                task.cancel()
            await asyncio.gather(reading, doubting, return_exceptions=True)

    async def _take_all(self, events: AsyncGenerator[WatchEvent, None]) -> None:
        async with contextlib.aclosing(events):
            async for event in events:
                await self._took(self._handle(event))

    def _handle(self, event: WatchEvent) -> bool:
        if event.type == "BOOKMARK":
            self.store.advance(as_version(str(event.object.get("metadata", {}).get("resourceVersion", ""))))
            return False
        if event.type == "ERROR":
            code, message = event.object.get("code"), str(event.object.get("message", ""))[:MAX_MESSAGE]
            if code == 410:
                log.info("watch of %s: too old to continue: %s", self.source, message)
                raise Gone
            code = code if isinstance(code, int) and code else 500
            raise ApiError(code, str(event.object.get("reason", "")), f"in the watch: {message}")
        event.object.setdefault("apiVersion", self.source.kind.api_version)
        event.object.setdefault("kind", self.source.kind.kind)
        if event.type not in CHANGES:
            return False  # a type of event that is younger than we are
        if event.type == "DELETED":
            return self.store.remove(event.object)
        return self.store.upsert(event.object)

    async def _took(self, changed: bool) -> None:
        self._contact = self._clock()
        async with self._moved:
            self._moved.notify_all()
        if changed:
            self._changed()

    async def _check_drift(self) -> None:
        """Compare with a LIST now and then; differences that do not resolve by themselves mean a lost
        event.
        """
        while True:
            await asyncio.sleep(self._relist_s * random.uniform(0.9, 1.1))  # noqa: S311 - jitter
            try:
                lost = await self._lost_events()
            except Absent:
                self.want_relist()
                continue
            except ApiError as error:
                log.warning("periodic list of %s: %s", self.source, error)
                continue
            if lost:
                log.error(
                    "mirror of %s: %d objects differ from the API server; listing again", self.source, lost
                )
                self._drift(self.source.kind.plural, lost)
                self.want_relist()

    async def _lost_events(self) -> int:
        listing = await self._listing()
        if self.store.version > as_version(listing.resource_version):
            return 0  # the watch is further than this LIST: what differs says nothing
        suspects = self.store.mismatches(listing.items)
        if not suspects:
            return 0
        await asyncio.sleep(DRIFT_GRACE_S)
        listed = {(i["metadata"].get("namespace", ""), i["metadata"]["name"]): i for i in listing.items}
        lost = 0
        for key, before in suspects.items():
            item = listed.get(key)
            version = (
                as_version(item["metadata"]["resourceVersion"])
                if item
                else as_version(listing.resource_version)
            )
            unchanged = self.store.identity(key) == before
            behind = before[1] < version
            lost += unchanged and behind
        return lost
