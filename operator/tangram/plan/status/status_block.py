"""The status of one LLMDeployment. Equal inputs and its previous status give the same status again."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tangram.api import back_off_block, evaluation_block
from tangram.api.llm_deployment.status import MAX_SHORT_TEXT
from tangram.eligibility.reasons import Reason
from tangram.eligibility.shapes.evaluation_reports import reports
from tangram.fleet import (
    BUNDLED,
    LAYOUT,
    Advice,
    Alternative,
    CheckpointFacts,
    Decision,
    FleetSnapshot,
    Intent,
    ParsedIntent,
    Shape,
    Workload,
    engine_selector,
)
from tangram.fleet.times import rfc3339
from tangram.packing.problem.codec import camel, to_json
from tangram.plan.fleet_input.fleet import read_fleet
from tangram.plan.jobs.inspections import key_of, next_key
from tangram.plan.status import conditions
from tangram.plan.status.conditions import FALSE, TRUE, ConditionInputs, ConditionState
from tangram.plan.status.slo import slo_block, slo_met, steady
from tangram.scaling import ScalingDecision, Signal, record
from tangram.scaling.outlook.load_outlook import ReplicaNeed

_MESSAGE_LIMIT = 2000  # the CRD allows 2048
_MAX_ITEMS = 16
_MAX_DECISIONS, _MAX_DECISION_CHARS = 5, 512


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
    """Return the status to write. `signal` is None if no source of metrics is configured.

    `advice` is what the recommended plan of the whole fleet has about it. Times of transitions, the last
    scaling and rarely written numbers are carried over from `previous_status`, as the API server holds it ({}
    at first).
    """
    inputs = conditions.condition_inputs(decision, intent, snapshot, signal, scale)
    cost = decision.cost_per_hour
    old_slo = _same_generation(inputs, previous_status).get("slo")
    blocks: dict[str, Any] = {
        "observedGeneration": intent.generation,
        "revision": _revision(intent, previous_status),
        "conditions": _conditions(inputs, snapshot, previous_status, now),
        "replicas": sum(workload.total for workload in inputs.workloads),
        "replicasDisplay": f"{inputs.ready}/{decision.desired}",
        "selector": engine_selector(intent.name),
        "replicasSetBy": _set_by(intent),
        "desiredReplicas": decision.desired,
        "readyReplicas": inputs.ready,
        "model": _model(inputs, snapshot, previous_status),
        "placement": _placement(inputs, advice),
        "slo": None if inputs.is_off else slo_block(inputs, old_slo, now),
        "cost": None if cost is None else {"perHour": f"{cost:.2f}"},
        "url": _url(intent, snapshot),
        "lastScale": _last_scale(scale, previous_status),
        "scaling": _scaling(inputs, snapshot, previous_status),
        "backOffs": [back_off_block(back_off) for back_off in decision.back_offs] or None,
    }
    return {name: block for name, block in blocks.items() if block is not None}


def unrendered_status(intent: ParsedIntent, previous_status: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Return the status of an LLMDeployment whose status cannot be rendered, with the reason in Ready.

    The facts of its checkpoint stay, so that it is not inspected again.
    """
    why = ConditionState(FALSE, Reason.NOT_JUDGED, "its status could not be rendered; please report this")
    model = previous_status.get("model")
    return {
        "observedGeneration": intent.generation,
        "conditions": [_condition("Ready", why, None, intent.generation, now)],
        "selector": engine_selector(intent.name),
    } | ({"model": model} if isinstance(model, Mapping) else {})


def _conditions(
    inputs: ConditionInputs, snapshot: FleetSnapshot, previous_status: Mapping[str, Any], now: float
) -> list[dict[str, Any]]:
    old = {condition["type"]: condition for condition in previous_status.get("conditions", ())}
    states = {
        "Accepted": conditions.accepted(inputs),
        "ModelReady": _model_ready(inputs, snapshot, previous_status, old.get("ModelReady")),
        "Placed": conditions.placed(inputs),
        "Available": conditions.available(inputs),
        "ScalingActive": conditions.scaling_active(inputs),
        "SLOMet": steady(slo_met(inputs), old.get("SLOMet"), inputs.rendered_generation, now),
    }
    before, previous = old.get("Ready"), None
    if before is not None and before["observedGeneration"] >= inputs.rendered_generation:
        previous = ConditionState(before["status"], before["reason"], before["message"])
    ready = conditions.ready(inputs, previous)
    if states["ModelReady"].status == FALSE and _is_retried(inputs):
        ready = states["ModelReady"]
    return [
        _condition(kind, state, old.get(kind), inputs.intent.generation, now)
        for kind, state in {"Ready": ready, **states}.items()
    ]


def _same_generation(inputs: ConditionInputs, previous_status: Mapping[str, Any]) -> Mapping[str, Any]:
    """The previous status if it is about this spec: another spec may have had other objectives."""
    generation = previous_status.get("observedGeneration") or 0
    return previous_status if generation >= inputs.rendered_generation else {}


def _revision(intent: ParsedIntent, previous_status: Mapping[str, Any]) -> dict[str, Any] | None:
    if not isinstance(intent, Intent) or intent.revision is None:
        return previous_status.get("revision")
    return asdict(intent.revision)


def _is_retried(inputs: ConditionInputs) -> bool:
    """Whether Ready depends on an inspection that is tried again, and on nothing more actionable."""
    decision = inputs.decision
    waits = decision.model_reason == Reason.INSPECTING and decision.placed_reason != Reason.PAUSED
    return waits and inputs.problem is None and not inputs.is_off


def _model_ready(
    inputs: ConditionInputs,
    snapshot: FleetSnapshot,
    previous_status: Mapping[str, Any],
    old: Mapping[str, Any] | None,
) -> ConditionState:
    """The condition ModelReady. While a failed inspection is retried, the failure stays until it succeeds.

    What the new Job's pod waits for is shown, though: it may be why the last Job failed.
    """
    new = conditions.model_ready(inputs)
    model = previous_status.get("model", {})
    if old is None or old["status"] != FALSE or new.reason != Reason.INSPECTING:
        return new
    if not isinstance(inputs.intent, Intent):
        return new
    key = next_key(inputs.intent, snapshot.engine_image)
    if (model.get("nextURI", model.get("uri")), model.get("engineImage")) != (key.uri, key.engine_image):
        return new
    is_stuck = any(i.key == key and i.message for i in snapshot.inspections)
    return ConditionState(FALSE, old["reason"], new.message if is_stuck else _without_since(old["message"]))


def _condition(
    kind: str, state: ConditionState, old: Mapping[str, Any] | None, generation: int, now: float
) -> dict[str, Any]:
    stays = old is not None and old["status"] == state.status
    since = old["lastTransitionTime"] if old is not None and stays else rfc3339(now)
    message = state.message[:_MESSAGE_LIMIT]
    if state.status != TRUE:
        message = f"{_without_since(message)}{_SINCE}{since})"
    return {
        "type": kind,
        "status": state.status,
        "observedGeneration": generation,
        "lastTransitionTime": since,
        "reason": str(state.reason),
        "message": message,
    }


_SINCE = " (since "


def _without_since(message: str) -> str:
    head, mark, _ = message.rpartition(_SINCE)
    return head if mark else message


def _model(
    inputs: ConditionInputs, snapshot: FleetSnapshot, previous_status: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The checkpoint. An invalid spec does not name one: the block stays."""
    if not isinstance(inputs.intent, Intent):
        return previous_status.get("model")
    facts = inputs.decision.facts or dict(snapshot.facts).get(key_of(inputs.intent, snapshot.engine_image))
    block: dict[str, Any] = {"uri": inputs.intent.model_uri, "engineImage": snapshot.engine_image}
    block |= {"facts": facts_block(facts)} if facts else {}
    pin = facts.pin.revision if facts and facts.pin else _recorded_pin(inputs.intent, snapshot)
    block |= {"revision": pin} if pin else {}
    block |= {} if inputs.intent.next_model_uri is None else {"nextURI": inputs.intent.next_model_uri}
    evaluated = [
        evaluation_block(key, report)
        for key, report in sorted(reports(snapshot).items(), key=lambda item: item[0])
        if (key.namespace, key.uri) == (inputs.intent.namespace, inputs.intent.model_uri)
        and (facts is None or key.digest == facts.digest)
    ]
    return block | ({"evaluations": evaluated[:_MAX_ITEMS]} if evaluated else {})


def facts_block(facts: CheckpointFacts) -> dict[str, Any]:
    """Return the facts of a checkpoint as the status holds them."""
    block: dict[str, Any] = to_json(facts, camel)
    return {name: value for name, value in block.items() if value != ""}


def _recorded_pin(intent: Intent, snapshot: FleetSnapshot) -> str | None:
    """Return the revision that stays pinned while another engine image inspects the checkpoint."""
    return dict(snapshot.pins).get((intent.namespace, intent.model_uri))


def _placement(inputs: ConditionInputs, advice: Advice | None) -> dict[str, Any] | None:
    decision = inputs.decision
    target: Workload | None = inputs.target
    shape = decision.shape or (target.shape if target is not None else None)  # without a decision they stay
    if shape is None and not decision.alternatives and advice is None:
        return None
    block: dict[str, Any] = {
        "display": _display(decision, shape),
        "placedReplicas": decision.placed_of_all_shapes,
    }
    if shape is not None:
        block |= {"variant": shape.variant, "sku": shape.sku, "profile": shape.profile}
        block["precision"] = shape.precision
        block |= {} if shape.runtime == BUNDLED else {"runtime": shape.runtime}
        block |= {"gpusPerReplica": shape.gpus} if shape.gpus > 1 else {}
    if decision.runtime_reason:
        block["runtimeReason"] = decision.runtime_reason[:_MESSAGE_LIMIT]
    if decision.predicted_tpot_ms is not None:
        block["predictedTPOTMilliseconds"] = _decimal(decision.predicted_tpot_ms)
    if decision.alternatives:
        block["alternatives"] = [_alternative(alternative) for alternative in decision.alternatives]
    short = decision.placed_reason != Reason.PLACED
    return block | _advice(advice, short=short, consent=decision.consent)


def _display(decision: Decision, shape: Shape | None) -> str:
    """Return the replicas of `shape`; if it has none, those of the shapes that run."""
    running = dict(decision.running)
    placed = max(decision.placed if shape == decision.shape else 0, running.get(shape, 0) if shape else 0)
    if shape is not None and (placed or not running):
        return f"{shape.described} x{placed}"
    return ", ".join(f"{other.described} x{count}" for other, count in running.items()) or "none"


def _alternative(alternative: Alternative) -> dict[str, Any]:
    return {
        "shape": str(alternative.shape),
        "precision": alternative.shape.precision,
        "replicas": alternative.replicas,
        # 0: no price is known
        **({"costPerHour": f"{alternative.cost_per_hour:.2f}"} if alternative.cost_per_hour else {}),
        "rejectedBecause": alternative.rejected_because,
        "message": alternative.message[:_MESSAGE_LIMIT],
    }


def _advice(advice: Advice | None, *, short: bool, consent: str) -> dict[str, Any]:
    """What the recommended plan has about it: why it is `short` of replicas, and what would serve it.

    `consent`: the FleetPlan of changes that makes the layout; a plan of the whole fleet cannot be approved.
    """
    if advice is None or not short or not (advice.because or advice.relaxations):
        return {}
    block: dict[str, Any] = {"plan": advice.plan}
    if advice.because:
        block["because"] = [text[:_MESSAGE_LIMIT] for text in advice.because[:_MAX_ITEMS]]
    if advice.relaxations:
        relaxations = advice.relaxations[:_MAX_ITEMS]
        block["relaxations"] = [
            {
                "dimension": r.dimension[:MAX_SHORT_TEXT],
                "text": f"FleetPlan {consent}: tangram approve {consent}"
                if consent and r.dimension == LAYOUT
                else r.text[:_MESSAGE_LIMIT],
            }
            for r in relaxations
        ]
    return block


def _decimal(value: float) -> str:
    """Three significant digits, never in exponent form."""
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.4f}"


def _set_by(intent: ParsedIntent) -> dict[str, str] | None:
    manager = intent.replicas_set_by if isinstance(intent, Intent) else None
    if manager is None:
        return None
    block = {"manager": manager.manager, "subresource": manager.subresource, "time": manager.time}
    return {name: text for name, text in block.items() if text}


def _url(intent: ParsedIntent, snapshot: FleetSnapshot) -> str | None:
    exists = (intent.namespace, intent.name) in snapshot.services
    return f"http://{intent.name}.{intent.namespace}.svc" if exists else None


def _scaling(
    inputs: ConditionInputs, snapshot: FleetSnapshot, previous_status: Mapping[str, Any]
) -> dict[str, Any] | None:
    intent, scale = inputs.intent, inputs.scale
    previous = previous_status.get("scaling")
    previous = previous if isinstance(previous, Mapping) else {}
    if scale is None:
        return dict(previous) or None
    block = record(scale.memory)
    is_set = isinstance(intent, Intent) and intent.replicas is not None
    if is_set and scale.recommended is not None:
        block["recommendedReplicas"] = scale.recommended
    decisions = previous.get("decisions")
    decisions = list(decisions) if isinstance(decisions, list) else []
    if scale.replicas != scale.previous:
        message = {"message": scale.message[:_MAX_DECISION_CHARS]}
        need = {} if scale.need is None else {"need": _need(scale.need, _replica_hour(inputs, snapshot))}
        decisions.insert(0, _change(scale) | message | need)
    if decisions:
        block["decisions"] = decisions[:_MAX_DECISIONS]
    return block or None


def _replica_hour(inputs: ConditionInputs, snapshot: FleetSnapshot) -> float | None:
    """Return USD per hour of a replica of the shape that the law counts. None: no price is known, or the law
    counts no shape and replicas have several.
    """
    uid, shapes = inputs.intent.uid, {w.shape for w in inputs.workloads if w.replicas}
    counted = dict(snapshot.desired_of).get(uid)
    shapes = shapes if counted is None else {counted}
    return read_fleet(snapshot).running_replica_hour(uid, *shapes) if len(shapes) == 1 else None


def _need(need: ReplicaNeed, replica_hour: float | None) -> dict[str, Any]:
    """Return the need beside its runner-up, with the price of its spare replicas where one is known."""
    block: dict[str, Any] = {
        "replicas": need.replicas,
        "expectedMissedShare": f"{need.missed_share:.5f}",
        "errorBudget": f"{need.error_budget:.5f}",
        "limit": str(need.limit),
        "spareReplicas": need.spare,
    }
    if replica_hour is not None:
        block["spareCostPerHour"] = f"{need.spare * replica_hour:.2f}"
    if need.runner_up is not None:
        block["runnerUp"] = {
            "replicas": need.runner_up.replicas,
            "expectedMissedShare": f"{need.runner_up.missed_share:.5f}",
        }
    return block


def _last_scale(scale: ScalingDecision | None, previous_status: Mapping[str, Any]) -> dict[str, Any] | None:
    if scale is None or scale.replicas == scale.previous:
        return previous_status.get("lastScale")
    return _change(scale)


def _change(scale: ScalingDecision) -> dict[str, Any]:
    return {"time": rfc3339(scale.at), "from": scale.previous, "to": scale.replicas, "reason": scale.reason}
