"""What kopf does for the operator: it logs in, and passes on each event of the operator's own kinds.

It writes nothing. There are no handlers of creations or updates (they annotate objects), no timers, daemons
or deletion handlers (they add finalizers), no indexes (their start is quadratic), no peering (there is a
Lease), and no posting of Events (the operator deduplicates its own).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import kopf

from tangram.kube.credentials import Credentials
from tangram.kube.kinds import Kind
from tangram.kube.retry_delays import RetryDelays
from tangram.shell.intake.mirror import IntakeMirror
from tangram.shell.intake.session import WatchBacklog, kopf_session

LogIn = Callable[..., Awaitable[kopf.AiohttpSession]]
"""kopf's handler of a login."""

WATCH_S = 300  # until the API server ends a watch, which kopf then resumes
LIST_CHUNK = 25  # objects in a page of a LIST of kopf, which does not size pages by bytes


class EndlessDelays:
    """Endless delays between kopf's API attempts, so that an API outage does not end kopf."""

    def __iter__(self) -> Iterator[float]:
        """Yield the delays of a new sequence of attempts, in seconds."""
        delays = RetryDelays()
        while True:
            yield delays.next_s()


class NoDiffBase(kopf.DiffBaseStorage):
    """Reads no earlier state of an object. kopf would parse an annotation, which tenants can write."""

    def build(self, **_arguments: Any) -> kopf.BodyEssence:
        """Return an empty essence: no handler compares states."""
        return kopf.BodyEssence({})

    def fetch(self, **_arguments: Any) -> None:
        """Return no earlier state."""

    def store(self, **_arguments: Any) -> None:
        """Store nothing."""


def kopf_settings() -> kopf.OperatorSettings:
    """Return kopf's settings (by the code of version 1.45)."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True  # no dynamic CRDs: needs no cluster-wide right to read them
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.persistence.finalizer = (
        "-"  # no legal name: kopf would remove its own one, which tenants can set
    )
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.error_backoffs = EndlessDelays()
    settings.watching.server_timeout = WATCH_S
    settings.watching.chunk_size = LIST_CHUNK
    settings.watching.reconnect_backoff = 1.0
    settings.process.ultimate_exiting_timeout = None  # it would kill the whole process
    return settings


@asynccontextmanager
async def logins(credentials: Credentials, backlog: WatchBacklog) -> AsyncIterator[LogIn]:
    """Yield the handler that gives kopf a session which only reads, and close its sessions afterwards.

    kopf closes those that it has taken over. One that a login returns while kopf ends stays open.
    """
    delays = RetryDelays(max_s=30.0)
    opened: list[aiohttp.ClientSession] = []

    async def log_in(**_: Any) -> kopf.AiohttpSession:
        if delays.failures:  # kopf logs in again at once after each 401
            await asyncio.sleep(delays.next_s())
        delays.failures += 1
        credentials.token(fresh=True)
        session = kopf_session(credentials, backlog)
        opened[:] = [*(earlier for earlier in opened if not earlier.closed), session]
        return kopf.AiohttpSession(server=credentials.server, aiohttp_session=session)

    try:
        yield log_in
    finally:
        for session in opened:
            await session.close()


def registry(
    log_in: LogIn,
    backlog: WatchBacklog,
    kinds: Collection[Kind],
    mirrors: Collection[IntakeMirror],
    mirrors_loop: asyncio.AbstractEventLoop,
) -> kopf.OperatorRegistry:
    """Return the handlers of these kinds; `mirrors_loop` is the event loop that the mirrors belong to."""
    handlers = kopf.OperatorRegistry()

    async def changed(resource: kopf.Resource, namespace: str | None, event: kopf.RawEvent, **_: Any) -> None:
        try:
            mirror = next(
                mirror
                for mirror in mirrors
                if mirror.source.kind.plural == resource.plural and mirror.source.namespace in ("", namespace)
            )
            taken = mirror.take(event["type"], dict(event["object"]))
            # Shielded: when kopf stops, an event that is stored is also announced.
            await asyncio.shield(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(taken, mirrors_loop)))
        finally:
            backlog.unhandled -= event["type"] is not None  # objects of a LIST come in pages

    async def end_watches(**_: Any) -> None:
        """Where the watch of one kind fails, kopf does not end the others. Without its session they hang."""
        watches = {task for task in asyncio.all_tasks() if task.get_name().startswith("watcher for ")}
        for task in watches:
            task.cancel()
        if watches:
            await asyncio.wait(watches)

    kopf.on.login(registry=handlers)(log_in)
    kopf.on.cleanup(registry=handlers)(end_watches)
    for kind in kinds:
        kopf.on.event(kind.group, kind.version, kind.plural, registry=handlers)(changed)
    return handlers


async def run_kopf(
    credentials: Credentials,
    kinds: Collection[Kind],
    mirrors: Collection[IntakeMirror],
    mirrors_loop: asyncio.AbstractEventLoop,
) -> None:
    """Run kopf until it fails or is cancelled."""
    namespaces = {mirror.source.namespace for mirror in mirrors if mirror.source.namespace}
    scope: dict[str, Any] = {"namespaces": sorted(namespaces)} if namespaces else {"clusterwide": True}
    backlog = WatchBacklog()
    async with logins(credentials, backlog) as log_in:
        await kopf.operator(
            registry=registry(log_in, backlog, kinds, mirrors, mirrors_loop),
            settings=kopf_settings(),
            standalone=True,
            **scope,
        )
