"""Why pods of a Deployment or a Job are not running yet, as one sentence for a condition. Pure."""

from tangram.fleet.times import epoch_or
from tangram.kube.kinds import Object
from tangram.shell.objects.fetch_container import NAME as FETCH
from tangram.shell.objects.fetch_reports import fetch_fault

MAX_LENGTH = 300
SLOW_START_S = 120.0  # a container that is created later is waiting for something
# What a scheduled pod waits for, by the kubelet's reason. Pods of another shape would wait for the same.
_WAITS_FOR = {
    "ErrImagePull": "its image",
    "ImagePullBackOff": "its image",
    "ErrImageNeverPull": "its image on the node",
    "InvalidImageName": "a valid image name",
    "CreateContainerConfigError": "a Secret, ConfigMap or user that it names",
    "CreateContainerError": "the container runtime of its node",
    "RunContainerError": "the container runtime of its node",
    "CrashLoopBackOff": "its container to stay up",
}
_NORMAL_REASONS = {"ContainerCreating", "PodInitializing", ""}
_EXIT_API_KEYS = 2  # of the engine: its file of API keys is empty, or its command line is wrong


def waiting_message(parent: Object, pods: list[Object], now: float) -> str:
    """Return what the pods of `parent` wait for at `now`, the empty string where nothing is wrong."""
    failure = pod_creation_failure(parent)
    if failure:
        return failure
    keys = _api_keys(parent)
    messages = (_pod_message(pod, now, keys) for pod in sorted(pods, key=lambda p: p["metadata"]["name"]))
    return next(filter(None, messages), "")[:MAX_LENGTH]


def pod_creation_failure(parent: Object) -> str:
    """Return why pods cannot be created (quota, admission, no service account), else the empty string."""
    for condition in (parent.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}"[:MAX_LENGTH]
    return ""


def _api_keys(parent: Object) -> str:
    """Return the key of the Secret that the pods of `parent` mount, the empty string where they mount none.

    The operator reads no Secret, and the kubelet reports a missing one only in an Event.
    """
    template = (parent.get("spec") or {}).get("template") or {}
    for volume in (template.get("spec") or {}).get("volumes") or ():
        secret = volume.get("secret") or {}
        if secret.get("secretName") and not secret.get("optional"):
            keys = ", ".join(item["key"] for item in secret.get("items") or ())
            return f"key {keys} of Secret {secret['secretName']}"
    return ""


def _pod_message(pod: Object, now: float, keys: str) -> str:
    if pod["metadata"].get("deletionTimestamp") or pod["phase"] == "Succeeded":
        return ""
    name = pod["metadata"]["name"]
    for condition in pod["conditions"]:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"pod {name}: {condition['reason']}: {condition['message']}"
    for container in pod["containers"]:
        if container["name"] == FETCH and (fault := fetch_fault(container, now)):
            return f"pod {name}: {fault.message}"
        text = _container_message(container, keys)
        if text:
            return f"pod {name}: {text}"
    if any(_is_creating(container) for container in pod["containers"]) and _age_s(pod, now) > SLOW_START_S:
        volumes = f"its volumes (does {keys} exist?)" if keys else "its volumes"
        return f"pod {name}: ContainerCreating: waits for {volumes}, image or network; see its Events"
    return ""


def _age_s(pod: Object, now: float) -> float:
    return now - epoch_or(pod["metadata"].get("creationTimestamp"), now)


def _is_creating(container: Object) -> bool:
    waiting = container["waiting"]
    return bool(waiting) and waiting.get("reason") == "ContainerCreating"


def _container_message(container: Object, keys: str) -> str:
    waiting, last = container["waiting"], container["lastTerminated"]
    if waiting and waiting.get("reason", "") not in _NORMAL_REASONS:
        detail = f": {waiting['message']}" if waiting.get("message") else ""
        ended = f" (last exit code {last.get('exitCode')}, {last.get('reason', '')})" if last else ""
        cause = _WAITS_FOR.get(waiting["reason"])
        waits = f"waits for {cause}: " if cause else ""
        if keys and last and last.get("exitCode") == _EXIT_API_KEYS:
            waits = f"{keys} may hold no API keys, see the pod's log: {waits}"
        return f"{waits}{waiting['reason']}{detail}{ended}"
    return ""
