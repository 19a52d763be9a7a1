"""The sentences of conditions, `Placed` aside."""

from collections.abc import Iterable

from tangram.fleet import FetchState, Shape
from tangram.fleet.times import rfc3339
from tangram.plan.reasons import conditions as reasons
from tangram.plan.words.placement import sentence

__all__ = ["sentence"]

_SAME_MS = 1e-6


@sentence.register
def _stated(reason: reasons.StatedReason) -> str:
    return reason.message


@sentence.register
def _accepted_with_warnings(reason: reasons.AcceptedWithWarnings) -> str:
    return f"{reason.message}; but {'; '.join(reason.warnings)}"


@sentence.register
def _autoscaler_cuts(reason: reasons.AutoscalerCuts) -> str:
    return (
        f"pods get {reason.grace_s} s to end, and a cluster autoscaler that removes their node grants "
        f"{reason.granted_s} unless its --max-graceful-termination-sec is raised: longer requests may be "
        "cut; raise it there, lower engine.maxRequestSeconds, or set the chart's value engine.nodeRemoval to "
        "Block"
    )


@sentence.register
def _spot_nodes_cut(reason: reasons.SpotNodesCut) -> str:
    nodes = f"({len(reason.nodes)}, for instance {reason.nodes[0]})"
    return (
        f"pods get {reason.grace_s} s to end, and spot nodes with {reason.sku} {nodes} give "
        f"{reason.granted_s} at most: longer requests are cut when one is reclaimed; lower "
        "engine.maxRequestSeconds or name pools without spot nodes"
    )


@sentence.register
def _long_answers_cut(reason: reasons.LongAnswersCut) -> str:
    answers = reason.answers
    alike = answers.p90 == answers.mean and not answers.counts
    share = "every answer takes" if alike else "a tenth of the answers take"
    return (
        f"{share} longer than {answers.p90 * reason.tpot_ms / 1000:.0f} s (P90 of traffic.outputTokens: "
        f"{answers.p90:.0f} tokens, {reason.tpot_ms:.3g} ms per token), and requests are cut off after "
        f"{reason.most_s} s; raise engine.maxRequestSeconds"
    )


@sentence.register
def _fetch_state(state: FetchState) -> str:
    """Return "fetched by 2 of 3 pods, 16.1 GB each at 112 MB/s, the next at 2026-01-01T10:02:00Z"."""
    if state.fetched >= state.pods and not state.reason:
        return ""
    rate = state.bytes_per_second
    speed = f" at {rate / 1e6:.0f} MB/s" if rate else ""
    text = f"fetched by {state.fetched} of {state.pods} pods, {state.size / 1e9:.1f} GB each{speed}"
    if state.since is not None and rate:
        text += f", the next at {rfc3339(state.since + state.size / rate)}"
    elif state.since is not None:
        text += f", the first under way since {rfc3339(state.since)}"
    return f"{text}; the last fetch failed: {state.message}" if state.reason else text


@sentence.register
def _waits_for_condition(reason: reasons.WaitsForCondition) -> str:
    return f"waits until condition {reason.condition} is True"


@sentence.register
def _minimum_available(reason: reasons.MinimumAvailable) -> str:
    return f"at least {reason.minimum} available"


@sentence.register
def _waits_for_deployment(reason: reasons.WaitsForDeployment) -> str:
    return f"waits for a Deployment on {_shape(reason.shape)}"


@sentence.register
def _too_few_available(reason: reasons.TooFewAvailable) -> str:
    count = f"{reason.available} of at least {reason.minimum} available"
    if reason.failures:
        return f"{count}; {'; '.join(reason.failures)}"
    if reason.deployments:
        return f"{count}; waits for the pods of {', '.join(reason.deployments)} to become ready"
    return f"{count}; the others wait until condition Placed is True"


@sentence.register
def _fixed_number(_reason: reasons.FixedNumber) -> str:
    return "scaling.minReplicas equals scaling.maxReplicas: the number is fixed"


@sentence.register
def _number_set(reason: reasons.NumberSet) -> str:
    manager, setter = reason.manager, " (set by a client that is not recorded)"
    if manager is not None:
        through = f" ({manager.subresource})" if manager.subresource else ""
        setter = f", set by {manager.manager}{through}" + (f" at {manager.time}" if manager.time else "")
    command = f"tangram scale {reason.name} -n {reason.namespace} --auto"
    return f"spec.replicas is {reason.replicas}{setter}; without it Tangram scales: {command}"


@sentence.register
def _number_stays(reason: reasons.NumberStays) -> str:
    return f"{reason.message}; the number of replicas stays"


@sentence.register
def _metrics_recent(reason: reasons.MetricsRecent) -> str:
    read = f", read from {reason.pods_read}" if reason.pods_read else ""
    return f"metrics are recent{read}"


@sentence.register
def _waits_for_shape(reason: reasons.WaitsForShape) -> str:
    return f"waits for replicas of {_shape(reason.shape)} to become available"


@sentence.register
def _waits_for_pods(reason: reasons.WaitsForPods) -> str:
    why = f": {reason.why}" if reason.why else ""
    return f"waits for Deployment {reason.deployment} to replace its pods{why}"


@sentence.register
def _all_ready(reason: reasons.AllReady) -> str:
    return f"{reason.replicas} of {reason.replicas} replicas are ready"


@sentence.register
def _some_ready(reason: reasons.SomeReady) -> str:
    why = f"; {reason.not_placed}" if reason.not_placed else ""
    return f"{reason.ready} of {reason.desired} replicas are ready (minimum {reason.minimum}){why}"


@sentence.register
def _objectives_missed(reason: reasons.ObjectivesMissed) -> str:
    missed = ", ".join(reason.missed).upper()
    why = "".join(f"; {text}" for text in reason.unreachable)
    return f"missed: {missed} ({_all(reason.objectives)}){why}"


@sentence.register
def _objectives_met(reason: reasons.ObjectivesMet) -> str:
    return f"met: {_all(reason.objectives)}"


def _all(objectives: Iterable[reasons.CheckedObjective]) -> str:
    return "; ".join(map(sentence, objectives))


@sentence.register
def _checked_objective(reason: reasons.CheckedObjective) -> str:
    most_ms, percentile = reason.objective.milliseconds, reason.objective.percentile
    text = f"{reason.name} of at most {most_ms} ms for {percentile} % of requests"
    is_edge = abs(reason.edge_ms - most_ms) < _SAME_MS
    return text if is_edge else f"{text}, measured at the histogram edge of {reason.edge_ms:g} ms"


@sentence.register
def _too_few_requests(reason: reasons.TooFewRequests) -> str:
    return f"fewer than {reason.least} requests in the window of {reason.window_s:.0f} s"


def _shape(shape: Shape | None) -> str:
    return "no shape" if shape is None else shape.described
