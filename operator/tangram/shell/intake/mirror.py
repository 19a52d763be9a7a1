"""The mirror of one of the operator's own kinds: events by kopf, corrected by a LIST of names each tick.

kopf does not report deletions that happen while it is disconnected, and may itself be down. So the names and
versions of all objects are listed each tick, with quorum. What is gone there is removed at once; what no
event has shown after a short grace is listed as whole objects. kopf's faults therefore delay a change by a
tick at most, and no object outlives its deletion by more.
"""

import logging

from tangram.kube.client import METADATA_ONLY, ApiError
from tangram.kube.kinds import Object, key_of
from tangram.kube.mirror import UNAVAILABLE_RETRY_S, KindUnavailable, Mirror
from tangram.kube.retry_delays import RetryDelays
from tangram.kube.store import as_version, version_of
from tangram.shell.intake.store import IntakeStore

log = logging.getLogger(__name__)

EVENT_GRACE_S = 2.0  # a listed version may still arrive as an event


class IntakeMirror(Mirror):
    """The copy of one kind. Run `run()` as a task and `take` each event; `relist_s` is the tick."""

    store: IntakeStore

    def _new_store(self) -> IntakeStore:
        return IntakeStore(self._kept)

    async def take(self, event_type: str | None, raw: Object) -> None:
        """Apply an event of kopf. The type is None for an object of kopf's own LIST."""
        if event_type == "DELETED":
            await self._apply_change(self.store.remove(raw))
        else:
            kind = self.source.kind
            await self._apply_change(
                self.store.upsert({"apiVersion": kind.api_version, "kind": kind.kind, **raw})
            )

    async def run(self) -> None:
        """List until cancelled: whole objects at first and on request, else names."""
        delays = RetryDelays()
        while True:
            try:
                if self.synced and not self.unavailable and not self._relist_requested.is_set():
                    await self._compare()
                else:
                    await self._list()
                delays.reset()
                await self._relist_requested_within(self._relist_s)
            except KindUnavailable as error:
                delays.reset()
                await self._apply_change(self._note_unavailable(error))
                await self._relist_requested_within(min(UNAVAILABLE_RETRY_S, self._relist_s))
            except ApiError as error:
                await self._retry_after(error, delays)

    async def _compare(self) -> None:
        """Compare the copy with a LIST of names; list objects where events are missing."""
        listing = await self._listing(_named, accept=METADATA_ONLY)
        listed = {key_of(item): version_of(item) for item in listing.items}
        await self._apply_change(self.store.compare(listed, as_version(listing.resource_version)))
        if await self.wait_for(lambda store: not self.store.behind, EVENT_GRACE_S):
            return
        late = len(self.store.behind)
        log.info("mirror of %s: events of %d objects are missing; listing them", self.source, late)
        self._drift(self.source.kind.plural, late)
        await self._list()


def _named(obj: Object) -> Object:
    """Keep what identifies an object and its version."""
    fields = ("namespace", "name", "resourceVersion")
    return {"metadata": {field: text for field, text in obj["metadata"].items() if field in fields}}
