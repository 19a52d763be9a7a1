"""Before capacity is taken away, what justified that is read again from the API server itself.

A round decides on mirrors that may be 90 s old, and its writes come after a plan that may have taken 30 s. A
replica more that is a little late does no harm; a Deployment deleted for one that has died meanwhile does. So
the LLMDeployment and all of its Deployments are read with quorum, and unless they are what was decided upon,
nothing is taken away: what differs is expected to come through the mirrors before the next round decides.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tangram.fleet import Action, ApplyDeployment, Intent, RemoveDeployment, ScaleDeployment, Workload
from tangram.fleet.labels import OWNER_LABEL
from tangram.shell.api_server.client import ApiClient
from tangram.shell.objects.kinds import (
    DEPLOYMENTS,
    LLM_DEPLOYMENTS,
    OURS_SELECTOR,
    Identity,
    Object,
    identity_of,
    owner_of,
    uid_of,
)
from tangram.shell.objects.owned_objects import has_its_name
from tangram.shell.watch.expectations import Expectations

Facts = tuple[int | bool, ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """One LLMDeployment and its Deployments, as a round decided upon them."""

    intent: Intent
    workloads: tuple[Workload, ...]

    @property
    def owner(self) -> Identity:
        """The LLMDeployment."""
        return Identity(self.intent.namespace, self.intent.name, self.intent.uid)

    def lowers(self, action: Action) -> bool:
        """Say whether `action` takes capacity away."""
        if isinstance(action, ApplyDeployment):
            there = (w.replicas for w in self.workloads if w.shape == action.shape)
            return action.replicas < max(there, default=0)
        return isinstance(action, (RemoveDeployment, ScaleDeployment))


async def reread(
    client: ApiClient, expectations: Expectations, evidence: Evidence, now: float
) -> Mapping[str, Object] | None:
    """Return the Deployments of `evidence` by UID as they are now, None where anything that was decided upon
    has changed since (raises ApiError). What has changed is expected to be seen.
    """
    owner = evidence.owner
    live = await client.get(LLM_DEPLOYMENTS, owner.namespace, owner.name)
    if live is None or identity_of(live) != owner or live["metadata"].get("deletionTimestamp"):
        expectations.deleted(LLM_DEPLOYMENTS, owner[:2], owner.uid, now)
        return None
    if live["metadata"].get("generation") != evidence.intent.generation:
        expectations.written(LLM_DEPLOYMENTS, live, now)
        return None
    selector = f"{OURS_SELECTOR},{OWNER_LABEL}={owner.name}"
    listed = (await client.list(DEPLOYMENTS, owner.namespace, selector)).items
    found = {uid_of(obj): obj for obj in listed if _counts(obj, owner)}
    decided = {workload.uid: workload for workload in evidence.workloads}
    changed = [obj for uid, obj in found.items() if uid not in decided or _facts(obj) != _seen(decided[uid])]
    gone = [workload for uid, workload in decided.items() if uid not in found]
    for obj in changed:
        expectations.written(DEPLOYMENTS, obj, now)
    for workload in gone:
        expectations.deleted(DEPLOYMENTS, (workload.namespace, workload.name), workload.uid, now)
    return None if changed or gone else found


def gather(intents: Mapping[str, Intent], workloads: Iterable[Workload]) -> Mapping[str, Evidence]:
    """Return the evidence of a round by the UID of the LLMDeployment."""
    by_owner: dict[str, list[Workload]] = {}
    for workload in workloads:
        by_owner.setdefault(workload.owner_uid, []).append(workload)
    return {uid: Evidence(intent, tuple(by_owner.get(uid, ()))) for uid, intent in intents.items()}


def _counts(obj: Object, owner: Identity) -> bool:
    return owner_of(obj) == owner and has_its_name(obj) and not obj["metadata"].get("deletionTimestamp")


def _facts(obj: Object) -> Facts:
    """Return what decisions read of a Deployment; what `_seen` returns of one as it was decided upon."""
    status = obj.get("status") or {}
    return (
        int(obj["spec"].get("replicas", 1)),
        *(int(status.get(f"{name}Replicas", 0)) for name in ("ready", "available", "updated")),
        int(status.get("replicas", 0)),
        int(status.get("observedGeneration", 0)) >= int(obj["metadata"].get("generation", 1)),
    )


def _seen(workload: Workload) -> Facts:
    return (
        workload.replicas,
        *(workload.ready, workload.available, workload.updated),
        workload.total,
        workload.settled,
    )
