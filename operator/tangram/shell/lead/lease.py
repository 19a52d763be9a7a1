"""Who may write: an election on a Lease object, as client-go does it, with every instant passed in.

The API has no fencing tokens. So a leader counts its right to write from *before* its last successful
renewal was sent, stops `renew_deadline_s` later although others wait `lease_s`, and every write asks
`remaining_s` at the last moment and takes it as its own timeout. Clocks of different machines are never
compared: a follower waits `lease_s` from when it last *saw* the record change.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tangram.fleet.times import rfc3339_micro
from tangram.kube.client import UNGUARDED, ApiClient, ApiError
from tangram.kube.kinds import LEASES, Object

log = logging.getLogger(__name__)

MANAGER = "tangram-lease"


class NotLeader(Exception):
    """A write was refused here because the lease has run out, or nearly so."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Durations of the election, in seconds: renew_every < renew_deadline < lease.

    They are LeaseDuration, RenewDeadline and RetryPeriod of client-go.
    """

    lease_s: float = 15.0
    renew_deadline_s: float = 10.0  # after the last successful renewal: then the leader stops
    renew_every_s: float = 2.0  # between two renewals by the leader, and between two reads by the others


@dataclass(slots=True)
class Election:
    """The decisions of one candidate; no I/O, no clock."""

    namespace: str  # of the Lease
    name: str
    identity: str
    times: LeaseTimes
    _seen: tuple[Any, ...] | None = None
    _seen_at: float = 0.0
    _renewed_at: float | None = None  # when the last successful renewal was *sent*
    term: int = 0  # counts how often the right to write has begun
    term_began: float = 0.0  # the record was sent then: no predecessor has written since

    def remaining_s(self, now: float) -> float:
        """Seconds for which this candidate may still write; 0 when it is not the leader."""
        if self._renewed_at is None:
            return 0.0
        return max(0.0, self._renewed_at + self.times.renew_deadline_s - now)

    def observe(self, lease: Object | None, now: float) -> None:
        """Note the record as read at `now`."""
        record = None if lease is None else _record(lease)
        if record != self._seen or lease is None:
            self._seen, self._seen_at = record, now
        if lease is None or _spec(lease).get("holderIdentity") != self.identity:
            self._renewed_at = None

    def may_take(self, lease: Object | None, now: float) -> bool:
        """Say whether to write ourselves into the record: it is free, ours, or silent for too long."""
        if lease is None:
            return True
        holder = _spec(lease).get("holderIdentity") or ""
        return holder in ("", self.identity) or now >= self._seen_at + self.expires_after_s(lease)

    def wait_s(self, lease: Object | None, now: float) -> float:
        """Return how long to wait before looking again: a retry, or exactly until the holder's time ends."""
        if lease is None or self.remaining_s(now) > 0:
            return self.times.renew_every_s
        left = self._seen_at + self.expires_after_s(lease) - now
        return min(self.times.renew_every_s, max(0.05, left))

    def expires_after_s(self, lease: Object) -> float:
        """Return the duration that the holder itself declared."""
        declared = _spec(lease).get("leaseDurationSeconds")
        return float(declared) if isinstance(declared, (int, float)) and declared > 0 else self.times.lease_s

    def record(self, lease: Object | None, at: float) -> Object:
        """Return the object to write: a new Lease, or this version of `lease` with us as holder."""
        spec = dict(_spec(lease)) if lease else {}
        if spec.get("holderIdentity") != self.identity:
            spec["acquireTime"] = rfc3339_micro(at)
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + (1 if lease else 0)
        spec["holderIdentity"] = self.identity
        spec["leaseDurationSeconds"] = max(1, math.ceil(self.times.lease_s))
        spec["renewTime"] = rfc3339_micro(at)
        return self._lease(lease, spec)

    def released(self, lease: Object, at: float) -> Object:
        """Return the record that lets the next one in at once."""
        freed = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": rfc3339_micro(at)}
        return self._lease(lease, _spec(lease) | freed)

    def won(self, lease: Object, sent_at: float, now: float) -> None:
        """Note that our record was accepted; it had been sent at `sent_at`."""
        if self.remaining_s(sent_at) <= 0:
            self.term += 1  # others may have led since we last did
            self.term_began = sent_at
        self._renewed_at = sent_at
        self._seen, self._seen_at = _record(lease), now

    def lost(self) -> None:
        """Note that we are not, or no longer, the leader."""
        self._renewed_at = None

    def _lease(self, lease: Object | None, spec: Object) -> Object:
        meta = {"namespace": self.namespace, "name": self.name}
        if lease is not None:
            meta |= {"resourceVersion": lease["metadata"]["resourceVersion"], "uid": lease["metadata"]["uid"]}
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": meta, "spec": spec}


class Elector:
    """Keeps one candidate in the race. `guard` is handed to every write."""

    def __init__(
        self,
        client: ApiClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        times: LeaseTimes,
        clock: Callable[[], float],
        now: Callable[[], float] = time.time,
        changed: Callable[[bool], None] = lambda _leading: None,
    ) -> None:
        self.election = Election(namespace, name, identity, times)
        self.looked = asyncio.Event()  # set after the first attempt, whatever came of it
        self._client, self._clock, self._now, self._changed = client, clock, now, changed
        self._lease: Object | None = None
        self._noticed = (False, 0)

    @property
    def term(self) -> int:
        """Which of our terms this is, or the last one was; 0 before the first."""
        return self.election.term

    @property
    def leading(self) -> bool:
        """Whether this process may write now."""
        return self.election.remaining_s(self._clock()) > 0

    def guard(self) -> float:
        """Return the seconds left for a write; raises NotLeader when there are none."""
        left = self.election.remaining_s(self._clock())
        if left <= 0:
            raise NotLeader("the lease is not held, or could not be renewed in time")
        return left

    async def run(self) -> None:
        """Take part until cancelled."""
        while True:
            self._notice()  # our time may have ended while we slept, or the machine did
            try:
                async with asyncio.timeout(self.election.times.renew_deadline_s / 2):
                    await self.step()
            except (ApiError, TimeoutError) as error:
                problem = str(error) or "no answer in time"
                log.warning("lease %s/%s: %s", self.election.namespace, self.election.name, problem)
                self._lease = None  # read it again before the next write
            self.looked.set()
            self._notice()
            await asyncio.sleep(self._pause_s())

    async def step(self) -> None:
        """Look once and renew or take the lease if that is ours to do."""
        if self._lease is None or not self.leading:
            self._lease = await self._client.get(LEASES, self.election.namespace, self.election.name)
            self.election.observe(self._lease, self._clock())
        if not self.election.may_take(self._lease, self._clock()):
            return
        record = self.election.record(self._lease, self._now())
        sent_at = self._clock()
        try:
            self._lease = await self._write(record)
        except ApiError as error:
            self._lease = None
            if error.status != 409:
                raise
            return  # another candidate was faster: the next read shows its record
        self.election.won(self._lease, sent_at, self._clock())

    async def release(self) -> None:
        """Give the lease back, so that the next one need not wait (graceful stop)."""
        held, self._lease = self._lease, None
        leading = self.leading
        self.election.lost()
        self._notice()
        if not leading or held is None:
            return
        try:
            async with asyncio.timeout(2.0):
                await self._write(self.election.released(held, self._now()))
        except (ApiError, TimeoutError) as error:
            log.warning("lease not released, the next one waits for it to run out: %s", error)

    async def _write(self, record: Object) -> Object:
        if "resourceVersion" in record["metadata"]:
            return await self._client.replace(LEASES, record, manager=MANAGER, guard=UNGUARDED)
        return await self._client.create(LEASES, record, manager=MANAGER, guard=UNGUARDED)

    def _pause_s(self) -> float:
        now = self._clock()
        pause = self.election.wait_s(self._lease, now)
        left = self.election.remaining_s(now)
        return min(pause, left) if left > 0 else pause  # notice the end of our own time when it comes

    def _notice(self) -> None:
        leading, term = self.leading, self.term
        if (leading, term) == self._noticed or (not leading and not self._noticed[0]):
            return
        self._noticed = (leading, term)
        state = f"term {term}" if leading else "not leading"
        log.info("lease %s/%s: %s", self.election.namespace, self.election.name, state)
        self._changed(leading)


class TermGuard:
    """The guard of one round: what was decided in one term is not written in another."""

    def __init__(self, elector: Elector) -> None:
        self._elector, self._term = elector, 0

    def begin(self) -> int:
        """Bind what follows to the term that is now; return it."""
        self._term = self._elector.term
        return self._term

    def bound(self) -> "TermGuard":
        """Return a guard that stays with the term of this one, whatever this one is bound to later."""
        other = TermGuard(self._elector)
        other._term = self._term
        return other

    def __call__(self) -> float:
        """Return the seconds left for a write; raises NotLeader when there are none in this term."""
        left = self._elector.guard()
        if self._elector.term != self._term:
            raise NotLeader("the lease was lost and taken again since this was decided")
        return left


def _spec(lease: Object) -> Object:
    spec: Object = lease.get("spec") or {}
    return spec


def _record(lease: Object) -> tuple[Any, ...]:
    spec = _spec(lease)
    return (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
