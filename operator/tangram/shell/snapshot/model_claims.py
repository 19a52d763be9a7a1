"""Claims that hold checkpoints, with the Jobs that fill them. Pure."""

from itertools import chain

from tangram.fleet import ModelClaim
from tangram.kube import kinds
from tangram.kube.kinds import Key, Object, annotations_of, identity_of, key_of, uid_of
from tangram.shell.objects.job_results import claim_fill, only_runs
from tangram.shell.objects.model_claims import FILLED, claim_key, key_of_claim
from tangram.shell.snapshot.conversion import SkipHandler, convert_each, ignore_skipped, living
from tangram.shell.snapshot.ownership import is_owned, pods_by_job
from tangram.shell.watch.mirror_view import MirrorView

_LONGEST_TIME = 18  # digits


def model_claims(
    view: MirrorView, mounted: frozenset[Key], now: float, on_skipped: SkipHandler
) -> tuple[ModelClaim, ...]:
    """Return the claims of the operator, sorted. `mounted`: (namespace, name) of those of Deployments."""
    fills = fill_jobs(view)
    pods_of = pods_by_job(view) if fills else {}

    def of_claim(obj: Object) -> list[ModelClaim]:
        key, job = key_of_claim(obj), fills.get(key_of(obj))
        if key is None:
            return []
        records = annotations_of(obj)
        unused = records.get(kinds.UNUSED_ANNOTATION, "")
        claim = ModelClaim(
            key=key,
            name=key_of(obj)[1],
            uid=uid_of(obj),
            is_filled=records.get(kinds.FILLED_ANNOTATION) == FILLED,
            unused_since=float(unused) if unused.isdecimal() and len(unused) <= _LONGEST_TIME else None,
            is_mounted=key_of(obj) in mounted,
            fill=None if job is None else claim_fill(job, pods_of.get(identity_of(job), []), now),
        )
        return [claim]

    claims = chain.from_iterable(convert_each(living(view.model_claims), of_claim, on_skipped))
    return tuple(sorted(claims, key=lambda claim: claim.key))


def fill_jobs(view: MirrorView) -> dict[Key, Object]:
    """Return the Jobs that fill claims, by namespace and name, which are those of the claims.

    `fleet_jobs` reports Jobs that cannot be read.
    """
    if not view.model_claims:
        return {}
    owners = view.owners()

    def of_job(job: Object) -> list[tuple[Key, Object]]:
        fills = claim_key(job["spec"]["template"]) is not None and only_runs(job, "inspect")
        return [(key_of(job), job)] if fills and is_owned(job, owners) else []

    return dict(chain.from_iterable(convert_each(view.jobs, of_job, ignore_skipped)))
