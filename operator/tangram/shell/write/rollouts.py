"""Rollouts that the Deployment controller of Kubernetes has forgotten are brought back to its mind."""

import logging

from tangram.fleet import ResumeRollout
from tangram.shell.api_server.client import ApiClient, ApiError, Guard
from tangram.shell.objects.kinds import (
    DEPLOYMENTS,
    OURS_SELECTOR,
    REPLICA_SETS,
    Object,
    controller_of,
    is_controlled_by,
)
from tangram.shell.objects.owned_objects import annotations_of

log = logging.getLogger(__name__)

DESIRED_ANNOTATION = "deployment.kubernetes.io/desired-replicas"


async def resume(client: ApiClient, guard: Guard, action: ResumeRollout) -> bool:
    """Make the controller see that there is nothing left to scale, if that is what keeps it (raises
    ApiError); return whether it was.

    It scales, and does nothing else, as long as a ReplicaSet is noted to be of a Deployment of another size.
    If that is the only one with replicas and has as many as are wanted, it leaves the note as it is.
    """
    sets = await client.list(REPLICA_SETS, action.namespace, OURS_SELECTOR)
    active = [rs for rs in sets.items if _belongs_to(rs, action) and rs["spec"].get("replicas")]
    if len(active) != 1 or active[0]["spec"]["replicas"] != action.replicas:
        return False
    meta = active[0]["metadata"]
    noted, right = annotations_of(active[0]).get(DESIRED_ANNOTATION), str(action.replicas)
    if noted in (None, right):
        return False
    log.info(
        "Deployment %s/%s: its controller takes the rollout for a scaling to %s, which is over: told it so",
        *(action.namespace, action.name, noted),
    )
    patch = {
        "metadata": {"resourceVersion": meta["resourceVersion"], "annotations": {DESIRED_ANNOTATION: right}}
    }
    try:
        await client.merge(REPLICA_SETS, action.namespace, meta["name"], patch, guard=guard)
    except ApiError as error:
        if error.status in (404, 409):
            return False  # the controller was faster
        raise
    return True


def _belongs_to(replica_set: Object, deployment: ResumeRollout) -> bool:
    """Say whether a ReplicaSet of the Deployment's namespace is controlled by it."""
    ref = controller_of(replica_set)
    if ref is None or not is_controlled_by(replica_set, DEPLOYMENTS):
        return False
    return (ref.get("name"), ref.get("uid")) == (deployment.name, deployment.uid)
