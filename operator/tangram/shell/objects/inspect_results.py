"""The checkpoint and the result of an inspect Job, read from the Job and its pods. Pure."""

from tangram.api import parse_report
from tangram.fleet import CheckpointFacts, FactsKey, Inspection, InspectionFailure
from tangram.fleet.times import epoch_or
from tangram.shell.objects import kinds
from tangram.shell.objects.inspect_pod import INSPECT_MEMORY
from tangram.shell.objects.kinds import Object, annotations_of, uid_of
from tangram.shell.objects.waiting_pods import is_slow_at, waiting_message


def facts_key(job: Object) -> FactsKey:
    """Return the checkpoint that a Job inspects, from the annotations of its (immutable) pod template."""
    annotations = annotations_of(job["spec"]["template"])
    uri = annotations.get(kinds.MODEL_URI_ANNOTATION, "")
    image = annotations.get(kinds.ENGINE_IMAGE_ANNOTATION, "")
    return FactsKey(job["metadata"]["namespace"], uri, image)


def only_inspects(job: Object) -> bool:
    """Say whether a Job runs an inspection and nothing else; no other Job's result counts.

    The image may differ from the requested one: clusters rewrite images to their mirrors. The result of a
    forged Job counts in its own namespace only.
    """
    return only_runs(job, "inspect")


def only_runs(job: Object, command: str) -> bool:
    """Say whether a Job runs one command of the engine image and nothing else."""
    containers = job["spec"]["template"]["spec"].get("containers") or ()
    return len(containers) == 1 and not any(
        c.get("command") or (c.get("args") or [""])[0] != command for c in containers
    )


def inspection(job: Object, pods: list[Object], now: float) -> Inspection:
    """Return an inspect Job with its result, from its status and its pods."""
    meta, status = job["metadata"], job.get("status") or {}
    started = epoch_or(status.get("startTime") or meta.get("creationTimestamp"), now)
    return Inspection(
        key=facts_key(job),
        namespace=meta["namespace"],
        job_name=meta["name"],
        job_uid=uid_of(job),
        started_at=started,
        result=_result(status, pods, now),
        message=waiting_message(job, pods, is_slow_at(now)),
    )


def _result(status: Object, pods: list[Object], now: float) -> CheckpointFacts | InspectionFailure | None:
    """Return the result of a finished Job, None while it runs. The message of its pod is untrusted:
    `parse_report` validates every field.
    """
    ended = ended_at(status, now)
    if ended is None:
        return None
    ended_at_s, condition = ended
    message = last_message(pods)
    if message:
        return parse_report(message, ended_at_s)
    end = container_end(
        pods, INSPECT_MEMORY, "reading the checkpoint", "its tokenizer or headers are too large"
    )
    cause = end or condition or "its pod left no report"
    message = f"inspect Job ended without a report: {cause}"[:1000]
    return InspectionFailure("InspectionFailed", message, ended_at_s)


def ended_at(status: Object, now: float) -> tuple[float, str] | None:
    """Return when a Job ended and the message of that condition, None while it runs."""
    for condition in status.get("conditions") or ():
        if condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True":
            message = condition.get("message") or condition.get("reason") or ""
            return epoch_or(condition.get("lastTransitionTime"), now), str(message)
    return None


def last_message(pods: list[Object]) -> str:
    """Return the termination message of the youngest pod that left one, the empty string where none did."""
    messages = (
        container["terminated"]["message"]
        for pod in _youngest_first(pods)
        for container in pod["containers"]
        if container["terminated"] and container["terminated"].get("message")
    )
    return next(messages, "")


def container_end(pods: list[Object], memory: str, doing: str, hint: str) -> str:
    """Return how the container of a Job without a message ended, the empty string where that is unknown."""
    for pod in _youngest_first(pods):
        for container in pod["containers"]:
            end = container["terminated"]
            if end and end.get("reason") == "OOMKilled":
                return f"{doing} took more than the {memory} of memory that the Job has (OOMKilled); {hint}"
            if end and end.get("exitCode"):
                return f"its container ended with {end.get('reason', 'Error')}, exit code {end['exitCode']}"
    return ""


def _youngest_first(pods: list[Object]) -> list[Object]:
    return sorted(pods, key=lambda p: p["metadata"].get("creationTimestamp", ""), reverse=True)
