"""Warnings about `engine.maxRequestSeconds` in `Accepted`: what may end a request of a valid spec earlier."""

from tangram.fleet import DEFAULT_REQUEST_S, Decision, FleetSnapshot, Intent
from tangram.plan.reasons.conditions import AutoscalerCuts, LongAnswersCut, SpotNodesCut
from tangram.plan.words.conditions import sentence

# cluster-autoscaler's --max-graceful-termination-sec, and its default on AKS, EKS and OpenShift
AUTOSCALER_GRACE_S = 600
# EC2 announces an interruption two minutes ahead; Google and Azure 30 seconds, or less
SPOT_GRACE_S = 120


def time_limit_warnings(intent: Intent, decision: Decision, snapshot: FleetSnapshot) -> tuple[str, ...]:
    """Return one sentence per limit that the spec exceeds, with what to change."""
    limits = _autoscaler(intent, snapshot), _spot(intent, decision, snapshot), _long_answers(intent, decision)
    return tuple(sentence(limit) for limit in limits if limit is not None)


def _autoscaler(intent: Intent, snapshot: FleetSnapshot) -> AutoscalerCuts | None:
    """Return the limit of a cluster autoscaler; about the default limit only if a pool grows."""
    grace_s = intent.termination_grace_s
    named = [pool for pool in snapshot.pools if not intent.pools or pool.name in intent.pools]
    grows = any(pool.max_nodes is not None for pool in named)
    may_remove = (grows or intent.max_request_s > DEFAULT_REQUEST_S) and not snapshot.pod_needs.keep_nodes
    return (
        AutoscalerCuts(grace_s, AUTOSCALER_GRACE_S) if grace_s > AUTOSCALER_GRACE_S and may_remove else None
    )


def _spot(intent: Intent, decision: Decision, snapshot: FleetSnapshot) -> SpotNodesCut | None:
    shape, grace_s = decision.shape, intent.termination_grace_s
    if shape is None or grace_s <= SPOT_GRACE_S:
        return None
    nodes = snapshot.nodes
    names = tuple(sorted(node.name for node in nodes if node.spot and node.usable and node.sku == shape.sku))
    return SpotNodesCut(grace_s, SPOT_GRACE_S, shape.sku, names) if names else None


def _long_answers(intent: Intent, decision: Decision) -> LongAnswersCut | None:
    answers, tpot_ms = intent.traffic.output_tokens, decision.predicted_tpot_ms
    if answers is None or tpot_ms is None or answers.p90 * tpot_ms / 1000 <= intent.max_request_s:
        return None
    return LongAnswersCut(answers, tpot_ms, intent.max_request_s)
