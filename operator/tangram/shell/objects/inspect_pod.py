"""The pod that reads a checkpoint and reports its facts in its termination message. Pure."""

from tangram.api import model_source
from tangram.eligibility.devices.tolerations import inspect_tolerations
from tangram.fleet import FactsKey
from tangram.shell.objects import pod_fields
from tangram.shell.objects.kinds import Object
from tangram.shell.settings import Settings

# `tangram-engine inspect` keeps its processes below (MEMORY_LIMIT, LOAD_MEMORY and TEXT_MEMORY there).
INSPECT_MEMORY = "1Gi"
INSPECT_REJECTED = 3  # exit code of `tangram-engine inspect` for a checkpoint that cannot be served
INSPECT_GRACE_S = 2  # it has no requests to finish; as process 1 it ignores SIGTERM

TERMINATION_LOG = "/dev/termination-log"


def inspect_pod(key: FactsKey, settings: Settings) -> Object:
    """Return the pod spec of the Job that inspects the checkpoint of `key`."""
    source = model_source(key.uri)
    container = {
        "name": "inspect",
        "image": key.engine_image,
        "imagePullPolicy": settings.engine_image_pull_policy,
        "args": ["inspect", "--model", source.path, "--termination-log", TERMINATION_LOG],
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "File",
        "resources": {
            "requests": {"cpu": "100m", "memory": "256Mi"},
            "limits": {"cpu": "1", "memory": INSPECT_MEMORY},
        },
        "securityContext": pod_fields.container_security(),
        "volumeMounts": pod_fields.mounts(source),
    }
    return pod_fields.common_fields(settings) | {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": INSPECT_GRACE_S,
        "containers": [container],
        "volumes": pod_fields.volumes(source, settings),
        # In a cluster of GPU nodes only, it runs beside engines.
        "tolerations": [dict(toleration) for toleration in inspect_tolerations(settings.tolerations)],
    }
