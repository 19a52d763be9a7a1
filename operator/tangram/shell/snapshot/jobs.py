"""The inspect and evaluate Jobs of LLMDeployments, with their results. Pure."""

import itertools

from tangram.fleet import Evaluation, Inspection
from tangram.kube.kinds import Object, identity_of, key_of
from tangram.shell.objects.job_results import (
    evaluation,
    evaluation_subject,
    facts_key,
    inspection,
    only_runs,
)
from tangram.shell.objects.manifests import evaluate_job_name, inspect_job_name
from tangram.shell.snapshot.conversion import SkipHandler, convert_each, ignore_skipped
from tangram.shell.snapshot.ownership import is_owned, pods_by_job
from tangram.shell.watch.mirror_view import MirrorView


def fleet_jobs(
    view: MirrorView, now: float, on_skipped: SkipHandler = ignore_skipped
) -> tuple[Inspection | Evaluation, ...]:
    """Return the Jobs of LLMDeployments by namespace and name; each has the name that its key gives it."""
    owners, pods_of = view.owners(), pods_by_job(view)

    def of_job(obj: Object) -> list[Inspection | Evaluation]:
        if not is_owned(obj, owners):
            return []
        name, pods, subject = key_of(obj)[1], pods_of.get(identity_of(obj), []), evaluation_subject(obj)
        if subject is not None:
            return [evaluation(obj, subject, pods, now)] if name == evaluate_job_name(subject[0]) else []
        is_inspection = name == inspect_job_name(facts_key(obj)) and only_runs(obj, "inspect")
        return [inspection(obj, pods, now)] if is_inspection else []

    jobs = itertools.chain.from_iterable(convert_each(view.jobs, of_job, on_skipped))
    return tuple(sorted(jobs, key=lambda job: (job.key.namespace, job.job_name)))
