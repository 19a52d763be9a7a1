"""Writes spec.replicas of one LLMDeployment in a cluster, and says what that means."""

from dataclasses import dataclass, replace

from tangram.api import parse
from tangram.catalog import InputError
from tangram.cli.cluster.access import Access
from tangram.cli.cluster.reading import context_namespace, with_client
from tangram.fleet import Intent
from tangram.shell.api_server.client import ApiClient, ApiError
from tangram.shell.objects.kinds import LLM_DEPLOYMENTS, Object

MANAGER = "tangram"  # field manager of what this command writes
_FIELD = "scale"
_NOT_FOUND, _DOES_NOT_APPLY = 404, (400, 422)


@dataclass(frozen=True, slots=True)
class Scaling:
    """What is asked for: so many `replicas` of one LLMDeployment; None: as many as Tangram finds right."""

    name: str
    namespace: str | None  # None: that of the kubeconfig's context
    replicas: int | None


def scaled(access: Access, asked: Scaling) -> str:
    """Carry it out and return what became of it, in a sentence. Raises `InputError`."""
    where = context_namespace(access) if asked.namespace is None else asked.namespace
    asked = replace(asked, namespace=where)
    return with_client(access, lambda client: _scaled(client, asked, where))


async def _scaled(client: ApiClient, asked: Scaling, namespace: str) -> str:
    name = f"{namespace}/{asked.name}"
    there = await client.get(LLM_DEPLOYMENTS, namespace, asked.name)
    if there is None:
        if not await client.served(LLM_DEPLOYMENTS):
            raise InputError(_FIELD, "Tangram's CRDs are not installed in this cluster")
        raise InputError(_FIELD, f"there is no LLMDeployment {asked.name} in namespace {namespace}")
    before = there.get("spec", {}).get("replicas")
    try:
        if asked.replicas is not None:
            return f"{name}: {await _set(client, namespace, asked.name, before, asked.replicas)}"
        return f"{name}: {await _unset(client, there)}"
    except ApiError as error:
        if error.status == _NOT_FOUND:
            raise InputError(_FIELD, f"LLMDeployment {name} was deleted meanwhile") from error
        raise


async def _set(client: ApiClient, namespace: str, name: str, before: int | None, replicas: int) -> str:
    if before == replicas:
        return f"spec.replicas is {replicas} already"
    # Not through the scale subresource: the API server records no client there while the field is not owned.
    patch: Object = {"spec": {"replicas": replicas}}
    await client.merge(LLM_DEPLOYMENTS, namespace, name, patch, manager=MANAGER)
    was = "Tangram scaled it" if before is None else f"it was {before}"
    return f"spec.replicas is {replicas} now ({was}); tangram scale {name} -n {namespace} --auto undoes it"


async def _unset(client: ApiClient, there: Object) -> str:
    meta, bounds = there["metadata"], _bounds(there)
    if "replicas" not in there.get("spec", {}):
        return f"spec.replicas is not set: Tangram scales it already, {bounds}"
    remove = [{"op": "remove", "path": "/spec/replicas"}]
    try:
        await client.json_patch(LLM_DEPLOYMENTS, meta["namespace"], meta["name"], remove, manager=MANAGER)
    except ApiError as error:
        if error.status not in _DOES_NOT_APPLY:
            raise
        now = await client.get(LLM_DEPLOYMENTS, meta["namespace"], meta["name"])
        if now is None or "replicas" in now.get("spec", {}):
            raise
    return f"Tangram scales it now, {bounds}"


def _bounds(there: Object) -> str:
    """Say between which bounds Tangram scales it."""
    spec = {key: value for key, value in there.get("spec", {}).items() if key != "replicas"}
    intent = parse({**there, "spec": spec})
    if not isinstance(intent, Intent):
        return f"once it is accepted ({intent.message})"
    low, high = intent.min_replicas, intent.max_replicas
    return (
        f"from {low} to {high} replicas"
        if low < high
        else f"which means {low} of them: scaling allows no other"
    )
