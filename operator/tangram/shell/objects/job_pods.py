"""The pods of inspect and evaluate Jobs: they report in their termination message. Pure."""

from tangram.api import ModelSource, model_source
from tangram.eligibility.devices.tolerations import inspect_tolerations
from tangram.fleet import FactsKey, Intent, ModelClaimKey, PinnedRevision, StartEvaluation
from tangram.kube.kinds import Object
from tangram.shell.objects import pod_fields
from tangram.shell.objects.fetch_container import TERMINATION_LOG, fetch_container, source_volumes
from tangram.shell.objects.model_claims import claim_name
from tangram.shell.settings import Settings

# `tangram-engine inspect` keeps its processes below (MEMORY_LIMIT, LOAD_MEMORY and TEXT_MEMORY there).
INSPECT_MEMORY = "1Gi"
_INSPECT_RESOURCES: Object = {
    "requests": {"cpu": "100m", "memory": "256Mi"},
    "limits": {"cpu": "1", "memory": INSPECT_MEMORY},
}
REJECTED = 3  # exit code of `tangram-engine inspect` and `evaluate` where a retry cannot help
GRACE_S = 2  # there are no requests to finish


def inspect_pod(key: FactsKey, settings: Settings, secret: str = "", revision: str = "") -> Object:
    """Return the spec of the pod that reads the checkpoint of `key` and reports its facts.

    A repository is read with `secret`, at `revision` instead of the one that its URI names.
    """
    source = model_source(key.uri)
    if source.is_fetched and revision:
        source = model_source(source.at(revision))
    return pod_fields.common_fields(settings) | {
        **_job_fields("inspect", key.engine_image, source, (), _INSPECT_RESOURCES, settings, secret=secret),
        # In a cluster of GPU nodes only, it runs beside engines.
        "tolerations": [dict(toleration) for toleration in inspect_tolerations(settings.engine.tolerations)],
    }


def fill_pod(key: ModelClaimKey, settings: Settings, secret: str) -> Object:
    """Return the spec of the pod that fetches a checkpoint into its claim and reports its facts again."""
    source = model_source(key.model_uri)
    pod = inspect_pod(FactsKey(key.namespace, key.model_uri, settings.engine_image), settings, secret)
    pod["volumes"] = pod_fields.volumes(source, settings, claim_name=claim_name(key))
    for volume in pod["volumes"]:
        volume.get("persistentVolumeClaim", {}).pop("readOnly", None)
    pod["volumes"] += source_volumes(source, secret, settings)
    (fetch,) = pod["initContainers"]
    fetch |= fetch_container(source, key.pin, secret, _INSPECT_RESOURCES, settings)
    return pod


def evaluate_pod(intent: Intent, action: StartEvaluation, settings: Settings) -> Object:
    """Return the spec of the pod that compares a quantised format with that of the checkpoint: an engine pod
    that serves no traffic, with the resources of a replica on the shape that would serve the format.
    """
    options = ("--quantize", action.key.precision)
    resources = pod_fields.resources(intent, action.shape, settings)
    return pod_fields.gpu_pod_fields(action, settings) | _job_fields(
        "evaluate",
        settings.engine_image,
        model_source(action.key.uri),
        options,
        resources,
        settings,
        action.pin,
        intent.model_secret,
    )


def _job_fields(
    command: str,
    image: str,
    source: ModelSource,
    options: tuple[str, ...],
    resources: Object,
    settings: Settings,
    pin: PinnedRevision | None = None,
    secret: str = "",
) -> Object:
    """Return the fields of a pod that runs one command of the engine image on a checkpoint."""
    container = {
        "name": command,
        "image": image,
        "imagePullPolicy": settings.engine_image_pull_policy,
        "args": [command, "--model", source.path, *options, "--termination-log", TERMINATION_LOG],
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "File",
        "resources": resources,
        "securityContext": pod_fields.container_security(),
        "volumeMounts": pod_fields.mounts(source),
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
        **pod_fields.init_containers(source, pin, secret, resources, settings),
        "containers": [container],
        "volumes": pod_fields.volumes(source, settings, pin, secret),
    }
