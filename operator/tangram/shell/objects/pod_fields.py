"""What the pods of the engine image have in common: those that serve and those that inspect. Pure."""

from tangram.api import ModelSource
from tangram.api.llm_deployment.source import PVC_MOUNT
from tangram.eligibility.host_resources import cpu_cores, memory_bytes
from tangram.fleet import Intent, Shape
from tangram.fleet.quantity import cpu_quantity, memory_quantity, parse_quantity
from tangram.shell.objects.kinds import Object
from tangram.shell.settings import Settings


def common_fields(settings: Settings) -> Object:
    """Return the fields of a pod spec that do not depend on what the pod does."""
    user = settings.run_as_user
    ids = {} if user is None else {"runAsUser": user, "runAsGroup": user, "fsGroup": user}
    pod: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}} | ids,
    }
    if settings.engine_service_account_name:
        pod["serviceAccountName"] = settings.engine_service_account_name
    if settings.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    return pod


def container_security() -> Object:
    """Return the security context of a container: no rights, and nowhere to write but its volumes."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def volumes(source: ModelSource, settings: Settings) -> list[Object]:
    """Return the volumes of a pod that reads `source`.

    The engine itself writes nothing to /tmp. It is HOME: CUDA keeps the kernels there that it compiles for a
    GPU which torch was not built for (~/.nv, at most 1 GiB), torch and Triton what they compile.
    """
    limit = memory_quantity(parse_quantity(settings.tmp_size_limit))
    found: list[Object] = [{"name": "tmp", "emptyDir": {"sizeLimit": limit}}]
    if source.claim:
        found.append(
            {"name": "model", "persistentVolumeClaim": {"claimName": source.claim, "readOnly": True}}
        )
    return found


def mounts(source: ModelSource) -> list[Object]:
    """Return where a container finds `volumes(source)`."""
    found: list[Object] = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108 - a path inside the container
    if source.claim:
        found.append({"name": "model", "mountPath": PVC_MOUNT, "readOnly": True})
    return found


def resources(intent: Intent, shape: Shape, settings: Settings) -> Object:
    """Return what a pod on `shape` asks for. Requests equal limits (QoS Guaranteed)."""
    asked, needs = intent.resources, settings.pod_needs
    amounts = {
        "cpu": cpu_quantity(cpu_cores(asked, shape, needs)),
        "memory": memory_quantity(memory_bytes(asked, shape, needs)),
        shape.resource: str(shape.tensor_parallel),
    }
    return {"requests": dict(amounts), "limits": dict(amounts)}
