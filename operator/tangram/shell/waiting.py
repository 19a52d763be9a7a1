"""Why pods of a Deployment or a Job do not run yet, in one sentence for a condition. Pure."""

from tangram.shell.kinds import Object

MAX_LENGTH = 300
_NORMAL = {"ContainerCreating", "PodInitializing", ""}


def waiting_message(parent: Object, pods: list[Object]) -> str:
    """Return what `parent` waits for as the cluster tells it, empty when nothing is wrong."""
    failure = _replica_failure(parent)
    if failure:
        return failure[:MAX_LENGTH]
    told = [text for pod in sorted(pods, key=lambda p: p["metadata"]["name"]) if (text := _pod_message(pod))]
    return told[0][:MAX_LENGTH] if told else ""


def _replica_failure(parent: Object) -> str:
    """Pods that could not even be created: quota, admission, a missing service account."""
    for condition in (parent.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}"
    return ""


def _pod_message(pod: Object) -> str:
    if pod["metadata"].get("deletionTimestamp") or pod["phase"] == "Succeeded":
        return ""
    name = pod["metadata"]["name"]
    for condition in pod["conditions"]:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"pod {name}: {condition['reason']}: {condition['message']}"
    for container in pod["containers"]:
        text = _container_message(container)
        if text:
            return f"pod {name}: {text}"
    return ""


def _container_message(container: Object) -> str:
    waiting, last = container["waiting"], container["lastTerminated"]
    if waiting and waiting.get("reason", "") not in _NORMAL:
        told = f": {waiting['message']}" if waiting.get("message") else ""
        ended = f" (last exit code {last.get('exitCode')}, {last.get('reason', '')})" if last else ""
        return f"{waiting['reason']}{told}{ended}"
    return ""
