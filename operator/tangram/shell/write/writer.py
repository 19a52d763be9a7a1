"""Performs the actions of a plan: compares with what is there, writes only differences, never touches
foreign objects.

Every write asks the lease first and names the very object by UID, or can only succeed when no object of
the name exists: Services and Jobs are created by POST; a Deployment by server-side apply without force,
which conflicts on the (required, atomic) selector of any Deployment that is not ours. What takes capacity
away is done only after `evidence` was read again, to the very version that was read.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tangram.api import parse_priority_class
from tangram.fleet import (
    Action,
    ApplyDeployment,
    ApplyService,
    FinishEvaluation,
    FinishInspection,
    Intent,
    RemoveDeployment,
    ResumeRollout,
    ScaleDeployment,
    StartEvaluation,
    StartInspection,
    Workload,
    WriteProblem,
    describe,
)
from tangram.shell.api_server.client import ApiClient, ApiError, Guard
from tangram.shell.api_server.retry_delays import RetrySchedule
from tangram.shell.lead.lease import NotLeader
from tangram.shell.lead.write_order import ROUND_WRITE_S, in_turn
from tangram.shell.measure.fault_log import Failed
from tangram.shell.objects import manifests
from tangram.shell.objects.kinds import (
    DEPLOYMENTS,
    JOBS,
    LLM_DEPLOYMENTS,
    PRIORITY_CLASSES,
    SERVICES,
    Identity,
    Kind,
    Object,
    key_of,
    owner_of,
    uid_of,
)
from tangram.shell.objects.manifest_diff import up_to_date
from tangram.shell.objects.pod_priority import keep_class
from tangram.shell.settings import Settings
from tangram.shell.watch.expectations import Expectations
from tangram.shell.watch.mirrors import Mirrors
from tangram.shell.write.evidence import Evidence, gather, reread
from tangram.shell.write.rollouts import resume

log = logging.getLogger(__name__)

WORKLOADS = "tangram-workloads"
CONCURRENCY = 8  # LLMDeployments written at once; the actions of one are written in order


class NameTaken(Exception):  # becomes a condition
    """A foreign object has the name that one of our children needs."""


@dataclass(slots=True)
class Writer:
    """Performs actions. `problems` tells what the API server refused, until it no longer does."""

    client: ApiClient
    guard: Guard
    mirrors: Mirrors
    settings: Settings
    expectations: Expectations
    retries: RetrySchedule
    clock: Callable[[], float]
    problems: dict[str, WriteProblem] = field(default_factory=dict)
    evaluation_problems: dict[str, WriteProblem] = field(default_factory=dict)  # of evaluate Jobs, likewise
    writes: int = 0
    behind: bool = False  # the last round ended before all was written
    written: Callable[[], None] = lambda: None  # told after each write, refused ones too
    failed: Failed = lambda _step, _what, _uid, _error: None  # told of each bug that a write brings out
    _rendered: dict[str, dict[str, tuple[object, Object]]] = field(
        default_factory=dict
    )  # by owner, then name

    async def perform(
        self, actions: tuple[Action, ...], intents: Mapping[str, Intent], workloads: Iterable[Workload] = ()
    ) -> None:
        """Perform all actions, namespaces in turn; those of one LLMDeployment in order, stopping at its first
        failure. What is not begun within ROUND_WRITE_S is left to the next round.

        `workloads` are those that were decided upon.
        """
        evidence = gather(intents, workloads)
        by_owner: dict[str, list[Action]] = {}
        for action in actions:
            by_owner.setdefault(action.owner_uid, []).append(action)
        for owner in self.problems.keys() - by_owner.keys():
            del self.problems[owner]  # nothing is to be written for it any more, so nothing is refused
        slots, until = asyncio.Semaphore(CONCURRENCY), self.clock() + ROUND_WRITE_S
        lost: list[NotLeader] = []
        self.behind = False

        async def one(owner: str, mine: list[Action]) -> None:
            async with slots:
                try:
                    if self.clock() > until:
                        self.behind = True
                    elif not lost:
                        await self._perform_for(owner, mine, evidence.get(owner))
                except NotLeader as refusal:
                    lost.append(refusal)

        turns = in_turn(
            by_owner.items(), lambda each: intents[each[0]].namespace if each[0] in intents else ""
        )
        await asyncio.gather(*(one(owner, mine) for owner, mine in turns))
        if lost:
            raise lost[0]

    def forget(self, living: set[str]) -> None:
        """Forget what was remembered about LLMDeployments that are gone."""
        for problems in (self.problems, self.evaluation_problems):
            for gone in problems.keys() - living:
                del problems[gone]
        for gone in self._rendered.keys() - living:
            del self._rendered[gone]

    async def _perform_for(self, owner: str, actions: list[Action], evidence: Evidence | None) -> None:
        if self.retries.blocked(owner, self.clock()):
            return
        intent = evidence.intent if evidence else None
        try:
            now = await self._reread(actions, evidence)
            for action in actions:
                if evidence is not None and evidence.lowers(action) and now is None:
                    continue
                await self._perform(action, intent, now or {})
                self.written()
        except (ApiError, NameTaken) as error:
            self.written()
            self._failed(owner, intent, error)
            return
        except NotLeader:
            raise
        except Exception as error:  # noqa: BLE001 - a bug of ours costs this LLMDeployment alone
            self._broke(owner, intent, error)
            return
        self.retries.succeed(owner)
        self.problems.pop(owner, None)

    async def _reread(self, actions: list[Action], evidence: Evidence | None) -> Mapping[str, Object] | None:
        """Return the Deployments by UID as they are now, if any of `actions` takes capacity away and what
        justified that still holds.
        """
        if evidence is None or not any(map(evidence.lowers, actions)):
            return None
        found = await reread(self.client, self.expectations, evidence, self.clock())
        if found is None:
            log.info(
                "%s/%s: changed since it was decided to take capacity away: decided again",
                *evidence.owner[:2],
            )
        return found

    async def _perform(self, action: Action, intent: Intent | None, now: Mapping[str, Object]) -> None:
        match action:
            case RemoveDeployment():
                await self._remove(DEPLOYMENTS, action, now.get(action.uid))
            case FinishInspection() | FinishEvaluation():
                await self._finish(action)
            case ScaleDeployment():
                await self._scale(action, now.get(action.uid))
            case ResumeRollout():
                self.writes += await resume(self.client, self.guard, action)
            case _ if intent is None:
                log.error("%s names no LLMDeployment that exists: nothing done", action)
            case ApplyService():
                owner = manifests.owner_of(intent)
                await self._ensure(
                    SERVICES, self._render("", owner, lambda: manifests.service(owner), owner.uid)
                )
            case ApplyDeployment():
                await self._ensure(
                    DEPLOYMENTS,
                    self._render(
                        action.shape.variant,
                        (intent, action),
                        lambda: manifests.deployment(intent, action, self.settings),
                        intent.uid,
                    ),
                    now,
                )
            case StartInspection():
                owner, priority = manifests.owner_of(intent), intent.priority_class_name
                await self._start(manifests.inspect_job(owner, action.key, self.settings, priority))
            case StartEvaluation():
                await self._evaluate(intent, action)

    def _makes_pods(self, class_name: str) -> bool:
        """Say whether pods of a PriorityClass are admitted, and preempt no others; so it is taken of unseen
        ones.
        """
        store = self.mirrors.store(PRIORITY_CLASSES, "")
        found = store.get(("", class_name))
        return not store.listed or (found is not None and not parse_priority_class(found).preempts)

    def _render(self, part: str, of: object, render: Callable[[], Object], owner: str) -> Object:
        """Return a manifest, rendered again only when what it is made `of` has changed. Never change it."""
        mine = self._rendered.setdefault(owner, {})
        if part not in mine or mine[part][0] != of:
            mine[part] = (of, render())
        return mine[part][1]

    async def _ensure(self, kind: Kind, rendered: Object, now: Mapping[str, Object] | None = None) -> None:
        live = self.mirrors.store(kind, rendered["metadata"]["namespace"]).get(key_of(rendered))
        if live is None:
            await self._create(kind, rendered)
        else:
            await self._update(kind, (now or {}).get(uid_of(live), live), rendered)

    async def _create(self, kind: Kind, rendered: Object) -> None:
        try:
            if kind == DEPLOYMENTS:
                result = await self.client.apply(
                    kind, rendered, manager=WORKLOADS, force=False, guard=self.guard
                )
            else:
                result = await self.client.create(kind, rendered, manager=WORKLOADS, guard=self.guard)
        except ApiError as error:
            if error.status != 409:
                raise
            live = await self.client.get(kind, *key_of(rendered))
            if live is None:
                raise  # it went away in between: try again later
            await self._update(kind, live, rendered)
            return
        self._wrote(kind, result)

    async def _update(self, kind: Kind, live: Object, rendered: Object) -> None:
        if _is_of_a_predecessor(live, rendered):
            log.info(
                "%s %s of another LLMDeployment of the same name is still there", kind.kind, key_of(live)
            )
            return  # the garbage collector deletes it with its owner: the mirror tells when it is gone
        _must_be_ours(kind, live, rendered)
        if kind == DEPLOYMENTS:
            rendered = keep_class(live, rendered, self._makes_pods)
        if live["metadata"].get("deletionTimestamp") or up_to_date(live, rendered):
            return
        identity = {"uid": uid_of(live)}
        if _lowers(live, rendered):
            identity["resourceVersion"] = live["metadata"]["resourceVersion"]
        exactly = {**rendered, "metadata": {**rendered["metadata"], **identity}}
        try:
            result = await self.client.apply(kind, exactly, manager=WORKLOADS, force=True, guard=self.guard)
        except ApiError as error:
            if error.status == 409 and "resourceVersion" in identity:
                return  # it changed since we looked: look again
            raise
        self._wrote(kind, result)

    async def _start(self, job: Object) -> None:
        store = self.mirrors.store(JOBS, job["metadata"]["namespace"])
        live = store.get(key_of(job))
        if live is None:
            try:
                self._wrote(JOBS, await self.client.create(JOBS, job, manager=WORKLOADS, guard=self.guard))
                return
            except ApiError as error:
                if error.status != 409:
                    raise
            live = await self.client.get(JOBS, *key_of(job))
        if (
            live is not None and owner_of(live) is None
        ):  # a Job of another LLMDeployment answers the same question
            raise NameTaken(_taken(JOBS, job))

    async def _evaluate(self, intent: Intent, action: StartEvaluation) -> None:
        """Start an evaluate Job. One that is refused costs its LLMDeployment the evaluation alone."""
        key = evaluation_retry_key(intent.uid)
        if self.retries.blocked(key, self.clock()):
            return
        try:
            await self._start(manifests.evaluate_job(intent, action, self.settings))
        except (ApiError, NameTaken) as error:
            problem = _problem(intent.uid, error)
            if problem is None:
                raise
            log.warning("%s/%s: evaluate Job: %s", intent.namespace, intent.name, error)
            self.retries.fail(key, self.clock())
            self.evaluation_problems[intent.uid] = problem
        else:
            self.retries.succeed(key)
            self.evaluation_problems.pop(intent.uid, None)

    async def _finish(self, action: FinishInspection | FinishEvaluation) -> None:
        """Delete a Job, unless the LLMDeployment that it was started for has changed unseen."""
        job = self.mirrors.store(JOBS, action.namespace).get((action.namespace, action.name))
        owner = owner_of(job) if job else None
        if owner is not None:
            live = await self.client.get(LLM_DEPLOYMENTS, owner.namespace, owner.name)
            known = self.mirrors.store(LLM_DEPLOYMENTS, owner.namespace).get(owner[:2])
            if live is not None and (known is None or _changed(known, live)):
                self.expectations.written(LLM_DEPLOYMENTS, live, self.clock())
                return
        await self._remove(JOBS, action, job)

    async def _remove(
        self, kind: Kind, action: RemoveDeployment | FinishInspection | FinishEvaluation, live: Object | None
    ) -> None:
        key = (action.namespace, action.name)
        if live is None or uid_of(live) != action.uid or live["metadata"].get("deletionTimestamp"):
            return
        theirs = owner_of(live)
        # A Job serves every LLMDeployment of its namespace that names its checkpoint.
        if theirs is None or (isinstance(action, RemoveDeployment) and theirs.uid != action.owner_uid):
            log.error("%s names an object that another owns: nothing done", action)
            return
        version = live["metadata"].get("resourceVersion")
        try:
            found = await self.client.delete(
                kind, *key, uid=action.uid, resource_version=version, guard=self.guard
            )
        except ApiError as error:
            if error.status == 409:
                return  # it changed since we looked: look again
            raise
        self.writes += found
        self.expectations.deleted(kind, key, action.uid, self.clock())

    async def _scale(self, action: ScaleDeployment, live: Object | None) -> None:
        if live is None or uid_of(live) != action.uid or live["metadata"].get("deletionTimestamp"):
            return
        theirs = owner_of(live)
        if theirs is None or theirs.uid != action.owner_uid:
            log.error("%s names an object that another owns: nothing done", action)
            return
        if int(live["spec"].get("replicas", 1)) <= action.replicas:
            return
        version = live["metadata"]["resourceVersion"]  # what it was decided upon: its size and its pods
        patch = {
            "metadata": {"uid": action.uid, "resourceVersion": version},
            "spec": {"replicas": action.replicas},
        }
        try:
            result = await self.client.merge(
                DEPLOYMENTS, action.namespace, action.name, patch, guard=self.guard
            )
        except ApiError as error:
            if error.status in (404, 409):
                return  # it changed since we looked: look again
            raise
        self._wrote(DEPLOYMENTS, result)

    def _wrote(self, kind: Kind, result: Object) -> None:
        self.writes += 1
        self.expectations.written(kind, result, self.clock())

    def _failed(self, owner: str, intent: Intent | None, error: ApiError | NameTaken) -> None:
        wait = error.retry_after_s if isinstance(error, ApiError) else 0.0
        self.retries.fail(owner, self.clock(), wait)
        who = f"{intent.namespace}/{intent.name}" if intent else owner
        log.warning("%s: %s", who, error)
        problem = _problem(owner, error)
        if problem is not None:
            self.problems[owner] = problem

    def _broke(self, owner: str, intent: Intent | None, error: Exception) -> None:
        self.retries.fail(owner, self.clock(), 0.0)
        self.failed("write", f"{intent.namespace}/{intent.name}" if intent else owner, owner, error)
        message = f"its objects could not be written ({describe(error)}); please report this"
        self.problems[owner] = WriteProblem(owner, "NotJudged", message)


def evaluation_retry_key(uid: str) -> str:
    """Return the key under which refused evaluate Jobs of an LLMDeployment wait for their next try."""
    return f"evaluate {uid}"


def _problem(owner: str, error: ApiError | NameTaken) -> WriteProblem | None:
    """Return what a person can do something about; None for what passes by itself."""
    if isinstance(error, NameTaken):
        return WriteProblem(owner, "NameTaken", str(error))
    if error.status == 403:
        return WriteProblem(owner, "Forbidden", error.message)
    if 400 <= error.status < 500 and not error.transient and error.status != 409:
        return WriteProblem(owner, "Rejected", error.message)
    return None


def _lowers(live: Object, rendered: Object) -> bool:
    """Say whether `rendered` has fewer replicas (Services have none)."""
    wanted, there = rendered["spec"].get("replicas", 0), live["spec"].get("replicas", 0)
    return bool(wanted < there)


def _changed(known: Object, live: Object) -> bool:
    """Say whether an LLMDeployment is another, or asks for something else, than it is known to."""
    generations = known["metadata"].get("generation"), live["metadata"].get("generation")
    return uid_of(known) != uid_of(live) or generations[0] != generations[1]


def _is_of_a_predecessor(live: Object, rendered: Object) -> bool:
    """Say whether `live` belongs to an LLMDeployment of this name that is gone, or that we do not know yet:
    names are unique in a namespace, so of two UIDs under one name one is past.
    """
    theirs, ours = owner_of(live), _owner_of_rendered(rendered)
    return theirs is not None and theirs[:2] == ours[:2] and theirs.uid != ours.uid


def _must_be_ours(kind: Kind, live: Object, rendered: Object) -> None:
    if owner_of(live) != _owner_of_rendered(rendered):
        raise NameTaken(_taken(kind, rendered))


def _owner_of_rendered(rendered: Object) -> Identity:
    owner = owner_of(rendered)
    assert owner is not None  # noqa: S101 - every manifest has its LLMDeployment as controller
    return owner


def _taken(kind: Kind, rendered: Object) -> str:
    meta = rendered["metadata"]
    return (
        f"a {kind.kind} named {meta['name']} exists in namespace {meta['namespace']} and does not belong to "
        "this LLMDeployment; it was left alone: rename the LLMDeployment or remove that object"
    )
