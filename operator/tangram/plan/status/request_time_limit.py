"""Warnings about `engine.maxRequestSeconds` in `Accepted`: what may end a request of a valid spec earlier."""

from tangram.fleet import DEFAULT_REQUEST_S, Decision, FleetSnapshot, Intent, Lengths

# cluster-autoscaler's --max-graceful-termination-sec, and its default on AKS, EKS and OpenShift
AUTOSCALER_GRACE_S = 600
# EC2 announces an interruption two minutes ahead; Google and Azure 30 seconds, or less
SPOT_GRACE_S = 120


def time_limit_warnings(intent: Intent, decision: Decision, snapshot: FleetSnapshot) -> tuple[str, ...]:
    """Return one sentence per limit that the spec exceeds, with what to change."""
    of_nodes = _autoscaler(intent, snapshot), _spot(intent, decision, snapshot)
    return tuple(filter(None, (*of_nodes, _long_answers(intent, decision))))


def _autoscaler(intent: Intent, snapshot: FleetSnapshot) -> str:
    """Return the warning about a cluster autoscaler; about the default limit only if a pool grows."""
    grace_s = intent.termination_grace_s
    named = [pool for pool in snapshot.pools if not intent.pools or pool.name in intent.pools]
    grows = any(pool.max_nodes is not None for pool in named)
    may_remove = (grows or intent.max_request_s > DEFAULT_REQUEST_S) and not snapshot.pod_needs.keep_nodes
    if grace_s <= AUTOSCALER_GRACE_S or not may_remove:
        return ""
    return (
        f"pods get {grace_s} s to end, and a cluster autoscaler that removes their node grants "
        f"{AUTOSCALER_GRACE_S} unless its --max-graceful-termination-sec is raised: longer requests may be "
        "cut; raise it there, lower engine.maxRequestSeconds, or set the chart's value engine.nodeRemoval to "
        "Block"
    )


def _spot(intent: Intent, decision: Decision, snapshot: FleetSnapshot) -> str:
    shape, grace_s = decision.shape, intent.termination_grace_s
    if shape is None or grace_s <= SPOT_GRACE_S:
        return ""
    names = [node.name for node in snapshot.nodes if node.spot and node.usable and node.sku == shape.sku]
    if not names:
        return ""
    return (
        f"pods get {grace_s} s to end, and spot nodes with {shape.sku} ({len(names)}, for instance "
        f"{min(names)}) give {SPOT_GRACE_S} at most: longer requests are cut when one is reclaimed; lower "
        "engine.maxRequestSeconds or name pools without spot nodes"
    )


def _long_answers(intent: Intent, decision: Decision) -> str:
    answers, tpot_ms = intent.traffic.output_tokens, decision.predicted_tpot_ms
    if answers is None or tpot_ms is None:
        return ""
    expected_s = answers.p90 * tpot_ms / 1000
    if expected_s <= intent.max_request_s:
        return ""
    return (
        f"{_share(answers)} longer than {expected_s:.0f} s (P90 of traffic.outputTokens: "
        f"{answers.p90:.0f} tokens, {tpot_ms:.3g} ms per token), and requests are cut off after "
        f"{intent.max_request_s} s; raise engine.maxRequestSeconds"
    )


def _share(answers: Lengths) -> str:
    alike = answers.p90 == answers.mean and not answers.counts
    return "every answer takes" if alike else "a tenth of the answers take"
