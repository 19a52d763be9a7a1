"""Why pods of a Deployment or a Job do not run yet, in one sentence for a condition. Pure."""

from collections.abc import Callable

from tangram.shell.objects.kinds import Object
from tangram.shell.objects.timestamps import epoch

MAX_LENGTH = 300
SLOW_START_S = 120.0  # a container that is not created by then waits for something
# What a pod with a node waits for, by the kubelet's reason. Another shape would wait for the same.
_WAITS_FOR = {
    "ErrImagePull": "its image",
    "ImagePullBackOff": "its image",
    "ErrImageNeverPull": "its image on the node",
    "InvalidImageName": "an image name that is one",
    "CreateContainerConfigError": "a Secret, ConfigMap or user that it names",
    "CreateContainerError": "the container runtime of its node",
    "RunContainerError": "the container runtime of its node",
    "CrashLoopBackOff": "its container to stay up",
}
_NORMAL = {"ContainerCreating", "PodInitializing", ""}
_EXIT_API_KEYS = 2  # of the engine: its file of API keys gives none, or its command line is wrong


def waiting_message(parent: Object, pods: list[Object], late: Callable[[Object], bool]) -> str:
    """Return what `parent` waits for as the cluster tells it, empty when nothing is wrong.

    `late` says whether a pod was created longer than `SLOW_START_S` ago.
    """
    failure = refusal(parent)
    if failure:
        return failure
    keys = _api_keys(parent)
    told = [
        text
        for pod in sorted(pods, key=lambda p: p["metadata"]["name"])
        if (text := _pod_message(pod, late, keys))
    ]
    return told[0][:MAX_LENGTH] if told else ""


def late_at(now: float) -> Callable[[Object], bool]:
    """Return what says of a pod whether it was created longer than `SLOW_START_S` before `now`."""
    return lambda pod: now - epoch(pod["metadata"].get("creationTimestamp"), now) > SLOW_START_S


def refusal(parent: Object) -> str:
    """Return why pods cannot even be created (quota, admission, a missing service account), else nothing."""
    for condition in (parent.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}"[:MAX_LENGTH]
    return ""


def _api_keys(parent: Object) -> str:
    """Return which key of which Secret the pods of `parent` mount, the empty string where they mount none.

    The operator reads no Secret, and the kubelet says only in an Event that one is missing.
    """
    template = (parent.get("spec") or {}).get("template") or {}
    for volume in (template.get("spec") or {}).get("volumes") or ():
        secret = volume.get("secret") or {}
        if secret.get("secretName"):
            keys = ", ".join(item["key"] for item in secret.get("items") or ())
            return f"key {keys} of Secret {secret['secretName']}"
    return ""


def _pod_message(pod: Object, late: Callable[[Object], bool], keys: str) -> str:
    if pod["metadata"].get("deletionTimestamp") or pod["phase"] == "Succeeded":
        return ""
    name = pod["metadata"]["name"]
    for condition in pod["conditions"]:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"pod {name}: {condition['reason']}: {condition['message']}"
    for container in pod["containers"]:
        text = _container_message(container, keys)
        if text:
            return f"pod {name}: {text}"
    if any(_is_creating(container) for container in pod["containers"]) and late(pod):
        volumes = f"its volumes ({keys} among them: is it there?)" if keys else "its volumes"
        return f"pod {name}: ContainerCreating: waits for {volumes}, image or network; its Events say which"
    return ""


def _is_creating(container: Object) -> bool:
    waiting = container["waiting"]
    return bool(waiting) and waiting.get("reason") == "ContainerCreating"


def _container_message(container: Object, keys: str) -> str:
    waiting, last = container["waiting"], container["lastTerminated"]
    if waiting and waiting.get("reason", "") not in _NORMAL:
        told = f": {waiting['message']}" if waiting.get("message") else ""
        ended = f" (last exit code {last.get('exitCode')}, {last.get('reason', '')})" if last else ""
        what = _WAITS_FOR.get(waiting["reason"])
        waits = f"waits for {what}: " if what else ""
        if keys and last and last.get("exitCode") == _EXIT_API_KEYS:
            waits = f"{keys} may give no API keys, the pod's log says so: {waits}"
        return f"{waits}{waiting['reason']}{told}{ended}"
    return ""
