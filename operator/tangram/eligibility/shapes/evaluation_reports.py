"""Which quantised formats may be used: the reports of evaluate Jobs against the tolerance of a spec."""

from collections.abc import Mapping
from types import MappingProxyType

from tangram.fleet import (
    CheckpointFacts,
    EvaluationKey,
    EvaluationReport,
    FleetSnapshot,
    Intent,
    Shape,
)

Reports = Mapping[EvaluationKey, EvaluationReport]
NO_REPORTS: Reports = MappingProxyType({})
NOT_EVALUATED, OUT_OF_TOLERANCE = "NotEvaluated", "OutOfTolerance"
Verdicts = tuple[tuple[str, str, str], ...]
"""(SKU, format, tolerance that is missed or the empty string) of each report about one checkpoint, sorted."""


def reports(snapshot: FleetSnapshot) -> Reports:
    """Return all reports: those recorded in statuses, and those of Jobs that have just ended."""
    found = dict(sorted(snapshot.reports, key=lambda item: (item[0], str(item[1]))))
    for job in sorted(snapshot.evaluations, key=lambda e: (e.key, e.job_uid)):
        if isinstance(job.result, EvaluationReport):
            found.setdefault(job.key, job.result)
    return found


def key_of(intent: Intent, facts: CheckpointFacts, shape: Shape) -> EvaluationKey:
    """Return what a report has to be about for `intent` to be served on `shape`."""
    return EvaluationKey(intent.namespace, intent.model_uri, facts.digest, shape.sku, shape.precision)


def objection(intent: Intent, key: EvaluationKey, known: Reports) -> tuple[str, str]:
    """Return why a quantised format may not be used, in one word and in a sentence; empty where it may."""
    report = known.get(key)
    missed = None if report is None else report.misses(intent.tolerance)
    return refused(key.sku, key.precision, missed)


def refused(sku: str, precision: str, missed: str | None) -> tuple[str, str]:
    """Return the same of what a report misses; None: there is no report."""
    if missed is None:
        return NOT_EVALUATED, f"{precision} is not evaluated on {sku} yet"
    return (OUT_OF_TOLERANCE, f"{precision}: {missed}") if missed else ("", "")


def format_verdicts(intent: Intent, facts: CheckpointFacts, known: Reports) -> Verdicts:
    """Return what the reports about the checkpoint of `intent` come to."""
    about = (intent.namespace, intent.model_uri, facts.digest)
    return tuple(
        (key.sku, key.precision, report.misses(intent.tolerance))
        for key, report in sorted(known.items(), key=lambda item: item[0])
        if (key.namespace, key.uri, key.digest) == about
    )
