"""Create, update, scale down and delete the objects that LLMDeployments own.

Every write names the object by UID, or can only succeed while no object has its name: Services and Jobs are
created by POST; a Deployment by server-side apply without force, which conflicts with the (required, atomic)
selector of any foreign Deployment. What is written is expected to appear in the mirrors.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tangram.api import parse_priority_class
from tangram.fleet import (
    FinishEvaluation,
    FinishInspection,
    RemoveDeployment,
    RemoveModelClaim,
    ScaleDeployment,
)
from tangram.kube.client import ApiClient, ApiError, Guard
from tangram.kube.kinds import (
    DEPLOYMENTS,
    JOBS,
    LLM_DEPLOYMENTS,
    MODEL_CLAIMS,
    PRIORITY_CLASSES,
    Identity,
    Kind,
    Object,
    annotations_of,
    key_of,
    owner_of,
    uid_of,
)
from tangram.kube.store import Store
from tangram.shell.objects.manifest_match import up_to_date
from tangram.shell.watch.expectations import Expectations
from tangram.shell.write.pod_priority import keep_live_class
from tangram.shell.write.refusals import NameTaken

log = logging.getLogger(__name__)

WORKLOADS = "tangram-workloads"  # field manager


@dataclass(slots=True)
class ObjectWriter:
    """Writes one owned object at a time. Each method raises ApiError, NotLeader or NameTaken."""

    client: ApiClient
    guard: Guard
    mirror_of: Callable[[Kind, str], Store]  # the copy of a kind in a namespace
    expectations: Expectations
    clock: Callable[[], float]

    async def ensure(self, kind: Kind, rendered: Object, live: Mapping[str, Object] | None = None) -> None:
        """Make the object as `rendered`. An object of `live` (by UID) takes precedence over its mirror."""
        mirrored = self.mirror_of(kind, rendered["metadata"]["namespace"]).get(key_of(rendered))
        if mirrored is None:
            await self._create(kind, rendered)
        else:
            await self._update(kind, (live or {}).get(uid_of(mirrored), mirrored), rendered)

    async def start(self, job: Object) -> None:
        """Create a Job. One of another LLMDeployment serves as well: its name says what it computes."""
        live = self.mirror_of(JOBS, job["metadata"]["namespace"]).get(key_of(job))
        if live is None:
            try:
                created = await self.client.create(JOBS, job, manager=WORKLOADS, guard=self.guard)
            except ApiError as error:
                if error.status != 409:
                    raise
            else:
                self._expect(JOBS, created)
                return
            live = await self.client.get(JOBS, *key_of(job))
        if live is not None and owner_of(live) is None:
            raise NameTaken(JOBS, job)

    async def finish(self, action: FinishInspection | FinishEvaluation) -> None:
        """Delete a Job, unless its LLMDeployment has a change that the mirror does not show yet."""
        job = self.mirror_of(JOBS, action.namespace).get((action.namespace, action.name))
        owner = owner_of(job) if job else None
        if owner is not None:
            live = await self.client.get(LLM_DEPLOYMENTS, owner.namespace, owner.name)
            mirrored = self.mirror_of(LLM_DEPLOYMENTS, owner.namespace).get(owner[:2])
            if live is not None and (mirrored is None or _generation(mirrored) != _generation(live)):
                self.expectations.expect_write(LLM_DEPLOYMENTS, live, self.clock())
                return
        await self.remove(JOBS, action, job)

    async def remove(
        self, kind: Kind, action: RemoveDeployment | FinishInspection | FinishEvaluation, live: Object | None
    ) -> None:
        """Delete `live` in exactly this version, if it is the object that `action` names."""
        if live is not None and _is_target(action, live):
            await self.delete(kind, live)

    async def delete(self, kind: Kind, live: Object) -> None:
        """Delete `live` in exactly this version."""
        try:
            await self.client.delete(
                kind,
                *key_of(live),
                uid=uid_of(live),
                resource_version=live["metadata"].get("resourceVersion"),
                guard=self.guard,
            )
        except ApiError as error:
            if error.status == 409:
                return  # changed since it was read: the next round decides again
            raise
        self.expectations.expect_deletion(kind, key_of(live), uid_of(live), self.clock())

    async def apply_claim(self, rendered: Object) -> None:
        """Make a claim exist, with the records of its annotations. Nothing else of it ever changes."""
        kind, key, records = MODEL_CLAIMS, key_of(rendered), rendered["metadata"]["annotations"]
        live = self.mirror_of(kind, key[0]).get(key)
        if live is None:
            present = {name: value for name, value in records.items() if value is not None}
            body = {**rendered, "metadata": {**rendered["metadata"], "annotations": present}}
            try:
                self._expect(kind, await self.client.create(kind, body, manager=WORKLOADS, guard=self.guard))
            except ApiError as error:
                if error.status != 409:
                    raise
                raise NameTaken(kind, rendered) from None
        elif any(annotations_of(live).get(name) != value for name, value in records.items()):
            version = {"uid": uid_of(live), "resourceVersion": live["metadata"]["resourceVersion"]}
            patch = {"metadata": {**version, "annotations": records}}
            try:
                self._expect(kind, await self.client.merge(kind, *key, patch, guard=self.guard))
            except ApiError as error:
                if error.status not in (404, 409):
                    raise  # else changed since it was read: the next round decides again

    async def remove_claim(self, action: RemoveModelClaim) -> None:
        """Delete the claim that `action` names, in exactly the version that the mirror shows."""
        live = self.mirror_of(MODEL_CLAIMS, action.namespace).get((action.namespace, action.name))
        if live is not None and uid_of(live) == action.uid and not live["metadata"].get("deletionTimestamp"):
            await self.delete(MODEL_CLAIMS, live)

    async def scale_down(self, action: ScaleDeployment, live: Object | None) -> None:
        """Lower the replicas of `live` in exactly this version, if it is the object that `action` names."""
        if live is None or not _is_target(action, live):
            return
        if int(live["spec"].get("replicas", 1)) <= action.replicas:
            return
        patch = {
            "metadata": {"uid": action.uid, "resourceVersion": live["metadata"]["resourceVersion"]},
            "spec": {"replicas": action.replicas},
        }
        try:
            result = await self.client.merge(
                DEPLOYMENTS, action.namespace, action.name, patch, guard=self.guard
            )
        except ApiError as error:
            if error.status in (404, 409):
                return  # changed since it was read: the next round decides again
            raise
        self._expect(DEPLOYMENTS, result)

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
                raise  # deleted in between: the back-off tries again
            await self._update(kind, live, rendered)
            return
        self._expect(kind, result)

    async def _update(self, kind: Kind, live: Object, rendered: Object) -> None:
        if _is_of_a_predecessor(live, rendered):
            log.info("%s %s still belongs to an earlier LLMDeployment of this name", kind.kind, key_of(live))
            return  # the garbage collector deletes it with its owner, and the mirror then shows it gone
        if owner_of(live) != _owner_of_rendered(rendered):
            raise NameTaken(kind, rendered)
        if kind == DEPLOYMENTS:
            rendered = keep_live_class(live, rendered, self._can_create_pods)
        if live["metadata"].get("deletionTimestamp") or up_to_date(live, rendered):
            return
        precondition = {"uid": uid_of(live)}
        if rendered["spec"].get("replicas", 0) < live["spec"].get("replicas", 0):  # Services have none
            precondition["resourceVersion"] = live["metadata"]["resourceVersion"]
        body = {**rendered, "metadata": {**rendered["metadata"], **precondition}}
        try:
            result = await self.client.apply(kind, body, manager=WORKLOADS, force=True, guard=self.guard)
        except ApiError as error:
            if error.status == 409 and "resourceVersion" in precondition:
                return  # changed since it was read: the next round decides again
            raise
        self._expect(kind, result)

    def _can_create_pods(self, class_name: str) -> bool:
        """Say whether pods of a PriorityClass are admitted and preempt no others. True while PriorityClasses
        are not listed.
        """
        store = self.mirror_of(PRIORITY_CLASSES, "")
        priority_class = store.get(("", class_name))
        return not store.listed or (
            priority_class is not None and not parse_priority_class(priority_class).preempts
        )

    def _expect(self, kind: Kind, result: Object) -> None:
        self.expectations.expect_write(kind, result, self.clock())


def _is_target(
    action: RemoveDeployment | ScaleDeployment | FinishInspection | FinishEvaluation, live: Object
) -> bool:
    """Say whether `live` is the object that `action` names, and not yet being deleted."""
    if uid_of(live) != action.uid or live["metadata"].get("deletionTimestamp"):
        return False
    owner = owner_of(live)
    # A Job serves every LLMDeployment of its namespace that names its checkpoint.
    owned = isinstance(action, (RemoveDeployment, ScaleDeployment))
    if owner is None or (owned and owner.uid != action.owner_uid):
        log.error("%s names an object with another owner: not performed", action)
        return False
    return True


def _generation(llm_deployment: Object) -> tuple[str, object]:
    return uid_of(llm_deployment), llm_deployment["metadata"].get("generation")


def _is_of_a_predecessor(live: Object, rendered: Object) -> bool:
    """Say whether `live` belongs to another LLMDeployment of the same name. Names are unique in a namespace,
    so of two UIDs under one name one is past: a deleted LLMDeployment, or ours with its mirror behind.
    """
    owner, own = owner_of(live), _owner_of_rendered(rendered)
    return owner is not None and owner[:2] == own[:2] and owner.uid != own.uid


def _owner_of_rendered(rendered: Object) -> Identity:
    owner = owner_of(rendered)
    assert owner is not None  # noqa: S101 - every manifest has its LLMDeployment as controller
    return owner
