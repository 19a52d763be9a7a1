"""What an inspect Job is about, and what it found: read from the Job and its pods. Pure."""

from tangram.api import parse_report
from tangram.fleet import CheckpointFacts, FactsKey, Inspection, InspectionFailure
from tangram.shell import kinds
from tangram.shell.children import annotations_of
from tangram.shell.inspect_pod import INSPECT_MEMORY
from tangram.shell.kinds import Object, uid_of
from tangram.shell.timestamps import epoch
from tangram.shell.waiting import late_at, waiting_message


def facts_key(job: Object) -> FactsKey:
    """Return what a Job inspects, by the annotations of its pod template: those of the Job can be edited."""
    annotations = annotations_of(job["spec"]["template"])
    uri = annotations.get(kinds.MODEL_URI_ANNOTATION, "")
    image = annotations.get(kinds.ENGINE_IMAGE_ANNOTATION, "")
    return FactsKey(job["metadata"]["namespace"], uri, image)


def only_inspects(job: Object) -> bool:
    """Say whether a Job runs an inspection and nothing else: only that is believed.

    The image may be another than the one asked for: clusters rewrite images to their mirrors. What a forged
    Job tells is believed in its own namespace alone.
    """
    containers = job["spec"]["template"]["spec"].get("containers") or ()
    return len(containers) == 1 and not any(
        c.get("command") or (c.get("args") or [""])[0] != "inspect" for c in containers
    )


def inspection(job: Object, pods: list[Object], now: float) -> Inspection:
    """Return what an inspect Job is about, and what it found, by its status and its pods."""
    meta, status = job["metadata"], job.get("status") or {}
    started = epoch(status.get("startTime") or meta.get("creationTimestamp"), now)
    return Inspection(
        key=facts_key(job),
        namespace=meta["namespace"],
        job_name=meta["name"],
        job_uid=uid_of(job),
        started_at=started,
        result=_result(status, pods, now),
        message=waiting_message(job, pods, late_at(now)),
    )


def _result(status: Object, pods: list[Object], now: float) -> CheckpointFacts | InspectionFailure | None:
    """Return what a finished Job found. Its pod's message is untrusted: `parse_report` validates every
    field.
    """
    done = next(
        (
            c
            for c in status.get("conditions") or ()
            if c.get("type") in ("Complete", "Failed") and c.get("status") == "True"
        ),
        None,
    )
    if done is None:
        return None
    at = epoch(done.get("lastTransitionTime"), now)
    messages = [
        container["terminated"].get("message", "")
        for pod in sorted(pods, key=lambda p: p["metadata"].get("creationTimestamp", ""), reverse=True)
        for container in pod["containers"]
        if container["terminated"] and container["terminated"].get("message")
    ]
    if messages:
        return parse_report(messages[0], at)
    why = _container_end(pods) or done.get("message") or done.get("reason") or "its pod left no report"
    return InspectionFailure("InspectionFailed", f"inspect Job ended without a report: {why}"[:1000], at)


def _container_end(pods: list[Object]) -> str:
    """Return how the container of an inspection ended that left no message; empty if that is not known."""
    for pod in sorted(pods, key=lambda p: p["metadata"].get("creationTimestamp", ""), reverse=True):
        for container in pod["containers"]:
            end = container["terminated"]
            if end and end.get("reason") == "OOMKilled":
                return (
                    f"reading the checkpoint took more than the {INSPECT_MEMORY} of memory that the Job "
                    "has (OOMKilled); its tokenizer or headers are too large"
                )
            if end and end.get("exitCode"):
                return f"its container ended with {end.get('reason', 'Error')}, exit code {end['exitCode']}"
    return ""
