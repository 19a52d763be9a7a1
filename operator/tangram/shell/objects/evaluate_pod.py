"""The pod that compares a quantised format with that of the checkpoint, on the shape that would serve it."""

from tangram.api import model_source
from tangram.fleet import Intent, StartEvaluation
from tangram.shell.objects import pod_fields
from tangram.shell.objects.inspect_pod import TERMINATION_LOG
from tangram.shell.objects.kinds import Object
from tangram.shell.settings import Settings

EVALUATE_REJECTED = 3  # exit code of `tangram-engine evaluate` where a retry cannot help
EVALUATE_GRACE_S = 2  # it has no requests to finish


def evaluate_pod(intent: Intent, action: StartEvaluation, settings: Settings) -> Object:
    """Return the spec of its pod: an engine pod that serves no traffic, with the resources of a replica."""
    source = model_source(action.key.uri)
    container = {
        "name": "evaluate",
        "image": settings.engine_image,
        "imagePullPolicy": settings.engine_image_pull_policy,
        "args": [
            "evaluate",
            "--model",
            source.path,
            "--quantize",
            action.key.precision,
            "--termination-log",
            TERMINATION_LOG,
        ],
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "File",
        "resources": pod_fields.resources(intent, action.shape, settings),
        "securityContext": pod_fields.container_security(),
        "volumeMounts": pod_fields.mounts(source),
    }
    return pod_fields.gpu_pod_fields(action, settings) | {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": EVALUATE_GRACE_S,
        "containers": [container],
        "volumes": pod_fields.volumes(source, settings),
    }
