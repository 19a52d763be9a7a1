"""The pods of inspect and evaluate Jobs: they report in their termination message. Pure."""

from tangram.api import model_source
from tangram.eligibility.devices.tolerations import inspect_tolerations
from tangram.fleet import FactsKey, Intent, StartEvaluation
from tangram.kube.kinds import Object
from tangram.shell.objects import pod_fields
from tangram.shell.settings import Settings

# `tangram-engine inspect` keeps its processes below (MEMORY_LIMIT, LOAD_MEMORY and TEXT_MEMORY there).
INSPECT_MEMORY = "1Gi"
REJECTED = 3  # exit code of `tangram-engine inspect` and `evaluate` where a retry cannot help
GRACE_S = 2  # there are no requests to finish
TERMINATION_LOG = "/dev/termination-log"


def inspect_pod(key: FactsKey, settings: Settings) -> Object:
    """Return the spec of the pod that reads the checkpoint of `key` and reports its facts."""
    resources = {
        "requests": {"cpu": "100m", "memory": "256Mi"},
        "limits": {"cpu": "1", "memory": INSPECT_MEMORY},
    }
    return pod_fields.common_fields(settings) | {
        **_job_fields("inspect", key.engine_image, key.uri, (), resources, settings),
        # In a cluster of GPU nodes only, it runs beside engines.
        "tolerations": [dict(toleration) for toleration in inspect_tolerations(settings.engine.tolerations)],
    }


def evaluate_pod(intent: Intent, action: StartEvaluation, settings: Settings) -> Object:
    """Return the spec of the pod that compares a quantised format with that of the checkpoint: an engine pod
    that serves no traffic, with the resources of a replica on the shape that would serve the format.
    """
    options = ("--quantize", action.key.precision)
    resources = pod_fields.resources(intent, action.shape, settings)
    return pod_fields.gpu_pod_fields(action, settings) | _job_fields(
        "evaluate", settings.engine_image, action.key.uri, options, resources, settings
    )


def _job_fields(
    command: str, image: str, uri: str, options: tuple[str, ...], resources: Object, settings: Settings
) -> Object:
    """Return the fields of a pod that runs one command of the engine image on a checkpoint."""
    source = model_source(uri)
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
        "containers": [container],
        "volumes": pod_fields.volumes(source, settings),
    }
