"""Which quantised formats may be used: the reports of evaluate Jobs against the tolerance of a spec.

`fleet/evaluation.py` `misses` compares a report with a tolerance; `bundled_engine.py` lists allowed formats.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from tangram.capacity.sizing import Constraint, Rejection
from tangram.fleet import EvaluationKey, EvaluationReport, FleetSnapshot, Intent, Shape

Reports = Mapping[EvaluationKey, EvaluationReport]
CheckpointReports = Mapping[tuple[str, str, str], list[tuple[EvaluationKey, EvaluationReport]]]
"""By (namespace, URI, digest)."""
Verdict = tuple[str, str, str]
"""(SKU, format, tolerance that the report misses or the empty string)."""


def reports(snapshot: FleetSnapshot) -> Reports:
    """Return all reports: those recorded in statuses, and those of Jobs that have just ended."""
    by_key = dict(sorted(snapshot.reports, key=lambda item: (item[0], str(item[1]))))
    for job in sorted(snapshot.evaluations, key=lambda e: (e.key, e.job_uid)):
        if isinstance(job.result, EvaluationReport):
            by_key.setdefault(job.key, job.result)
    return by_key


def report_key(intent: Intent, digest: str, shape: Shape) -> EvaluationKey:
    """Return the key of the report that `intent` needs to be served on `shape`."""
    return EvaluationKey(intent.namespace, intent.model_uri, digest, shape.sku, shape.precision)


def reports_by_checkpoint(reports: Reports) -> CheckpointReports:
    """Return the reports of each checkpoint."""
    by_checkpoint = defaultdict(list)
    for key, report in reports.items():
        by_checkpoint[key.namespace, key.uri, key.digest].append((key, report))
    return by_checkpoint


def verdicts_of(
    intent: Intent, about_checkpoint: Iterable[tuple[EvaluationKey, EvaluationReport]]
) -> tuple[Verdict, ...]:
    """Return what the reports about the checkpoint of `intent` come to under its tolerance, sorted."""
    verdicts = ((key.sku, key.precision, report.misses(intent.tolerance)) for key, report in about_checkpoint)
    return tuple(sorted(verdicts))


def report_rejection(shape: Shape, verdicts: Iterable[Verdict]) -> Rejection | None:
    """Return why a quantised format may not be used, None where a report is within the tolerance."""
    missed = next((text for sku, form, text in verdicts if (sku, form) == (shape.sku, shape.precision)), None)
    if missed is None:
        text = f"{shape.precision} is not evaluated on {shape.sku} yet"
        return Rejection(shape, Constraint.EVALUATION, text, excess=1.0)
    text = f"{shape.precision}: {missed}"
    return Rejection(shape, Constraint.TOLERANCE, text, excess=1.0) if missed else None
