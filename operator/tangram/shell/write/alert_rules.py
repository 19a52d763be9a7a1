"""Keep one PrometheusRule per LLMDeployment with objectives, where the Prometheus Operator is installed.

It runs beside the reconcile loop, with mirrors of its own: neither a slow admission webhook nor a missing
right or CustomResourceDefinition delays a plan. Level-triggered, as everything is: each pass compares what is
offered with the mirrors. The garbage collector deletes a rule with its LLMDeployment.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tangram.fleet import Intent
from tangram.kube import kinds
from tangram.kube.client import ApiClient, ApiError, Guard
from tangram.kube.kinds import Kind, Object, owner_of
from tangram.kube.mirror import Mirror, MirrorSource
from tangram.kube.retry_delays import RetrySchedule
from tangram.kube.store import Store
from tangram.shell.lead.lease import NotLeader
from tangram.shell.lead.round_writes import write_in_turn
from tangram.shell.measure.fault_log import FaultHandler
from tangram.shell.objects import manifests
from tangram.shell.settings import PrometheusRuleSettings
from tangram.shell.watch import kept_fields
from tangram.shell.watch.expectations import OWN_WRITE_TIMEOUT_S, Expectations
from tangram.shell.write.object_writer import ObjectWriter
from tangram.shell.write.refusals import NameTaken, write_problem

log = logging.getLogger(__name__)

PAUSE_S = 1.0  # between two passes
TICK_S = 60.0  # without a change
DELAYS_S = (1.0, 5.0, 30.0, 120.0)  # after refusals
_MISSING = "it has no alert rules"


def rule_sources(namespaces: tuple[str, ...], settings: PrometheusRuleSettings) -> tuple[MirrorSource, ...]:
    """Return the sources of the mirrors of PrometheusRules: none unless they are enabled."""
    if not settings.per_llm_deployment:
        return ()
    keep = kept_fields.prometheus_rule(settings.labels)
    return tuple(
        MirrorSource(kinds.PROMETHEUS_RULES, keep, namespace, kinds.OURS_SELECTOR, optional=True)
        for namespace in namespaces or ("",)
    )


@dataclass(slots=True)
class AlertRules:
    """Keeps the PrometheusRules of LLMDeployments. `run()` until cancelled."""

    client: ApiClient
    mirrors: tuple[Mirror, ...]
    settings: PrometheusRuleSettings
    clock: Callable[[], float]
    changed: Callable[[], None] = lambda: None  # called when `problems` has changed
    failed: FaultHandler = lambda _step, _what, _uid, _error: None  # called with each bug that a write meets
    retries: RetrySchedule = field(default_factory=lambda: RetrySchedule(DELAYS_S))
    problems: dict[str, str] = field(default_factory=dict)  # by UID: why an LLMDeployment has no rules
    _offered: tuple[Intent, ...] = ()
    _guard: Guard | None = None  # None: this operator does not lead
    _expectations: Expectations = field(init=False)
    # By UID: what the last successful pass depended on, and the version that it found. Not of a creation: an
    # object that is deleted afterwards looks the same.
    _written: dict[str, tuple[object, object]] = field(default_factory=dict)
    _logged: dict[str, str] = field(default_factory=dict)  # by UID: the last failure
    _awake: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._expectations = Expectations(self._store)

    def offer(self, intents: Iterable[Intent], guard: Guard) -> None:
        """Take the valid LLMDeployments of one round. `guard` must be bound to the term of that round."""
        self._offered, self._guard = tuple(intents), guard
        self.wake()

    def stop_leading(self) -> None:
        """Stop writing: this operator no longer leads."""
        self._guard = None

    def wake(self) -> None:
        """Request a pass soon: something has changed."""
        self._awake.set()

    async def run(self) -> None:
        """Keep the mirrors current and the rules as they should be, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for mirror in self.mirrors:
                group.create_task(mirror.run(), name=f"mirror of {mirror.source}")
            group.create_task(self._run(), name="passes over alert rules")

    async def _run(self) -> None:
        while True:
            due = self.retries.next_due(self.clock())
            wait_s = TICK_S if due is None else max(PAUSE_S, min(TICK_S, due - self.clock()))
            if self._expectations.open():
                wait_s = min(wait_s, OWN_WRITE_TIMEOUT_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._awake.wait()
            self._awake.clear()
            try:
                await self.write()
            except NotLeader:
                pass  # the next leader writes what is left
            except Exception as error:  # noqa: BLE001 - nothing else depends on it
                self.failed("alert rules", "alert rules", "", error)
            await asyncio.sleep(PAUSE_S)

    async def write(self) -> None:
        """Write what differs from the rules that should be. Raises NotLeader; refusals are kept for
        conditions, and tried again later.
        """
        intents, guard = self._offered, self._guard
        if guard is None:
            return
        self._forget({intent.uid for intent in intents})
        if not self._sees_own_writes():
            return
        before = dict(self.problems)
        writer = ObjectWriter(self.client, guard, self._store, self._expectations, self.clock)

        async def write_one(intent: Intent) -> None:
            await self._write_one(intent, writer)

        for intent in intents:
            self._note_rights(intent)
        due = [intent for intent in intents if self._is_due(intent)]
        _, finished = await write_in_turn(due, lambda intent: intent.namespace, write_one, self.clock)
        if not finished:
            self.wake()
        if self.problems != before:
            self.changed()

    def _note_rights(self, intent: Intent) -> None:
        """Keep as problem that the operator may not list rules; where none are served, there is none."""
        mirror = self._mirror(intent.namespace)
        if mirror is None or not mirror.unavailable:
            return
        if mirror.forbidden and _has_objectives(intent):
            self.problems[intent.uid] = _no_rights(intent)
        else:
            self.problems.pop(intent.uid, None)

    def _is_due(self, intent: Intent) -> bool:
        """Whether the rule of an LLMDeployment may differ, and may be written now."""
        mirror = self._mirror(intent.namespace)
        if mirror is None or not mirror.synced or mirror.unavailable:
            return False
        written = self._written.get(intent.uid)
        if written is not None and written == (_relevant(intent), self._version(intent)):
            return False
        return not self.retries.blocked(intent.uid, self.clock())

    async def _write_one(self, intent: Intent, writer: ObjectWriter) -> None:
        live, found = self._live(intent), self._version(intent)
        try:
            if _has_objectives(intent):
                rendered = manifests.prometheus_rule(intent, self.settings)
                await writer.ensure(kinds.PROMETHEUS_RULES, rendered)
            elif live is not None and _is_own(live, intent):
                await writer.delete(kinds.PROMETHEUS_RULES, live)
        except NotLeader:
            raise
        except (ApiError, NameTaken) as error:
            self._note_refusal(intent, error)
        except Exception as error:  # noqa: BLE001 - a bug of ours costs the alerts of this LLMDeployment alone
            self.retries.record_failure(intent.uid, self.clock())
            self.failed("alert rules", f"{intent.namespace}/{intent.name}", "", error)
        else:
            self._written.pop(intent.uid, None)
            if live is not None or not _has_objectives(intent):
                self._written[intent.uid] = (_relevant(intent), found)
            self.retries.record_success(intent.uid)
            self.problems.pop(intent.uid, None)
            self._logged.pop(intent.uid, None)

    def _note_refusal(self, intent: Intent, error: ApiError | NameTaken) -> None:
        """Keep what a person must solve, which a condition reports; log anything else once."""
        retry_after_s = error.retry_after_s if isinstance(error, ApiError) else 0.0
        self.retries.record_failure(intent.uid, self.clock(), retry_after_s)
        if isinstance(error, ApiError) and error.status == 404:
            return  # the CustomResourceDefinition or the namespace has gone, as the mirror will show
        problem = write_problem(intent.uid, error)
        if problem is not None:
            is_right = problem.reason == "Forbidden"
            self.problems[intent.uid] = _no_rights(intent) if is_right else f"{_MISSING}: {problem.message}"
            return
        self.problems.pop(intent.uid, None)
        if self._logged.get(intent.uid) != str(error):
            self._logged[intent.uid] = str(error)
            log.warning("%s/%s: PrometheusRule not written: %s", intent.namespace, intent.name, error)

    def _sees_own_writes(self) -> bool:
        """Whether the mirrors show the last writes. If one does not in time, it lists again."""
        for late in self._expectations.overdue(self.clock()):
            if (mirror := self._mirror(late.key[0])) is not None:
                mirror.request_relist()
        return not self._expectations.open()

    def _forget(self, existing_uids: set[str]) -> None:
        """Forget deleted LLMDeployments."""
        self.retries.retain(existing_uids)
        by_uid: dict[str, Any]
        for by_uid in (self.problems, self._written, self._logged):
            for uid in by_uid.keys() - existing_uids:
                del by_uid[uid]

    def _live(self, intent: Intent) -> Object | None:
        return self._store(kinds.PROMETHEUS_RULES, intent.namespace).get((intent.namespace, intent.name))

    def _version(self, intent: Intent) -> tuple[str, int]:
        """Return UID and version of the object under the rule's name, ("", -1) where there is none."""
        store = self._store(kinds.PROMETHEUS_RULES, intent.namespace)
        return store.identity((intent.namespace, intent.name))

    def _store(self, _kind: Kind, namespace: str) -> Store:
        mirror = self._mirror(namespace)
        assert mirror is not None  # noqa: S101 - asked for namespaces of mirrors only
        return mirror.store

    def _mirror(self, namespace: str) -> Mirror | None:
        return next((m for m in self.mirrors if m.source.namespace in ("", namespace)), None)


def _has_objectives(intent: Intent) -> bool:
    return intent.ttft is not None or intent.tpot is not None


def _relevant(intent: Intent) -> tuple[object, ...]:
    """Return what the rule of an LLMDeployment depends on."""
    return intent.namespace, intent.name, intent.uid, intent.served_name, intent.objectives


def _is_own(live: Object, intent: Intent) -> bool:
    return owner_of(live) == manifests.owner_identity(intent) and not live["metadata"].get(
        "deletionTimestamp"
    )


def _no_rights(intent: Intent) -> str:
    """The same text for all LLMDeployments of a namespace: it is logged once."""
    return (
        f"{_MISSING}: the operator may not write PrometheusRules in namespace {intent.namespace}, a right"
        " that the chart grants with prometheusRule.perLLMDeployment"
    )
