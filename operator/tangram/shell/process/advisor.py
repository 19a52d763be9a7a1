"""When to think about the whole fleet, and what becomes of it: FleetPlans, and advice in statuses.

The loop offers what it saw and goes on at once. Thinking begins when the inputs have been quiet for a while,
or have been changing for long enough. Whatever fails here is counted and told once; nothing waits for it.
"""

import asyncio
import contextlib
import logging
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tangram.fleet import Advice, FleetSnapshot, Intent, PoolUse, RecommendedChange
from tangram.shell.api_server.client import Guard
from tangram.shell.api_server.retry_delays import RetryDelays
from tangram.shell.decide.recommending import AdviceWorker, Advised, Everyone
from tangram.shell.decide.worker import WorkerFailed
from tangram.shell.lead.lease import NotLeader
from tangram.shell.measure.metrics import OperatorMetrics
from tangram.shell.report.fleet_plans import FleetPlans

log = logging.getLogger(__name__)

RETRY_S = (60.0, 900.0)  # from, to: after thinking failed, unless the inputs change before
REST = 4.0  # times as long as it took: a large fleet that never stands still costs at most a fifth of a core
SHORT_S = 10.0  # thinking that takes no longer is paced by the debounce alone


@dataclass(slots=True)
class Debounce:
    """When to act on changes: once they have ceased for `settle_s`, or `latest_s` after the first."""

    settle_s: float
    latest_s: float
    _first: float | None = None
    _last: float = 0.0

    def changed(self, now: float) -> None:
        """Note a change."""
        self._first = now if self._first is None else self._first
        self._last = now

    def due_at(self) -> float | None:
        """Return when to act; None: nothing has changed."""
        return None if self._first is None else min(self._last + self.settle_s, self._first + self.latest_s)

    def clear(self) -> None:
        """Forget the changes: they are being acted on."""
        self._first = None


@dataclass(frozen=True, slots=True)
class RecommendationInput:
    """The fleet as one round saw it."""

    snapshot: FleetSnapshot
    intents: Everyone
    guard: Guard  # of what is written because of it: bound to the term of that round
    essence: tuple[Any, ...]  # what the answer may depend on


@dataclass(frozen=True, slots=True)
class RecommendationOutcome:
    """What was thought of the fleet with this essence. `advised` is None where thinking failed."""

    essence: tuple[Any, ...]
    generations: Mapping[str, int]  # of the LLMDeployments that were seen, by uid
    advised: Advised | None
    advice: Mapping[str, Advice]  # by uid

    @classmethod
    def to(cls, question: RecommendationInput, advised: Advised | None) -> "RecommendationOutcome":
        """Return what was thought of a question."""
        generations = {intent.uid: intent.generation for intent in question.intents}
        return cls(question.essence, generations, advised, dict(advised.advice) if advised else {})


def essence(snapshot: FleetSnapshot, intents: Everyone) -> tuple[Any, ...]:
    """Return all that a recommendation depends on: not whether pods are ready yet, nor what was refused."""
    return (
        intents,
        snapshot.nodes,
        snapshot.claims,
        tuple((w.owner_uid, w.shape, w.replicas) for w in snapshot.workloads),
        snapshot.facts,
        snapshot.pools,
        snapshot.desired,
        snapshot.desired_of,
        snapshot.faults,
        snapshot.engine_image,
        snapshot.prices,
    )


def told_before(intent: Intent, status: Mapping[str, Any]) -> Advice | None:
    """Return the advice that a status holds about this generation of an LLMDeployment."""
    placement = status.get("placement") or {}
    if not placement.get("plan") or status.get("observedGeneration") != intent.generation:
        return None
    return Advice(
        plan=placement["plan"],
        saves_per_hour=0.0,
        because=tuple(placement.get("because") or ()),
        relaxations=tuple(
            RecommendedChange(each["dimension"], each["text"]) for each in placement.get("relaxations") or ()
        ),
    )


def rest_s(took_s: float) -> float:
    """Return how long not to think after thinking for `took_s`."""
    return REST * took_s if took_s > SHORT_S else 0.0


@dataclass(slots=True)
class Advisor:
    """Everything that thinking needs. `run()` until cancelled."""

    worker: AdviceWorker
    plans: FleetPlans
    metrics: OperatorMetrics
    clock: Callable[[], float]
    debounce: Debounce
    idle_s: float
    news: Callable[[], None] = lambda: None  # told when the advice has changed
    _latest: RecommendationInput | None = None
    _answer: RecommendationOutcome | None = None
    _retry_at: float | None = None
    _backoff: RetryDelays = field(default_factory=lambda: RetryDelays(*RETRY_S))
    _told: str = ""
    _used_at: float = 0.0
    _rested_at: float = 0.0  # not before is thought again
    _awake: asyncio.Event = field(default_factory=asyncio.Event)

    def offer(self, snapshot: FleetSnapshot, intents: Everyone, guard: Guard) -> None:
        """Take what a round saw. `guard` must be bound to the term of that round."""
        question = RecommendationInput(snapshot, intents, guard, essence(snapshot, intents))
        if self._latest is None or question.essence != self._latest.essence:
            self.debounce.changed(self.clock())
        self._latest = question
        self.wake()

    def dismiss(self) -> None:
        """Stop advising: this operator no longer leads."""
        self._latest = None
        self.debounce.clear()
        self.metrics.clear_fleet_plan()
        self.wake()

    def wake(self) -> None:
        """Look again: the FleetPlans changed."""
        self._awake.set()

    @property
    def ready(self) -> bool:
        """Whether anything is known: an answer, or that there is none."""
        return self._answer is not None

    def advice(self, intent: Intent, status: Mapping[str, Any]) -> Advice | None:
        """Return what was last recommended about this generation of an LLMDeployment. As long as this
        operator has not thought yet, that is what its `status` says.
        """
        if self._answer is None:
            return told_before(intent, status)
        same = self._answer.generations.get(intent.uid) == intent.generation
        return self._answer.advice.get(intent.uid) if same else None

    def pools(self) -> Mapping[str, PoolUse]:
        """Return the use of GPUPools when the fleet was last thought about, by name."""
        if self._answer is None or self._answer.advised is None:
            return {}
        return dict(self._answer.advised.pools)

    async def run(self) -> None:
        """Think and write until cancelled. No failure ends it."""
        while True:
            await self._wait()
            try:
                await self._turn()
            except NotLeader as refusal:
                log.info("recommendation not written: %s", refusal)
            except Exception:  # noqa: BLE001 - told whole, with its trace
                self.metrics.loop_errors.labels("advice").inc()
                self._tell(f"recommendation: {traceback.format_exc()}")

    async def _wait(self) -> None:
        now = self.clock()
        dues = [self._due_at(), self.plans.retries.next_due(now)]
        if self.worker.running:
            dues.append(self._used_at + self.idle_s)
        due = min((at for at in dues if at is not None), default=None)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._awake.wait(), None if due is None else max(0.05, due - now))
        self._awake.clear()

    def _due_at(self) -> float | None:
        """Return when to think again, None while there is no reason to."""
        dues = [at for at in (self.debounce.due_at(), self._retry_at) if at is not None]
        return max(min(dues), self._rested_at) if dues else None

    async def _turn(self) -> None:
        question, now = self._latest, self.clock()
        if self.worker.running and (question is None or now >= self._used_at + self.idle_s):
            await asyncio.to_thread(self.worker.stop)
        if question is None:
            self._retry_at = None
            return
        due = self._due_at()
        if due is not None and now >= due:
            await self._think(question)
        elif self._answer is None or self._answer.essence != question.essence:
            return  # what is known is of another fleet
        if self._answer is not None and self._answer.advised is not None:
            await self._show(self._answer.advised, question)

    async def _show(self, advised: Advised, question: RecommendationInput) -> None:
        if self._latest is None:
            return  # the lease was lost while we thought
        if advised.empty:
            self.metrics.clear_fleet_plan()
        else:
            self.metrics.show_fleet_plan(advised)
        await self.plans.write(advised, question.guard)

    async def _think(self, question: RecommendationInput) -> None:
        self.debounce.clear()
        self._retry_at = None
        before = self._answer.advised if self._answer else None
        try:
            with self.metrics.advice_seconds.time():
                found = await self.worker.advise(
                    question.snapshot, question.intents, before.inputs_hash if before else ""
                )
        except WorkerFailed as failure:
            self._failed(failure)
            found = before = None
        else:
            self._backoff.reset()
            self._told = ""
            known = found or before
            log.info("recommendation %s after %.1f s", known.name if known else "", self.worker.took_s)
        self._used_at = self.clock()
        self._rested_at = self._used_at + rest_s(self.worker.took_s)
        self._answer = RecommendationOutcome.to(question, found or before)
        self.news()

    def _failed(self, failure: WorkerFailed) -> None:
        self.metrics.advice_failures.labels(failure.why).inc()
        self.metrics.clear_fleet_plan()
        self._retry_at = self.clock() + self._backoff.next_s()
        self._tell(f"no recommendation ({failure.why}), nothing waits for it: {failure}")

    def _tell(self, what: str) -> None:
        """Log a failure, but not the same one again and again."""
        if what != self._told:
            self._told = what
            log.error("%s", what)
