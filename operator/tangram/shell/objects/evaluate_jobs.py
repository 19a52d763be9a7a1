"""What an evaluate Job is about, and what it found: read from the Job and its pods. Pure."""

import json

from tangram.api import parse_evaluation
from tangram.fleet import Evaluation, EvaluationFailure, EvaluationKey, EvaluationReport
from tangram.shell.objects import kinds
from tangram.shell.objects.inspect_jobs import container_end, ended_at, last_message, only_runs
from tangram.shell.objects.kinds import Object, uid_of
from tangram.shell.objects.owned_objects import MAX_ANNOTATION, annotations_of
from tangram.shell.objects.timestamps import epoch
from tangram.shell.objects.waiting_pods import late_at, waiting_message


def evaluation_annotation(key: EvaluationKey, profile: str) -> str:
    """Return what an evaluate Job is about, as the JSON that its pod template carries."""
    about = {"digest": key.digest, "sku": key.sku, "profile": profile, "precision": key.precision}
    return json.dumps(about, sort_keys=True)


def evaluation_about(job: Object) -> tuple[EvaluationKey, str, str] | None:
    """Return the key, profile and engine image of an evaluate Job, None for any other Job.

    They are read from its pod template, which cannot be edited.
    """
    annotations = annotations_of(job["spec"]["template"])
    text = annotations.get(kinds.EVALUATION_ANNOTATION, "")
    if not text or len(text) > MAX_ANNOTATION or not only_runs(job, "evaluate"):
        return None
    try:
        about = json.loads(text)
        digest, sku, profile, precision = (
            str(about[name]) for name in ("digest", "sku", "profile", "precision")
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    uri = annotations.get(kinds.MODEL_URI_ANNOTATION, "")
    key = EvaluationKey(job["metadata"]["namespace"], uri, digest, sku, precision)
    return key, profile, annotations.get(kinds.ENGINE_IMAGE_ANNOTATION, "")


def evaluation(
    job: Object, about: tuple[EvaluationKey, str, str], pods: list[Object], now: float
) -> Evaluation:
    """Return an evaluate Job with what it found, by its status and its pods."""
    key, profile, _ = about
    meta, status = job["metadata"], job.get("status") or {}
    return Evaluation(
        key=key,
        profile=profile,
        job_name=meta["name"],
        job_uid=uid_of(job),
        started_at=epoch(status.get("startTime") or meta.get("creationTimestamp"), now),
        result=_result(job, about, pods, now),
        message=waiting_message(job, pods, late_at(now)),
    )


def _result(
    job: Object, about: tuple[EvaluationKey, str, str], pods: list[Object], now: float
) -> EvaluationReport | EvaluationFailure | None:
    """Return what a finished Job found. Its pod's message is untrusted: every field is validated."""
    ended = ended_at(job.get("status") or {}, now)
    if ended is None:
        return None
    at, why = ended
    message, (key, profile, image) = last_message(pods), about
    if message:
        return parse_evaluation(message, key, image, profile, at)
    limits = (job["spec"]["template"]["spec"]["containers"][0].get("resources") or {}).get("limits") or {}
    hint = "raise engine.resources.requests.memory"
    end = container_end(pods, str(limits.get("memory", "")), "the evaluation", hint)
    text = end or why or "its pod left no report"
    return EvaluationFailure("EvaluationFailed", f"the evaluate Job ended without a report: {text}"[:500], at)
