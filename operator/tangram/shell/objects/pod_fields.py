"""The fields that all pods of the engine image share: serving, inspecting and evaluating. Pure."""

from tangram.api import ModelSource
from tangram.api.llm_deployment.source import MODEL_MOUNT
from tangram.eligibility.devices.tolerations import engine_tolerations
from tangram.eligibility.host_resources import cpu_cores, memory_bytes
from tangram.fleet import ApplyDeployment, Intent, PinnedRevision, Shape, StartEvaluation
from tangram.fleet.quantity import cpu_quantity, memory_quantity, parse_quantity
from tangram.kube.kinds import Object
from tangram.shell.objects.fetch_container import (
    await_container,
    disk_bytes,
    fetch_container,
    source_volumes,
)
from tangram.shell.objects.node_affinity import node_affinity
from tangram.shell.settings import Settings


def common_fields(settings: Settings) -> Object:
    """Return the fields of a pod spec that are the same for every command of the engine image."""
    user = settings.engine.run_as_user
    ids = {} if user is None else {"runAsUser": user, "runAsGroup": user, "fsGroup": user}
    pod: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}} | ids,
    }
    if settings.engine.service_account_name:
        pod["serviceAccountName"] = settings.engine.service_account_name
    if settings.engine.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in settings.engine.image_pull_secrets]
    return pod


def gpu_pod_fields(action: ApplyDeployment | StartEvaluation, settings: Settings) -> Object:
    """Return the common fields, and those by which a pod runs on nodes with the devices of `action.shape`."""
    shape = action.shape
    fields = common_fields(settings) | {
        "affinity": node_affinity(action),
        "tolerations": [
            dict(toleration)
            for toleration in engine_tolerations(shape.sku, shape.resource, settings.engine.tolerations)
        ],
    }
    if settings.engine.runtime_class_name:
        fields["runtimeClassName"] = settings.engine.runtime_class_name
    return fields


def container_security() -> Object:
    """Return the security context of a container: no privileges, and write access to its volumes only."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def volumes(
    source: ModelSource,
    settings: Settings,
    pin: PinnedRevision | None = None,
    secret: str = "",
    claim_name: str = "",
) -> list[Object]:
    """Return the volumes of a pod that reads `source`, at `pin` and with a Secret where it is fetched, or
    from a claim that a Job fills.

    The engine itself writes nothing to /tmp. It is HOME: CUDA caches there the kernels that it compiles for a
    GPU that torch was not built for (~/.nv, at most 1 GiB), and torch and Triton cache theirs.
    """
    limit = memory_quantity(parse_quantity(settings.engine.tmp_size_limit))
    tmp = {"name": "tmp", "emptyDir": {"sizeLimit": limit}}
    if source.is_fetched and not claim_name:
        fetched = {"sizeLimit": memory_quantity(disk_bytes(pin))}
        return [tmp, {"name": "model", "emptyDir": fetched}, *source_volumes(source, secret, settings)]
    claim_name = claim_name or source.claim or ""
    if not claim_name:
        return [tmp]
    claim = {"claimName": claim_name, "readOnly": True}
    return [tmp, {"name": "model", "persistentVolumeClaim": claim}]


def mounts(source: ModelSource) -> list[Object]:
    """Return the mounts of `volumes(source)` in a container."""
    tmp = {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108 - a path inside the container
    model = {"name": "model", "mountPath": MODEL_MOUNT, "readOnly": True}
    return [tmp, model] if source.claim or source.is_fetched else [tmp]


def init_containers(
    source: ModelSource,
    pin: PinnedRevision | None,
    secret: str,
    amounts: Object,
    settings: Settings,
    claim_name: str = "",
) -> Object:
    """Return the field with the container that fetches `source`, or waits until a Job has filled a claim with
    it; no field where nothing is fetched.

    `amounts`: resources of the container that reads it. CPU and memory of the pod stay as they are, and so
    does its QoS class; the disk is counted by the scheduler.
    """
    if not source.is_fetched:
        return {}
    disk = {"ephemeral-storage": memory_quantity(disk_bytes(pin))}
    resources = {
        kind: {name: amount for name, amount in values.items() if name in ("cpu", "memory")}
        for kind, values in amounts.items()
    }
    if claim_name and pin is not None:
        container = await_container(source, pin, resources, settings)
    else:
        resources["requests"] |= disk
        container = fetch_container(source, pin, secret, resources, settings)
    return {"initContainers": [container | {"securityContext": container_security()}]}


def resources(intent: Intent, shape: Shape, settings: Settings) -> Object:
    """Return the resources of a pod on `shape`. Requests equal limits (QoS Guaranteed)."""
    requested, needs = intent.resources, settings.pod_needs
    amounts = {
        "cpu": cpu_quantity(cpu_cores(requested, shape, needs)),
        "memory": memory_quantity(memory_bytes(requested, shape, needs)),
        shape.resource: str(shape.gpus),
    }
    return {"requests": dict(amounts), "limits": dict(amounts)}
