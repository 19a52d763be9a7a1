"""The subject and the result of an evaluate Job, read from the Job and its pods. Pure."""

import json

from tangram.api import parse_evaluation
from tangram.fleet import Evaluation, EvaluationFailure, EvaluationKey, EvaluationReport
from tangram.fleet.times import epoch_or
from tangram.shell.objects import kinds
from tangram.shell.objects.inspect_results import container_end, ended_at, last_message, only_runs
from tangram.shell.objects.kinds import Object, annotations_of, uid_of
from tangram.shell.objects.owned_objects import MAX_ANNOTATION
from tangram.shell.objects.waiting_pods import is_slow_at, waiting_message


def evaluation_annotation(key: EvaluationKey, profile: str) -> str:
    """Return the subject of an evaluate Job as the JSON annotation of its pod template."""
    subject = {"digest": key.digest, "sku": key.sku, "profile": profile, "precision": key.precision}
    return json.dumps(subject, sort_keys=True)


def evaluation_subject(job: Object) -> tuple[EvaluationKey, str, str] | None:
    """Return the key, profile and engine image of an evaluate Job, None for any other Job.

    Source: the pod template of the Job, which is immutable.
    """
    annotations = annotations_of(job["spec"]["template"])
    text = annotations.get(kinds.EVALUATION_ANNOTATION, "")
    if not text or len(text) > MAX_ANNOTATION or not only_runs(job, "evaluate"):
        return None
    try:
        fields = json.loads(text)
        digest, sku, profile, precision = (
            str(fields[name]) for name in ("digest", "sku", "profile", "precision")
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    uri = annotations.get(kinds.MODEL_URI_ANNOTATION, "")
    key = EvaluationKey(job["metadata"]["namespace"], uri, digest, sku, precision)
    return key, profile, annotations.get(kinds.ENGINE_IMAGE_ANNOTATION, "")


def evaluation(
    job: Object, subject: tuple[EvaluationKey, str, str], pods: list[Object], now: float
) -> Evaluation:
    """Return an evaluate Job with its result, from its status and its pods."""
    key, profile, _ = subject
    meta, status = job["metadata"], job.get("status") or {}
    return Evaluation(
        key=key,
        profile=profile,
        job_name=meta["name"],
        job_uid=uid_of(job),
        started_at=epoch_or(status.get("startTime") or meta.get("creationTimestamp"), now),
        result=_result(job, subject, pods, now),
        message=waiting_message(job, pods, is_slow_at(now)),
    )


def _result(
    job: Object, subject: tuple[EvaluationKey, str, str], pods: list[Object], now: float
) -> EvaluationReport | EvaluationFailure | None:
    """Return the result of a finished Job, None while it runs. The pod message is untrusted: the parser
    validates every field.
    """
    ended = ended_at(job.get("status") or {}, now)
    if ended is None:
        return None
    ended_at_s, condition = ended
    message, (key, profile, image) = last_message(pods), subject
    if message:
        return parse_evaluation(message, key, image, profile, ended_at_s)
    limits = (job["spec"]["template"]["spec"]["containers"][0].get("resources") or {}).get("limits") or {}
    hint = "raise engine.resources.requests.memory"
    end = container_end(pods, str(limits.get("memory", "")), "the evaluation", hint)
    cause = end or condition or "its pod left no report"
    message = f"the evaluate Job ended without a report: {cause}"[:500]
    return EvaluationFailure("EvaluationFailed", message, ended_at_s)
