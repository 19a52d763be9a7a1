"""What the statuses of LLMDeployments record: the memory of the operator across restarts. Pure."""

import itertools
from collections.abc import Callable
from typing import TypeVar

from tangram.api import back_offs_from_status, evaluations_from_status, facts_from_status, pin_from_status
from tangram.api.llm_deployment.status import ScalingDecisionStatus, ScalingStatus
from tangram.fleet import BackOff, CheckpointFacts, EvaluationKey, EvaluationReport, FactsKey
from tangram.kube.kinds import Object, key_of, uid_of
from tangram.scaling.record import PREDICTED_TPOT
from tangram.shell.snapshot.conversion import SkipHandler, convert_each, ignore_skipped
from tangram.shell.watch.mirror_view import MirrorView

T = TypeVar("T")


def recorded_replicas(view: MirrorView) -> dict[str, int]:
    """Return the last desired replicas of each LLMDeployment, by UID."""
    recorded = ((uid_of(obj), _section(obj, "status").get("desiredReplicas")) for obj in view.llm_deployments)
    return {uid: n for uid, n in recorded if isinstance(n, int) and not isinstance(n, bool) and n >= 0}


def recorded_scaling(view: MirrorView) -> dict[str, dict[str, object]]:
    """Return the recorded state of the scaling law by UID: what it has learned, and the predicted TPOT."""
    recorded = {}
    for obj in view.llm_deployments:
        status = _section(obj, "status")
        scaling, placement = dict(_section(status, "scaling")), _section(status, "placement")
        if PREDICTED_TPOT in placement:
            scaling[PREDICTED_TPOT] = placement[PREDICTED_TPOT]
        recorded[uid_of(obj)] = scaling
    return recorded


def recorded_decisions(
    view: MirrorView, on_skipped: SkipHandler = ignore_skipped
) -> dict[str, tuple[ScalingDecisionStatus, ...]]:
    """Return the last decisions of the scaling law that each status records, by UID, the newest first."""
    recorded = _each_status(
        view,
        lambda obj: (uid_of(obj), ScalingStatus.model_validate(_section(_section(obj, "status"), "scaling"))),
        on_skipped,
    )
    return {uid: scaling.decisions for uid, scaling in recorded if scaling.decisions}


def recorded_scaling_active(view: MirrorView) -> dict[str, str]:
    """Return what each status says about whether replicas follow the load, and from what, by UID."""
    recorded = {}
    for obj in view.llm_deployments:
        conditions = _section(obj, "status").get("conditions")
        for condition in conditions if isinstance(conditions, list) else ():
            if isinstance(condition, dict) and condition.get("type") == "ScalingActive":
                recorded[uid_of(obj)] = f"{condition.get('status')}, {condition.get('message')}"
    return recorded


def recorded_variants(view: MirrorView) -> dict[str, str]:
    """Return the variant (the shape's name in Deployments) in whose replicas each status counts, by UID."""
    recorded = (
        (uid_of(obj), _section(_section(obj, "status"), "placement").get("variant"))
        for obj in view.llm_deployments
    )
    return {uid: variant for uid, variant in recorded if isinstance(variant, str)}


def recorded_back_offs(
    view: MirrorView, on_skipped: SkipHandler = ignore_skipped
) -> dict[str, tuple[BackOff, ...]]:
    """Return the shapes in back-off that each status records, by UID."""
    recorded = _each_status(view, lambda obj: (uid_of(obj), back_offs_from_status(obj)), on_skipped)
    return {uid: back_offs for uid, back_offs in recorded if back_offs}


def recorded_facts(view: MirrorView, on_skipped: SkipHandler) -> tuple[tuple[FactsKey, CheckpointFacts], ...]:
    """Return the checkpoint facts in statuses, once per checkpoint."""
    recorded = _each_status(view, facts_from_status, on_skipped)
    return tuple(sorted(dict(pair for pair in recorded if pair is not None).items()))


def recorded_pins(view: MirrorView, on_skipped: SkipHandler) -> tuple[tuple[tuple[str, str], str], ...]:
    """Return the pinned revisions in statuses, once per namespace and `model.uri`."""
    recorded = _each_status(view, pin_from_status, on_skipped)
    return tuple(sorted(dict(pair for pair in recorded if pair is not None).items()))


def recorded_reports(
    view: MirrorView, on_skipped: SkipHandler
) -> tuple[tuple[EvaluationKey, EvaluationReport], ...]:
    """Return the evaluation reports in statuses, once per key."""
    recorded = itertools.chain.from_iterable(_each_status(view, evaluations_from_status, on_skipped))
    return tuple(sorted(dict(recorded).items(), key=lambda pair: pair[0]))


def _each_status(view: MirrorView, read: Callable[[Object], T], on_skipped: SkipHandler) -> list[T]:
    """Read each status, in the order of namespace and name: the last one counts where two record one key."""
    return list(convert_each(sorted(view.llm_deployments, key=key_of), read, on_skipped))


def _section(obj: Object, name: str) -> Object:
    """Return an object inside an object, empty where there is none."""
    section = obj.get(name)
    return section if isinstance(section, dict) else {}
