"""Write spec.approved of one FleetPlan of changes, and tell what is consented to."""

from collections import defaultdict

from tangram.catalog import InputError
from tangram.cli.approve.shown_plan import shown_plan
from tangram.cli.cluster.access import ClusterAccess
from tangram.cli.cluster.observed_cluster import with_client
from tangram.kube.client import UNGUARDED, ApiClient, ApiError
from tangram.kube.kinds import FLEET_PLANS, Object, key_of
from tangram.plan.repartition import PlanState, closed_to_consent, proposed_again

MANAGER = "tangram"  # field manager of what this command writes
_FIELD = "approve"
_NOT_FOUND, _CONFLICT = 404, 409


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
        waiting = await _waiting(client)
        raise InputError(
            _FIELD, f"{name} is a plan of the whole fleet: only plans of changes are approved; {waiting}"
        )
    if spec.get("approved") is approved:
        return f"{name} is {'approved' if approved else 'rejected'} already"
    closed = closed_to_consent(name, status)
    if closed:
        raise InputError(_FIELD, closed)
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
    if not approved:
        undo = proposed_again(name)
        return f"{name} is rejected now: nothing is changed, and it is not proposed again\n  {undo}"
    return "\n".join((f"{name} is approved now", *(f"  {line}" for line in shown_plan(spec))))


async def _waiting(client: ApiClient) -> str:
    """Return which plans can be approved."""
    plans = (await client.list(FLEET_PLANS)).items
    states = defaultdict[str, list[str]](list)
    for plan in plans:
        if plan.get("spec", {}).get("changes"):
            states[str((plan.get("status") or {}).get("state"))].append(key_of(plan)[1])
    waiting = ", ".join(sorted(states[PlanState.RECOMMENDED]))
    return f"these wait for consent: {waiting}" if waiting else "none waits for consent"
