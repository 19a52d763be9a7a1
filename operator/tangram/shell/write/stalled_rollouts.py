"""Resume a rollout that the Deployment controller has stopped (kubernetes/kubernetes#102551)."""

import logging

from tangram.fleet import ResumeRollout
from tangram.kube import kinds
from tangram.kube.client import ApiClient, ApiError, Guard
from tangram.kube.kinds import Object, annotations_of, controller_of, is_controlled_by

log = logging.getLogger(__name__)

DESIRED_ANNOTATION = "deployment.kubernetes.io/desired-replicas"


async def resume_rollout(client: ApiClient, guard: Guard, action: ResumeRollout) -> bool:
    """Correct the stale annotation that stops a rollout; return whether there was one (raises ApiError).

    While a ReplicaSet carries another number of desired replicas than its Deployment, the controller scales
    and does not roll out. If this is the only ReplicaSet with replicas and already has the right number, the
    controller has nothing to scale and never corrects the annotation.
    """
    listing = await client.list(kinds.REPLICA_SETS, action.namespace, kinds.OURS_SELECTOR)
    active = [rs for rs in listing.items if _belongs_to(rs, action) and rs["spec"].get("replicas")]
    if len(active) != 1 or active[0]["spec"]["replicas"] != action.replicas:
        return False
    meta = active[0]["metadata"]
    annotated, desired = annotations_of(active[0]).get(DESIRED_ANNOTATION), str(action.replicas)
    if annotated in (None, desired):
        return False
    log.info(
        "Deployment %s/%s: its rollout waits for a scaling to %s replicas that is already over; annotation"
        " corrected",
        *(action.namespace, action.name, annotated),
    )
    annotations = {DESIRED_ANNOTATION: desired}
    patch = {"metadata": {"resourceVersion": meta["resourceVersion"], "annotations": annotations}}
    try:
        await client.merge(kinds.REPLICA_SETS, action.namespace, meta["name"], patch, guard=guard)
    except ApiError as error:
        if error.status in (404, 409):
            return False  # the controller was faster
        raise
    return True


def _belongs_to(replica_set: Object, deployment: ResumeRollout) -> bool:
    """Say whether the Deployment controls a ReplicaSet of its namespace."""
    ref = controller_of(replica_set)
    if ref is None or not is_controlled_by(replica_set, kinds.DEPLOYMENTS):
        return False
    return (ref.get("name"), ref.get("uid")) == (deployment.name, deployment.uid)
