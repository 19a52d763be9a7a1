"""The whole status of one LLMDeployment. Unchanged inputs and the status before give it again."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tangram.api import back_off_block, evaluation_block
from tangram.catalog.prices import Prices
from tangram.eligibility.reasons import Reason
from tangram.eligibility.shapes.evaluation_reports import reports
from tangram.fleet import (
    Advice,
    Alternative,
    CheckpointFacts,
    Decision,
    FleetSnapshot,
    Intent,
    ParsedIntent,
    Workload,
    engine_selector,
)
from tangram.fleet.times import rfc3339
from tangram.planner.jobs.inspections import key_of
from tangram.planner.status import conditions
from tangram.planner.status.conditions import FALSE, TRUE, ConditionInputs, Verdict
from tangram.planner.status.slo import slo_block, slo_met, steady
from tangram.scaling import ScalingDecision, Signal, record

_MESSAGE_LIMIT = 2000  # the CRD allows 2048
_SHORT_LIMIT = 256  # what the CRD allows
_MOST_LINES = 16


def render_status(
    decision: Decision,
    intent: ParsedIntent,
    snapshot: FleetSnapshot,
    signal: Signal | None,
    scale: ScalingDecision | None,
    previous_status: Mapping[str, Any],
    now: float,
    advice: Advice | None = None,
) -> dict[str, Any]:
    """Return the status to write. `signal` is None where no Prometheus is configured.

    `advice` is what the recommended plan of the whole fleet says about it. `previous_status` is what the API
    server holds ({} at first): times of transitions, the last scaling and rarely written numbers are carried
    on from there.
    """
    v = conditions.view(decision, intent, snapshot, signal, scale)
    blocks: dict[str, Any] = {
        "observedGeneration": intent.generation,
        "revision": _revision(intent, previous_status),
        "conditions": _conditions(v, snapshot, previous_status, now),
        "replicas": sum(workload.total for workload in v.workloads),
        "replicasDisplay": f"{v.ready}/{decision.desired}",
        "selector": engine_selector(intent.name),
        "replicasSetBy": _set_by(intent),
        "desiredReplicas": decision.desired,
        "readyReplicas": v.ready,
        "model": _model(v, snapshot, previous_status),
        "placement": _placement(v, advice),
        "slo": None if v.is_off else slo_block(v, _same_generation(v, previous_status).get("slo"), now),
        "cost": {"perHour": f"{_cost(v, snapshot):.2f}"},
        "url": _url(intent, snapshot),
        "lastScale": _last_scale(scale, previous_status),
        "scaling": _scaling(scale, previous_status),
        "backOffs": [back_off_block(each) for each in decision.back_offs] or None,
    }
    return {name: block for name, block in blocks.items() if block is not None}


def unjudged(intent: ParsedIntent, previous_status: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Return the status of an LLMDeployment whose status cannot be rendered: Ready says so.

    What was known of its checkpoint stays, so that it is not inspected again.
    """
    why = Verdict(FALSE, Reason.NOT_JUDGED, "its status could not be told; please report this")
    model = previous_status.get("model")
    return {
        "observedGeneration": intent.generation,
        "conditions": [_condition("Ready", why, None, intent.generation, now)],
        "selector": engine_selector(intent.name),
    } | ({"model": model} if isinstance(model, Mapping) else {})


def _conditions(
    v: ConditionInputs, snapshot: FleetSnapshot, previous_status: Mapping[str, Any], now: float
) -> list[dict[str, Any]]:
    old = {condition["type"]: condition for condition in previous_status.get("conditions", ())}
    leaves = {
        "Accepted": conditions.accepted(v),
        "ModelReady": _patient(v, snapshot, previous_status, old.get("ModelReady")),
        "Placed": conditions.placed(v),
        "Available": conditions.available(v),
        "ScalingActive": conditions.scaling_active(v),
        "SLOMet": steady(slo_met(v), old.get("SLOMet"), v.rendered_generation, now),
    }
    before = old.get("Ready")
    same = before is not None and before["observedGeneration"] >= v.rendered_generation
    known = Verdict(before["status"], before["reason"], before["message"]) if before and same else None
    ready = conditions.ready(v, known)
    if leaves["ModelReady"].status == FALSE and _is_retried(v):
        ready = leaves["ModelReady"]
    return [
        _condition(kind, verdict, old.get(kind), v.intent.generation, now)
        for kind, verdict in {"Ready": ready, **leaves}.items()
    ]


def _same_generation(v: ConditionInputs, previous_status: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was told of this spec: attainments of another one may be of other objectives."""
    return (
        previous_status if (previous_status.get("observedGeneration") or 0) >= v.rendered_generation else {}
    )


def _revision(intent: ParsedIntent, previous_status: Mapping[str, Any]) -> dict[str, Any] | None:
    if not isinstance(intent, Intent) or intent.revision is None:
        return previous_status.get("revision")
    return asdict(intent.revision)


def _is_retried(v: ConditionInputs) -> bool:
    """Whether Ready hangs on a checkpoint that is looked at again, and on nothing nearer to a person."""
    decision = v.decision
    waits = decision.model_reason == Reason.INSPECTING and decision.placed_reason != Reason.PAUSED
    return waits and v.problem is None and not v.is_off


def _patient(
    v: ConditionInputs,
    snapshot: FleetSnapshot,
    previous_status: Mapping[str, Any],
    old: Mapping[str, Any] | None,
) -> Verdict:
    """Keep telling why a checkpoint failed while it is retried: no news until it succeeds.

    What the new Job's pod waits for is news: it may be why the last one failed.
    """
    new = conditions.model_ready(v)
    model = previous_status.get("model", {})
    if (
        old is None
        or old["status"] != FALSE
        or new.reason != Reason.INSPECTING
        or not isinstance(v.intent, Intent)
    ):
        return new
    if (model.get("uri"), model.get("engineImage")) != (v.intent.model_uri, snapshot.engine_image):
        return new
    key = key_of(v.intent, snapshot.engine_image)
    is_stuck = any(i.key == key and i.message for i in snapshot.inspections)
    return Verdict(FALSE, old["reason"], new.message if is_stuck else _without_since(old["message"]))


def _condition(
    kind: str, verdict: Verdict, old: Mapping[str, Any] | None, generation: int, now: float
) -> dict[str, Any]:
    stays = old is not None and old["status"] == verdict.status
    since = old["lastTransitionTime"] if old is not None and stays else rfc3339(now)
    message = verdict.message[:_MESSAGE_LIMIT]
    if verdict.status != TRUE:
        message = f"{_without_since(message)}{_SINCE}{since})"
    return {
        "type": kind,
        "status": verdict.status,
        "observedGeneration": generation,
        "lastTransitionTime": since,
        "reason": str(verdict.reason),
        "message": message,
    }


_SINCE = " (since "


def _without_since(message: str) -> str:
    head, mark, _ = message.rpartition(_SINCE)
    return head if mark else message


def _model(
    v: ConditionInputs, snapshot: FleetSnapshot, previous_status: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The checkpoint that is wanted. An unreadable spec says nothing about it: what was known stays."""
    if not isinstance(v.intent, Intent):
        return previous_status.get("model")
    facts = v.decision.facts or dict(snapshot.facts).get(key_of(v.intent, snapshot.engine_image))
    block: dict[str, Any] = {"uri": v.intent.model_uri, "engineImage": snapshot.engine_image}
    block |= {"facts": _camel(facts)} if facts else {}
    evaluated = [
        evaluation_block(key, report)
        for key, report in sorted(reports(snapshot).items(), key=lambda item: item[0])
        if (key.namespace, key.uri) == (v.intent.namespace, v.intent.model_uri)
        and (facts is None or key.digest == facts.digest)
    ]
    return block | ({"evaluations": evaluated[:_MOST_LINES]} if evaluated else {})


def _camel(facts: CheckpointFacts) -> dict[str, Any]:
    return {_camel_name(name): value for name, value in asdict(facts).items()}


def _camel_name(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _placement(v: ConditionInputs, advice: Advice | None) -> dict[str, Any] | None:
    decision = v.decision
    shape, placed = decision.shape, decision.placed
    target: Workload | None = v.target
    if shape is None and target is not None:  # nothing is decided: what is there stays
        shape, placed = target.shape, target.replicas
    elif target is not None and target.shape == shape:  # what serves is told, though it has no place by now
        placed = max(placed, target.available)
    if shape is None and not decision.alternatives and advice is None:
        return None
    block: dict[str, Any] = {
        "display": f"{shape.described} x{placed}" if shape else "none",
        "placedReplicas": placed,
    }
    if shape is not None:
        block |= {"variant": shape.variant, "sku": shape.sku, "profile": shape.profile}
        block["precision"] = shape.precision
    if decision.predicted_tpot_ms is not None:
        block["predictedTPOTMilliseconds"] = _decimal(decision.predicted_tpot_ms)
    if decision.alternatives:
        block["alternatives"] = [_alternative(each) for each in decision.alternatives]
    return block | _advice(advice, short=decision.placed_reason != Reason.PLACED)


def _alternative(each: Alternative) -> dict[str, Any]:
    block = {
        "shape": str(each.shape),
        "precision": each.shape.precision,
        "replicas": each.replicas,
        "costPerHour": f"{each.cost_per_hour:.2f}",
        "rejectedBecause": each.rejected_because,
        "message": each.message[:_MESSAGE_LIMIT],
    }
    if not each.cost_per_hour:  # nobody knows a price
        del block["costPerHour"]
    return block


def _advice(advice: Advice | None, *, short: bool) -> dict[str, Any]:
    """What the recommended plan says, where it says anything about this one.

    What rules it out and what would serve it is true of who goes `short`; the others have a place already.
    """
    if advice is None or not short:
        return {}
    if not (advice.because or advice.relaxations):
        return {}
    block: dict[str, Any] = {"plan": advice.plan}
    if advice.because:
        block["because"] = [text[:_MESSAGE_LIMIT] for text in advice.because[:_MOST_LINES]]
    if advice.relaxations:
        lines = advice.relaxations[:_MOST_LINES]
        block["relaxations"] = [
            {"dimension": each.dimension[:_SHORT_LIMIT], "text": each.text[:_MESSAGE_LIMIT]} for each in lines
        ]
    return block


def _decimal(value: float) -> str:
    """Three significant digits, never in exponent form."""
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.4f}"


def _cost(v: ConditionInputs, snapshot: FleetSnapshot) -> float:
    """USD per hour: what is placed, what serves without a place, and shapes that are on their way out."""
    prices, unplaced = Prices(dict(snapshot.prices)), 0.0
    for w in v.workloads:
        count = w.replicas if w.shape != v.decision.shape else max(0, w.available - v.decision.placed)
        price = prices.replica_hour(w.shape.sku, w.shape.profile, w.shape.tensor_parallel)
        unplaced += count * (price or 0.0)
    return v.decision.price_per_hour + unplaced


def _set_by(intent: ParsedIntent) -> dict[str, str] | None:
    by = intent.replicas_set_by if isinstance(intent, Intent) else None
    if by is None:
        return None
    block = {"manager": by.manager, "subresource": by.subresource, "time": by.time}
    return {name: text for name, text in block.items() if text}


def _url(intent: ParsedIntent, snapshot: FleetSnapshot) -> str | None:
    exists = (intent.namespace, intent.name) in snapshot.services
    return f"http://{intent.name}.{intent.namespace}.svc" if exists else None


def _scaling(scale: ScalingDecision | None, previous_status: Mapping[str, Any]) -> dict[str, Any] | None:
    if scale is None:
        return previous_status.get("scaling")
    return record(scale.memory) or None


def _last_scale(scale: ScalingDecision | None, previous_status: Mapping[str, Any]) -> dict[str, Any] | None:
    if scale is None or scale.replicas == scale.previous:
        return previous_status.get("lastScale")
    return {
        "time": rfc3339(scale.at),
        "from": scale.previous,
        "to": scale.replicas,
        "reason": scale.reason,
    }
