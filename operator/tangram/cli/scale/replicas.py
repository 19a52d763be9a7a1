"""Write spec.replicas of one LLMDeployment in a cluster and report the effect."""

from tangram.api import parse
from tangram.catalog import InputError
from tangram.cli.cluster.access import ClusterAccess
from tangram.cli.cluster.observed_cluster import context_namespace, with_client
from tangram.fleet import Intent
from tangram.kube.client import UNGUARDED, ApiClient, ApiError
from tangram.kube.kinds import LLM_DEPLOYMENTS, Object, key_of

MANAGER = "tangram"  # field manager of what this command writes
_FIELD = "scale"
_NOT_FOUND, _DOES_NOT_APPLY = 404, (400, 422)


def scale_deployment(access: ClusterAccess, name: str, namespace: str | None, replicas: int | None) -> str:
    """Write the replicas, None: Tangram scales, and return one sentence on the effect. Raises `InputError`.

    `namespace` None: that of the kubeconfig's context.
    """
    chosen = context_namespace(access) if namespace is None else namespace
    return with_client(access, lambda client: _scale(client, chosen, name, replicas))


async def _scale(client: ApiClient, namespace: str, name: str, replicas: int | None) -> str:
    shown = f"{namespace}/{name}"
    deployment = await client.get(LLM_DEPLOYMENTS, namespace, name)
    if deployment is None:
        if not await client.served(LLM_DEPLOYMENTS):
            raise InputError(_FIELD, "Tangram's CRDs are not installed in this cluster")
        raise InputError(_FIELD, f"there is no LLMDeployment {name} in namespace {namespace}")
    before = deployment.get("spec", {}).get("replicas")
    try:
        if replicas is not None:
            return f"{shown}: {await _set(client, namespace, name, before, replicas)}"
        return f"{shown}: {await _unset(client, deployment)}"
    except ApiError as error:
        if error.status == _NOT_FOUND:
            raise InputError(_FIELD, f"LLMDeployment {shown} was deleted in the meantime") from error
        raise


async def _set(client: ApiClient, namespace: str, name: str, before: int | None, replicas: int) -> str:
    if before == replicas:
        return f"spec.replicas is {replicas} already"
    # Not through the scale subresource: the API server records no client there while the field is not owned.
    patch: Object = {"spec": {"replicas": replicas}}
    await client.merge(LLM_DEPLOYMENTS, namespace, name, patch, manager=MANAGER, guard=UNGUARDED)
    was = "Tangram scaled it" if before is None else f"it was {before}"
    return f"spec.replicas is {replicas} now ({was}); tangram scale {name} -n {namespace} --auto undoes it"


async def _unset(client: ApiClient, deployment: Object) -> str:
    key, bounds = key_of(deployment), _bounds(deployment)
    if "replicas" not in deployment.get("spec", {}):
        return f"spec.replicas is not set: Tangram scales it already, {bounds}"
    remove = [{"op": "remove", "path": "/spec/replicas"}]
    try:
        await client.json_patch(LLM_DEPLOYMENTS, *key, remove, manager=MANAGER, guard=UNGUARDED)
    except ApiError as error:
        if error.status not in _DOES_NOT_APPLY:
            raise
        now = await client.get(LLM_DEPLOYMENTS, *key)
        if now is None or "replicas" in now.get("spec", {}):
            raise
    return f"Tangram scales it now, {bounds}"


def _bounds(deployment: Object) -> str:
    """Return the bounds between which Tangram scales it."""
    spec = {key: value for key, value in deployment.get("spec", {}).items() if key != "replicas"}
    intent = parse({**deployment, "spec": spec})
    if not isinstance(intent, Intent):
        return f"once it is accepted ({intent.message})"
    low, high = intent.min_replicas, intent.max_replicas
    if low < high:
        return f"from {low} to {high} replicas"
    return f"to {low} replicas, the only number that its bounds allow"
