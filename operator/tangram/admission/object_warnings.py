"""Warnings about a GPUPool, a FleetPlan or an EngineRuntime that need no plan."""

from collections.abc import Iterator

from tangram.admission.review import Object, Review, ReviewedObjects
from tangram.admission.text import warning_lines
from tangram.api import parse_engine_runtime, parse_pool
from tangram.eligibility.acceptance import VALID
from tangram.eligibility.devices.device_rules import LabelledBoard, NodeFacts
from tangram.eligibility.pool_conditions import NO_NODES, accepted
from tangram.fleet import EngineRuntime, Node, Pool


def object_warnings(review: Review, objects: ReviewedObjects) -> tuple[str, ...]:
    """Return sentences for kubectl, each of at most `LONGEST_WARNING` characters. No solve: under 50 ms."""
    if review.keeps_spec or review.is_deleted:
        return ()
    if review.plural == "gpupools":
        return warning_lines(_of_pool(review, objects))
    if review.plural == "engineruntimes":
        return warning_lines(_of_runtime(review))
    if review.plural == "fleetplans":
        return warning_lines(_of_consent(review))
    return ()


def _of_pool(review: Review, objects: ReviewedObjects) -> Iterator[str]:
    pool = parse_pool(review.body)
    if not isinstance(pool, Pool) or objects.nodes is None:
        return
    nodes = [_labelled(obj, pool) for obj in objects.nodes if pool.selects(_labels(obj))]
    if not nodes:
        yield f"{NO_NODES}: the pool stays empty until one has"
    _, _, message = accepted(pool, dict.fromkeys(nodes, (pool.name,)))
    yield message.removeprefix(VALID).removeprefix("; ")


def _of_runtime(review: Review) -> Iterator[str]:
    runtime = parse_engine_runtime(review.body)
    if isinstance(runtime, EngineRuntime):
        yield from runtime.warnings
        if not runtime.is_on:
            yield "spec.image is not set: the runtime is off"


def _labelled(obj: Object, pool: Pool) -> Node:
    """Return a node with its GPU model alone."""
    declared = () if pool.sku is None else (pool.sku,)
    board = LabelledBoard.of(NodeFacts(obj["metadata"]["name"], _labels(obj), {}, {}, declared=declared))
    return Node(obj["metadata"]["name"], board.sku, board.product, True, ())


def _labels(obj: Object) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}


def _of_consent(review: Review) -> Iterator[str]:
    """Yield what consent to a FleetPlan does. Owners are of any namespace: they are counted, not named."""
    spec, old = review.body.get("spec") or {}, (review.old or {}).get("spec") or {}
    if not spec.get("changes") or spec.get("approved") == old.get("approved"):
        return
    if spec.get("approved") is False:
        yield "the plan is rejected: nothing is changed, and it is not proposed again"
        return
    if spec.get("approved") is not True:
        return
    disturbed = spec.get("disturbed") or ()
    moved = {deployment.get("owner") for deployment in disturbed}
    restarted = {deployment.get("owner") for deployment in disturbed if deployment.get("restarts")}
    if restarted:
        yield f"DOWNTIME: replicas of {_counted(len(restarted))} stop before their replacements serve"
    cut = sum(change.get("before") != change.get("after") for change in spec["changes"])
    yield f"cuts {cut} GPU{'s' * (cut != 1)} anew; replicas of {_counted(len(moved))} move"
    if "costBeforePerHour" in spec and "costPerHour" in spec:
        yield f"these GPUs cost {spec['costBeforePerHour']} $/h before, {spec['costPerHour']} $/h after"


def _counted(owners: int) -> str:
    return f"{owners or 'no'} LLMDeployment{'s' * (owners != 1)}"
