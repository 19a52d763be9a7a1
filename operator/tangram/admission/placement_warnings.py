"""Where a reviewed LLMDeployment will run, at which price and latency; or why nothing serves it."""

from collections import Counter
from collections.abc import Callable, Iterator

from tangram.admission.planned_review import PlannedReview, planned_review
from tangram.admission.review import Review, ReviewedFleet
from tangram.admission.sufficient_edits import sufficient_edit
from tangram.admission.text import warning_lines
from tangram.catalog.reading.fields import shortened
from tangram.eligibility.acceptance import VALID
from tangram.eligibility.reasons import OFF, PAUSED, Reason
from tangram.eligibility.shapes.serving_shapes import placement_rule
from tangram.fleet import Decision, Intent, MIGPolicy, Objective, PoolPolicy, Shape, claiming_pools
from tangram.plan.fleet_input.fleet import may_use, read_fleet
from tangram.plan.offers.node_offers import offers

NO_ANSWER = "no prediction in time: `kubectl describe` says soon where it runs, and what it costs"


def placement_warnings(
    review: Review, fleet: ReviewedFleet, expired: Callable[[], bool] = lambda: False
) -> tuple[str, ...]:
    """Return sentences for kubectl, each of at most `LONGEST_WARNING` characters.

    One plan: for a worker process with a deadline, after which the caller says `NO_ANSWER`. Where replicas
    get no device, up to `MOST_PLANS` edits are planned besides, none after time has `expired`. Empty for
    kinds other than LLMDeployments and where the spec stays as it is.
    """
    if review.plural != "llmdeployments" or review.keeps_spec or review.is_deleted:
        return ()
    return warning_lines(_sentences(planned_review(review, fleet), expired))


def _sentences(planned: PlannedReview, expired: Callable[[], bool]) -> Iterator[str]:
    intent, decision = planned.intent, planned.decision
    if not decision.accepted or not isinstance(intent, Intent):
        yield f"{intent.name} is not accepted: {decision.accepted_message}"
        return
    if decision.accepted_message != VALID:
        yield f"{intent.name}: {decision.accepted_message}"
    yield from intent.warnings
    if intent.paused:
        yield f"{intent.name}: {PAUSED}"
    elif intent.is_off:
        yield f"{intent.name}: {OFF}"
    elif decision.facts is None:
        yield from _of_unknown_checkpoint(planned, intent)
    elif decision.placed_reason == Reason.PLACED:
        yield from _of_replicas(intent, decision)
    else:
        yield from _of_shortage(planned, intent, expired)


def _of_replicas(intent: Intent, decision: Decision) -> Iterator[str]:
    """Yield where the placed replicas run, their price, and how fast an idle one is."""
    if decision.shape is None or not decision.placed:
        return
    cost = decision.price_per_hour
    yield f"{intent.name} runs on {_replicas(decision.shape, decision.placed, cost)}"
    if decision.predicted_ttft_ms is not None and decision.predicted_tpot_ms is not None:
        ttft = _latency("TTFT", decision.predicted_ttft_ms, intent.ttft)
        tpot = _latency("TPOT", decision.predicted_tpot_ms, intent.tpot)
        percentile = intent.objectives.strictest_percentile
        yield f"predicted p{percentile} of an idle replica: {ttft}, {tpot}"


def _replicas(shape: Shape, count: int, cost: float) -> str:
    price = f"{cost / count:.2f} $/h"
    return f"{shape.described}: " + (
        f"1 replica at {price}" if count == 1 else f"{count} replicas at {price} each, {cost:.2f} $/h in all"
    )


def _latency(name: str, predicted_ms: float, objective: Objective | None) -> str:
    limit = "" if objective is None else f" (objective {objective.milliseconds} ms)"
    return f"{name} {predicted_ms:.2f} ms{limit}"


def _of_shortage(planned: PlannedReview, intent: Intent, expired: Callable[[], bool]) -> Iterator[str]:
    """Yield why replicas have no device, what runs, and an edit with which each replica has one."""
    decision = planned.decision
    runs = decision.placed or decision.running
    yield f"{'' if runs else 'nothing serves '}{intent.name}: {decision.placed_message}"
    if decision.placed_reason == Reason.INSUFFICIENT_CAPACITY and decision.shape is not None:
        yield _held(planned, intent, decision.shape)
    yield from _of_replicas(intent, decision)
    edit = sufficient_edit(planned, intent, expired)
    if edit is not None:
        yield f"{edit.text} it would run on {_replicas(edit.shape, edit.replicas, edit.price_per_hour)}"
    pools = _pools_to_cut(planned, intent)
    if pools:
        yield f"this is about the GPUs as they are cut now: a FleetPlan may cut GPUs of {pools} for it"


def _held(planned: PlannedReview, intent: Intent, shape: Shape) -> str:
    """Return how many devices there are where it may run, and how many of them its namespace holds."""
    snapshot = planned.fleet.snapshot
    nodes = {
        node.name: dict(node.allocatable).get(shape.resource, 0)
        for node in snapshot.nodes
        if node.sku == shape.sku and may_use(intent.pools, claiming_pools(node, snapshot.pools))
    }
    own = {other.uid for other in planned.others if other.namespace == intent.namespace} | {intent.uid}
    held = Counter[bool]()
    for claim in snapshot.claims:
        if claim.node in nodes and claim.resource == shape.resource:
            held[claim.owner_uid in own] += claim.count
    where = f"{shape.profile} on {shape.sku}"
    return (
        f"there are {sum(nodes.values())} of {where}: this namespace holds {held[True]}, others {held[False]}"
    )


def _pools_to_cut(planned: PlannedReview, intent: Intent) -> str:
    """Return the GPUPools with GPUs that a FleetPlan may cut for it."""
    snapshot = planned.fleet.snapshot
    policies, partitions = {pool.name: pool.policy for pool in snapshot.pools}, snapshot.partition.by_node
    names = set()
    for node in snapshot.nodes:
        place = claiming_pools(node, snapshot.pools)
        if intent.mig is MIGPolicy.FORBIDDEN or node.name not in partitions or not place:
            continue
        if policies[place[0]] is not PoolPolicy.IGNORE and may_use(intent.pools, place):
            names.add(place[0])
    return f"GPUPool {shortened(sorted(names))}" if names else ""


def _of_unknown_checkpoint(planned: PlannedReview, intent: Intent) -> Iterator[str]:
    """Yield that the checkpoint is not inspected yet, and what the spec alone says."""
    node_offers = offers(read_fleet(planned.fleet.snapshot))
    yield f"{intent.name}: where it runs depends on its checkpoint; {planned.decision.model_message}"
    prices = sorted(
        (price, str(shape))
        for shape in (Shape(*device) for device in node_offers.devices(intent.pools))
        if not placement_rule(intent, shape)
        and (price := node_offers.replica_hour(shape, intent.pools)) is not None
    )
    if not prices:
        yield "no node offers a GPU or slice that spec.placement allows"
        return
    bounds = dict.fromkeys(f"{price:.2f} $/h ({shape})" for price, shape in (prices[0], prices[-1]))
    count = intent.min_replicas
    yield f"{count} replica{'s' * (count != 1)} at least, each at {' to '.join(bounds)}"
