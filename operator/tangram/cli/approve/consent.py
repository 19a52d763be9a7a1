"""Write spec.approved of one FleetPlan of changes, and tell what is consented to."""

from tangram.catalog import InputError
from tangram.cli.cluster.access import ClusterAccess
from tangram.cli.cluster.observed_cluster import with_client
from tangram.kube.client import UNGUARDED, ApiClient, ApiError
from tangram.kube.kinds import FLEET_PLANS, Object
from tangram.repartition import PlanState

MANAGER = "tangram"  # field manager of what this command writes
_FIELD = "approve"
_NOT_FOUND, _CONFLICT = 404, 409
_WAITS = (None, PlanState.RECOMMENDED)


def give_consent(access: ClusterAccess, name: str, *, approved: bool) -> str:
    """Approve or reject the plan, and return sentences on the effect. Raises `InputError`."""
    return with_client(access, lambda client: _write(client, name, approved=approved))


async def _write(client: ApiClient, name: str, *, approved: bool) -> str:
    plan = await client.get(FLEET_PLANS, "", name)
    if plan is None:
        if not await client.served(FLEET_PLANS):
            raise InputError(_FIELD, "Tangram's CRDs are not installed in this cluster")
        raise InputError(_FIELD, f"there is no FleetPlan {name}; kubectl get fleetplans lists them")
    spec, status = plan.get("spec", {}), plan.get("status") or {}
    if not spec.get("changes"):
        raise InputError(_FIELD, f"{name} is a plan of the whole fleet: only plans of changes are approved")
    if spec.get("approved") is approved:
        return f"{name} is {'approved' if approved else 'rejected'} already"
    if status.get("state") not in _WAITS:
        reason = f" ({status['message']})" if status.get("message") else ""
        raise InputError(
            _FIELD, f"{name} is {status['state']}{reason}: it does not wait for consent any more"
        )
    # The version of what is shown: nobody consents to a plan that was written anew in the meantime.
    patch: Object = {
        "metadata": {"resourceVersion": plan["metadata"]["resourceVersion"]},
        "spec": {"approved": approved},
    }
    try:
        await client.merge(FLEET_PLANS, "", name, patch, manager=MANAGER, guard=UNGUARDED)
    except ApiError as error:
        if error.status in (_NOT_FOUND, _CONFLICT):
            problem = "was deleted" if error.status == _NOT_FOUND else "has changed"
            raise InputError(
                _FIELD, f"FleetPlan {name} {problem} in the meantime: look at it again"
            ) from error
        raise
    return "\n".join((f"{name} is {'approved' if approved else 'rejected'} now", *_shown(spec)))


def _shown(spec: Object) -> list[str]:
    """Return what a plan changes, a line per GPU, and whom it disturbs."""
    lines = [
        f"  {change.get('gpu')} of node {change.get('node')}:"
        f" {_layout(change.get('before'))} -> {_layout(change.get('after'))}"
        for change in spec["changes"]
    ]
    disturbed = [str(each.get("owner")) for each in spec.get("disturbed") or ()]
    return [*lines, f"  replicas of {', '.join(disturbed)} move" if disturbed else "  no replica moves"]


def _layout(layout: Object | None) -> str:
    if not layout or not layout.get("migEnabled"):
        return "whole"
    parts = (f"{part.get('profile')}@{part.get('start')}" for part in layout.get("instances") or ())
    return " ".join(parts) or "empty"
