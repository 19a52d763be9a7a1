"""The subjects and the results of inspect and evaluate Jobs, read from the Jobs and their pods. Pure.

A Job counts only if it runs one command and nothing else. Its image may differ from the requested one:
clusters rewrite images to their mirrors. The result of a forged Job counts in its own namespace only.
"""

import json
from dataclasses import replace

from tangram.api import parse_evaluation, parse_pin, parse_report
from tangram.fleet import (
    CheckpointFacts,
    ClaimFill,
    Evaluation,
    EvaluationFailure,
    EvaluationKey,
    EvaluationReport,
    FactsKey,
    Inspection,
    InspectionFailure,
)
from tangram.fleet.times import epoch_or
from tangram.kube import kinds
from tangram.kube.kinds import Object, annotations_of, uid_of
from tangram.shell.objects.fetch_container import NAME as FETCH
from tangram.shell.objects.job_pods import INSPECT_MEMORY
from tangram.shell.objects.owned_objects import MAX_ANNOTATION
from tangram.shell.objects.waiting_pods import waiting_message

_FETCHES = ("headers", "fetch")


def facts_key(job: Object) -> FactsKey:
    """Return the checkpoint that a Job inspects, from the annotations of its (immutable) pod template."""
    annotations = annotations_of(job["spec"]["template"])
    uri = annotations.get(kinds.MODEL_URI_ANNOTATION, "")
    image = annotations.get(kinds.ENGINE_IMAGE_ANNOTATION, "")
    return FactsKey(job["metadata"]["namespace"], uri, image)


def evaluation_annotation(key: EvaluationKey, profile: str) -> str:
    """Return the subject of an evaluate Job as the JSON annotation of its pod template."""
    subject = {"digest": key.digest, "sku": key.sku, "profile": profile, "precision": key.precision}
    return json.dumps(subject, sort_keys=True)


def evaluation_subject(job: Object) -> tuple[EvaluationKey, str, str] | None:
    """Return the key, profile and engine image of an evaluate Job, None for any other Job.

    Source: the pod template of the Job, which is immutable.
    """
    text = annotations_of(job["spec"]["template"]).get(kinds.EVALUATION_ANNOTATION, "")
    if not text or len(text) > MAX_ANNOTATION or not only_runs(job, "evaluate"):
        return None
    try:
        fields = json.loads(text)
        digest, sku, profile, precision = (
            str(fields[name]) for name in ("digest", "sku", "profile", "precision")
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    checkpoint = facts_key(job)
    key = EvaluationKey(checkpoint.namespace, checkpoint.uri, digest, sku, precision)
    return key, profile, checkpoint.engine_image


def only_runs(job: Object, command: str) -> bool:
    """Say whether a Job runs one command of the engine image, perhaps after a fetch, and nothing else."""
    pod = job["spec"]["template"]["spec"]
    containers, before = list(pod.get("containers") or ()), list(pod.get("initContainers") or ())
    fetches = all(container["name"] == FETCH and _runs(container, _FETCHES) for container in before)
    return len(containers) == 1 and len(before) <= 1 and fetches and _runs(containers[0], (command,))


def _runs(container: Object, commands: tuple[str, ...]) -> bool:
    return not container.get("command") and (container.get("args") or [""])[0] in commands


def inspection(job: Object, pods: list[Object], now: float) -> Inspection:
    """Return an inspect Job with its result, from its status and its pods."""
    return Inspection(
        key=facts_key(job),
        namespace=job["metadata"]["namespace"],
        job_name=job["metadata"]["name"],
        job_uid=uid_of(job),
        started_at=_started_at(job, now),
        result=_inspection_result(job, pods, now),
        message=waiting_message(job, pods, now),
    )


def claim_fill(job: Object, pods: list[Object], now: float) -> ClaimFill:
    """Return a Job that fills a claim, with its result."""
    result = _inspection_result(job, pods, now)
    failure = result if isinstance(result, InspectionFailure) else None
    return ClaimFill(job["metadata"]["name"], uid_of(job), result is not None and failure is None, failure)


def evaluation(
    job: Object, subject: tuple[EvaluationKey, str, str], pods: list[Object], now: float
) -> Evaluation:
    """Return an evaluate Job with its result, from its status and its pods."""
    key, profile, _ = subject
    return Evaluation(
        key=key,
        profile=profile,
        job_name=job["metadata"]["name"],
        job_uid=uid_of(job),
        started_at=_started_at(job, now),
        result=_evaluation_result(job, subject, pods, now),
        message=waiting_message(job, pods, now),
    )


def _started_at(job: Object, now: float) -> float:
    started = (job.get("status") or {}).get("startTime")
    return epoch_or(started or job["metadata"].get("creationTimestamp"), now)


def _inspection_result(
    job: Object, pods: list[Object], now: float
) -> CheckpointFacts | InspectionFailure | None:
    """Return the result of a finished Job, None while it runs. The parser validates the untrusted report."""
    end = _job_end(job, now)
    if end is None:
        return None
    ended_at_s, cause = end
    if report := _report(pods, "inspect"):
        result = parse_report(report, ended_at_s)
        if isinstance(result, InspectionFailure):
            return result
        return replace(result, pin=parse_pin(_last_message(pods, FETCH)))
    hint = "its tokenizer or headers are too large"
    why = _container_end(pods, INSPECT_MEMORY, "reading the checkpoint", hint) or cause
    message = f"inspect Job ended without a report: {why}"[:1000]
    return InspectionFailure("InspectionFailed", message, ended_at_s)


def _evaluation_result(
    job: Object, subject: tuple[EvaluationKey, str, str], pods: list[Object], now: float
) -> EvaluationReport | EvaluationFailure | None:
    """Return the result of a finished Job, None while it runs. The parser validates the untrusted report."""
    end = _job_end(job, now)
    if end is None:
        return None
    ended_at_s, cause = end
    if report := _report(pods, "evaluate"):
        key, profile, image = subject
        return parse_evaluation(report, key, image, profile, ended_at_s)
    limits = (job["spec"]["template"]["spec"]["containers"][0].get("resources") or {}).get("limits") or {}
    hint = "raise engine.resources.requests.memory"
    why = _container_end(pods, str(limits.get("memory", "")), "the evaluation", hint) or cause
    message = f"the evaluate Job ended without a report: {why}"[:500]
    return EvaluationFailure("EvaluationFailed", message, ended_at_s)


def _job_end(job: Object, now: float) -> tuple[float, str] | None:
    """Return when a Job ended, and what its condition has about the end; None while it runs."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True":
            cause = condition.get("message") or condition.get("reason") or "its pod left no report"
            return epoch_or(condition.get("lastTransitionTime"), now), str(cause)
    return None


def _report(pods: list[Object], command: str) -> str:
    """Return the report of a command, or that of the fetch before it where the fetch failed, else nothing."""
    fetch = _last_message(pods, FETCH)
    return _last_message(pods, command) or ("" if parse_pin(fetch) is not None else fetch)


def _last_message(pods: list[Object], name: str) -> str:
    """Return the termination message of a container of the youngest pod that left one, else nothing."""
    messages = (
        container["terminated"]["message"]
        for pod in _youngest_first(pods)
        for container in pod["containers"]
        if container["name"] == name and container["terminated"] and container["terminated"].get("message")
    )
    return next(messages, "")


def _container_end(pods: list[Object], memory: str, doing: str, hint: str) -> str:
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
