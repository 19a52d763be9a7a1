"""Read an LLMDeployment and its Deployments from the API server again before the operator removes capacity.

The mirrors that a plan is based on may be 90 s old, and planning may take 30 s. A late replica does little
harm; deleting a Deployment in favour of one that has meanwhile failed does. So the LLMDeployment and all its
Deployments are read with quorum. If they differ from what the plan is based on, no capacity is removed, and
the next round waits until the mirrors show the difference.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tangram.fleet import Action, ApplyDeployment, Intent, RemoveDeployment, ScaleDeployment, Workload
from tangram.fleet.labels import OWNER_LABEL
from tangram.kube.client import ApiClient
from tangram.kube.kinds import (
    DEPLOYMENTS,
    LLM_DEPLOYMENTS,
    OURS_SELECTOR,
    Identity,
    Object,
    identity_of,
    owner_of,
    uid_of,
)
from tangram.shell.objects.manifests import owner_identity
from tangram.shell.objects.owned_objects import has_rendered_name
from tangram.shell.watch.expectations import Expectations

DeploymentFacts = tuple[int | bool, ...]


@dataclass(frozen=True, slots=True)
class OwnerSnapshot:
    """One LLMDeployment and its Deployments as the plan is based on them."""

    intent: Intent
    workloads: tuple[Workload, ...]

    def removes_capacity(self, action: Action) -> bool:
        """Say whether `action` ends replicas."""
        if isinstance(action, ApplyDeployment):
            replicas = (w.replicas for w in self.workloads if w.shape == action.shape)
            return action.replicas < max(replicas, default=0)
        return isinstance(action, (RemoveDeployment, ScaleDeployment))


def owner_snapshots(
    intents: Mapping[str, Intent], workloads: Iterable[Workload]
) -> Mapping[str, OwnerSnapshot]:
    """Return the snapshot of each LLMDeployment, by UID."""
    by_owner: dict[str, list[Workload]] = {}
    for workload in workloads:
        by_owner.setdefault(workload.owner_uid, []).append(workload)
    return {uid: OwnerSnapshot(intent, tuple(by_owner.get(uid, ()))) for uid, intent in intents.items()}


async def unchanged_deployments(
    client: ApiClient, expectations: Expectations, planned: OwnerSnapshot, now: float
) -> Mapping[str, Object] | None:
    """Return the Deployments of an LLMDeployment as they are now, by UID; None if it or any of them has
    changed since the snapshot (raises ApiError). `expectations` take each change.
    """
    owner = owner_identity(planned.intent)
    live = await client.get(LLM_DEPLOYMENTS, owner.namespace, owner.name)
    if live is None or identity_of(live) != owner or live["metadata"].get("deletionTimestamp"):
        expectations.expect_deletion(LLM_DEPLOYMENTS, owner[:2], owner.uid, now)
        return None
    if live["metadata"].get("generation") != planned.intent.generation:
        expectations.expect_write(LLM_DEPLOYMENTS, live, now)
        return None
    selector = f"{OURS_SELECTOR},{OWNER_LABEL}={owner.name}"
    listing = await client.list(DEPLOYMENTS, owner.namespace, selector)
    deployments = {uid_of(obj): obj for obj in listing.items if _belongs_to(obj, owner)}
    workloads = {workload.uid: workload for workload in planned.workloads}
    changed = [
        obj
        for uid, obj in deployments.items()
        if uid not in workloads or _facts_of_object(obj) != _facts_of_workload(workloads[uid])
    ]
    deleted = [workload for uid, workload in workloads.items() if uid not in deployments]
    for obj in changed:
        expectations.expect_write(DEPLOYMENTS, obj, now)
    for workload in deleted:
        expectations.expect_deletion(DEPLOYMENTS, (workload.namespace, workload.name), workload.uid, now)
    return None if changed or deleted else deployments


def _belongs_to(obj: Object, owner: Identity) -> bool:
    return owner_of(obj) == owner and has_rendered_name(obj) and not obj["metadata"].get("deletionTimestamp")


def _facts_of_object(obj: Object) -> DeploymentFacts:
    """Return the fields of a Deployment that planning reads, in the order of `_facts_of_workload`."""
    status = obj.get("status") or {}
    return (
        int(obj["spec"].get("replicas", 1)),
        *(int(status.get(f"{name}Replicas", 0)) for name in ("ready", "available", "updated")),
        int(status.get("replicas", 0)),
        int(status.get("observedGeneration", 0)) >= int(obj["metadata"].get("generation", 1)),
    )


def _facts_of_workload(workload: Workload) -> DeploymentFacts:
    return (
        workload.replicas,
        *(workload.ready, workload.available, workload.updated),
        workload.total,
        workload.settled,
    )
