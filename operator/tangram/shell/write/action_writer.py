"""Write the actions of a plan to the API server: only differences, only to owned objects, fair to namespaces.

The actions of one LLMDeployment are written in order and stop at the first failure; its next try waits for a
back-off, and other LLMDeployments are not affected. Actions that remove capacity are written only after a
quorum read has confirmed the state that the plan is based on.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tangram.fleet import (
    Action,
    ApplyDeployment,
    ApplyModelClaim,
    ApplyService,
    FinishEvaluation,
    FinishInspection,
    Intent,
    RemoveDeployment,
    RemoveModelClaim,
    ResumeRollout,
    ScaleDeployment,
    StartEvaluation,
    StartFill,
    StartInspection,
    Workload,
    WriteProblem,
    describe,
)
from tangram.kube.client import ApiClient, ApiError, Guard
from tangram.kube.kinds import DEPLOYMENTS, SERVICES, Object
from tangram.kube.retry_delays import RetrySchedule
from tangram.shell.lead.lease import NotLeader
from tangram.shell.lead.round_writes import write_in_turn
from tangram.shell.measure.fault_log import FaultHandler
from tangram.shell.objects import manifests
from tangram.shell.objects.model_claims import model_claim
from tangram.shell.settings import Settings
from tangram.shell.watch.expectations import Expectations
from tangram.shell.watch.mirrors import Mirrors
from tangram.shell.write.object_writer import ObjectWriter
from tangram.shell.write.quorum_read import OwnerSnapshot, owner_snapshots, unchanged_deployments
from tangram.shell.write.refusals import NameTaken, write_problem
from tangram.shell.write.stalled_rollouts import resume_rollout

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ActionWriter:
    """Performs the actions of plans. `problems` holds refusals of the API server by UID, until it accepts."""

    client: ApiClient
    guard: Guard
    mirrors: Mirrors
    settings: Settings
    expectations: Expectations
    retries: RetrySchedule
    clock: Callable[[], float]
    problems: dict[str, WriteProblem] = field(default_factory=dict)
    evaluation_problems: dict[str, WriteProblem] = field(default_factory=dict)  # of evaluate Jobs, likewise
    unfinished: bool = False  # the last round left writes to the next one
    written: Callable[[], None] = lambda: None  # called after each write, refused ones included
    failed: FaultHandler = lambda _step, _what, _uid, _error: None  # called with each bug that a write meets
    _objects: ObjectWriter = field(init=False)
    _rendered: dict[str, dict[str, tuple[object, Object]]] = field(
        default_factory=dict
    )  # by UID, then part: what the manifest was rendered from, and the manifest

    def __post_init__(self) -> None:
        self._objects = ObjectWriter(
            self.client, self.guard, self.mirrors.store, self.expectations, self.clock
        )

    async def perform(
        self, actions: tuple[Action, ...], intents: Mapping[str, Intent], workloads: Iterable[Workload] = ()
    ) -> None:
        """Perform all actions, namespaces in turn. Writes not begun within ROUND_WRITE_S are left to the next
        round. `workloads` are those that the plan is based on. Raises NotLeader.
        """
        planned = owner_snapshots(intents, workloads)
        by_owner: dict[str, list[Action]] = {}
        for action in actions:
            by_owner.setdefault(action.owner_uid, []).append(action)
        for uid in self.problems.keys() - by_owner.keys():
            del self.problems[uid]  # nothing is left to write, so nothing is refused

        def namespace(uid: str) -> str:
            return intents[uid].namespace if uid in intents else ""

        async def perform_for(uid: str) -> None:
            await self._perform_for(uid, by_owner[uid], planned.get(uid))

        _, finished = await write_in_turn(by_owner, namespace, perform_for, self.clock)
        self.unfinished = not finished

    def forget(self, existing_uids: set[str]) -> None:
        """Forget deleted LLMDeployments."""
        by_uid: dict[str, Any]
        for by_uid in (self.problems, self.evaluation_problems, self._rendered):
            for uid in by_uid.keys() - existing_uids:
                del by_uid[uid]

    async def _perform_for(self, uid: str, actions: list[Action], planned: OwnerSnapshot | None) -> None:
        if self.retries.blocked(uid, self.clock()):
            return
        intent = planned.intent if planned else None
        name = f"{intent.namespace}/{intent.name}" if intent else uid
        try:
            live = await self._confirm_removals(actions, planned)
            for action in actions:
                if live is None and planned is not None and planned.removes_capacity(action):
                    continue
                await self._perform(action, intent, live or {})
                self.written()
        except (ApiError, NameTaken) as error:
            self.written()
            log.warning("%s: %s", name, error)
            retry_after_s = error.retry_after_s if isinstance(error, ApiError) else 0.0
            self.retries.record_failure(uid, self.clock(), retry_after_s)
            problem = write_problem(uid, error)
            if problem is not None:
                self.problems[uid] = problem
        except NotLeader:
            raise
        except Exception as error:  # noqa: BLE001 - a bug of ours stops this LLMDeployment alone
            self.retries.record_failure(uid, self.clock())
            self.failed("write", name, uid, error)
            message = f"its objects could not be written ({describe(error)}); please report this"
            self.problems[uid] = WriteProblem(uid, "NotJudged", message)
        else:
            self.retries.record_success(uid)
            self.problems.pop(uid, None)

    async def _confirm_removals(
        self, actions: list[Action], planned: OwnerSnapshot | None
    ) -> Mapping[str, Object] | None:
        """Return the Deployments as read with quorum, by UID. None if no action removes capacity, or if the
        state that the plan is based on has changed.
        """
        if planned is None or not any(map(planned.removes_capacity, actions)):
            return None
        live = await unchanged_deployments(self.client, self.expectations, planned, self.clock())
        if live is None:
            intent = planned.intent
            log.info("%s/%s changed during planning: no replica is removed", intent.namespace, intent.name)
        return live

    async def _perform(self, action: Action, intent: Intent | None, live: Mapping[str, Object]) -> None:
        match action:
            case RemoveDeployment():
                await self._objects.remove(DEPLOYMENTS, action, live.get(action.uid))
            case FinishInspection() | FinishEvaluation():
                await self._objects.finish(action)
            case ScaleDeployment():
                await self._objects.scale_down(action, live.get(action.uid))
            case ResumeRollout():
                await resume_rollout(self.client, self.guard, action)
            case ApplyModelClaim() | RemoveModelClaim():
                await self._perform_on_claim(action)
            case _ if intent is None:
                log.error("%s names no LLMDeployment that exists: not performed", action)
            case ApplyService():
                owner = manifests.owner_identity(intent)
                await self._objects.ensure(
                    SERVICES, self._render(owner.uid, "", owner, lambda: manifests.service(owner))
                )
            case ApplyDeployment():
                rendered = self._render(
                    intent.uid,
                    action.shape.variant,
                    (intent, action),
                    lambda: manifests.deployment(intent, action, self.settings),
                )
                await self._objects.ensure(DEPLOYMENTS, rendered, live)
            case StartInspection():
                owner, priority = manifests.owner_identity(intent), intent.priority_class_name
                job = manifests.inspect_job(
                    owner, action.key, self.settings, priority, action.secret, action.revision
                )
                await self._objects.start(job)
            case StartFill():
                owner, priority = manifests.owner_identity(intent), intent.priority_class_name
                job = manifests.fill_job(owner, action.key, self.settings, priority, action.secret)
                await self._objects.start(job)
            case StartEvaluation():
                await self._start_evaluation(intent, action)

    async def _perform_on_claim(self, action: ApplyModelClaim | RemoveModelClaim) -> None:
        if isinstance(action, RemoveModelClaim):
            await self._objects.remove_claim(action)
        else:
            await self._objects.apply_claim(
                model_claim(action.key, is_filled=action.is_filled, unused_since=action.unused_since)
            )

    def _render(self, uid: str, part: str, source: object, render: Callable[[], Object]) -> Object:
        """Return a manifest, rendered again only if its `source` has changed. Never change the result."""
        parts = self._rendered.setdefault(uid, {})
        if part not in parts or parts[part][0] != source:
            parts[part] = (source, render())
        return parts[part][1]

    async def _start_evaluation(self, intent: Intent, action: StartEvaluation) -> None:
        """Start an evaluate Job. A refusal stops the evaluation alone, not the LLMDeployment."""
        key = evaluation_retry_key(intent.uid)
        if self.retries.blocked(key, self.clock()):
            return
        try:
            await self._objects.start(manifests.evaluate_job(intent, action, self.settings))
        except (ApiError, NameTaken) as error:
            problem = write_problem(intent.uid, error)
            if problem is None:
                raise
            log.warning("%s/%s: evaluate Job: %s", intent.namespace, intent.name, error)
            self.retries.record_failure(key, self.clock())
            self.evaluation_problems[intent.uid] = problem
        else:
            self.retries.record_success(key)
            self.evaluation_problems.pop(intent.uid, None)


def evaluation_retry_key(uid: str) -> str:
    """Return the back-off key of the evaluate Jobs of an LLMDeployment."""
    return f"evaluate {uid}"
