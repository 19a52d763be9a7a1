"""The sentences that users read about a placement: in conditions, Events, `explain` and alternatives.

`sentence` takes each record of `reasons`, so that one reason reads the same everywhere.
"""

import math
from collections.abc import Iterable, Mapping
from functools import singledispatch

from tangram.eligibility.devices.node_devices import left_out_notes
from tangram.eligibility.explanation.words import no_shape_sentence
from tangram.eligibility.isolation import RoundStep
from tangram.eligibility.reasons import Reason
from tangram.fleet import BackOff, FailedChanges, Fault, Node, Shape
from tangram.fleet.quantity import memory_quantity
from tangram.fleet.times import rfc3339
from tangram.plan.reasons import placement as reasons

_MOST_NAMED = 3  # nodes, or notes about them, that one sentence names
_MIB = 2**20

FAULT_TEXTS: Mapping[str, str] = {
    RoundStep.READ: "its objects could not be read",
    RoundStep.SCALE: "its replicas could not be counted",
    RoundStep.MODEL: "its checkpoint could not be assessed",
    RoundStep.ASSESSMENT: "its shapes could not be assessed",
    RoundStep.BACK_OFF: "its back-offs could not be determined",
    RoundStep.LIMIT: "its quota could not be counted",
    RoundStep.TARGET: "its devices could not be assigned",
    RoundStep.PLACE: "its placement could not be decided",
    RoundStep.UNATTRIBUTED: "it could not be planned",
}


@singledispatch
def sentence(reason: object) -> str:
    """Return what users read about a record. Raises `TypeError` for what is none."""
    raise TypeError(f"no sentence for {type(reason).__name__}")


def joined(*records: object | None) -> str:
    """Return the sentences of all records that are not None, as one text."""
    return "; ".join(sentence(record) for record in records if record is not None)


def device_name(shape: Shape) -> str:
    """Return the device of one replica: `gpu`, `1g.10gb`."""
    return shape.resource.removeprefix("nvidia.com/mig-").removeprefix("nvidia.com/")


def _free_device(shape: Shape, one: str = "a") -> str:
    """Return the free devices that one replica needs: `a free gpu on L4`, `4 free gpus of one node of L4`."""
    if shape.gpus > 1:
        return f"{shape.gpus} free gpus of one node of {shape.sku}"
    return f"{one} free {_device(shape)}"


def _device(shape: Shape, replicas: int = 1) -> str:
    """Return what each replica takes: `1g.10gb on H100-80GB-SXM`, `gang of 4 L4`, `gangs of 4 L4`."""
    if shape.gpus == 1:
        return f"{device_name(shape)} on {shape.sku}"
    return f"gang{'s' * (replicas != 1)} of {shape.gpus} {shape.sku}"


def quantity(value: float) -> str:
    """Return a count, cores or bytes."""
    return f"{value / 2**30:g}Gi" if value >= _MIB else f"{value:g}"


# Limits


@sentence.register
def _quota_binds(reason: reasons.QuotaBinds) -> str:
    limit = reason.limit
    name = f"ResourceQuota {limit.quota} of namespace {limit.namespace}"
    return f"{name}: {quantity(limit.used)} of {quantity(limit.hard)} {limit.resource} are used"


@sentence.register
def _namespace_refuses_pods(reason: reasons.NamespaceRefusesPods) -> str:
    return f"namespace {reason.namespace} refuses pods, so this LLMDeployment starts with one pod"


@sentence.register
def _deployment_refused(reason: reasons.DeploymentRefused) -> str:
    return f"its Deployment is refused: {reason.message}"


@sentence.register
def _backed_off(reason: reasons.BackedOff) -> str:
    back_off = reason.back_off
    later = f"it is tried again at {rfc3339(back_off.until)}"
    next_step = "one more replica is started as a test" if reason.is_over else later
    return f"{back_off.shape.described}{_why(back_off)} ({_attempt(back_off)}); {next_step}"


@sentence.register
def _limit_binds(reason: reasons.LimitBinds) -> str:
    text = sentence(reason.cause)
    if reason.next_try is None:
        return text
    count, first = reason.shapes_in_back_off, rfc3339(reason.next_try)
    return f"{text}; all {count} shapes that may be used are in back-off, the next is tried at {first}"


@sentence.register
def _budget_binds(reason: reasons.BudgetBinds) -> str:
    shape, others = reason.shape, reason.others_per_hour
    beside = f", beside {others:.2f} $/h for what runs until then" if others else ""
    return (
        f"placement.budgetPerHour of {reason.budget_per_hour:.2f} $/h allows"
        f" {reason.allowed} of {reason.desired} replicas on {shape.shape.described} at"
        f" {shape.price_per_hour:.2f} $/h each{beside}"
    )


# Replicas that do not start


@sentence.register
def _not_ready_in_time(reason: reasons.NotReadyInTime) -> str:
    back_off = reason.back_off
    late = f"no replica on {back_off.shape.described} became ready in time"
    return f"{late} ({_attempt(back_off)}){_why(back_off)}"


def _attempt(back_off: BackOff) -> str:
    return f"attempt {back_off.attempts}, since {rfc3339(back_off.since)}"


def _why(back_off: BackOff) -> str:
    return f": {back_off.message}" if back_off.message else ""


@sentence.register
def _no_other_shape_is_free(reason: reasons.NoOtherShapeIsFree) -> str:
    return f"{_all(reason.failures)}; no other shape that may be used has free devices"


@sentence.register
def _other_shape_is_used(reason: reasons.OtherShapeIsUsed) -> str:
    return f"{_all(reason.failures)}; another shape is used, until {rfc3339(reason.until)} at least"


def _all(failures: Iterable[reasons.NotReadyInTime]) -> str:
    return " and ".join(map(sentence, failures))


@sentence.register
def _failed_on_several_shapes(reason: reasons.FailedOnSeveralShapes) -> str:
    names = " nor on ".join(shape.described for shape in reason.shapes)
    return (
        f"no replica became ready on {names}: the likely cause is the checkpoint or the engine image, so"
        f" {reason.used.described} is used and no other shape is tried until one is ready or the spec changes"
    )


@sentence.register
def _pods_unscheduled(reason: reasons.PodsUnscheduled) -> str:
    found = reason.unscheduled
    pods = f"{found.pods} of {reason.replicas} pods on {reason.shape.described} cannot be scheduled"
    since = f"since {rfc3339(found.since)}: {found.message}"
    return f"{pods} {since}; from {rfc3339(reason.due)} on another shape is tried"


# The condition `Placed`


@sentence.register
def _all_placed(reason: reasons.AllPlaced) -> str:
    shape, rate = reason.shape, reason.requests_per_second
    parts = [f"{reason.replicas} on {shape.shape.described} at {shape.price_per_hour:.2f} $/h each"]
    if reason.tpot_ms is not None:
        parts.append(f"predicted {reason.tpot_ms:.2f} ms per token when idle")
    if rate:
        parts.append(f"predicted to carry {rate:.3g} requests/s in total")
    sku = reason.unverified_sku
    return ", ".join(parts) + (f"; the catalog's numbers for {sku} are not verified" if sku else "")


@sentence.register
def _some_placed(reason: reasons.SomePlaced) -> str:
    on_shape = f" on {reason.shape.described}" if reason.shape is not None else ""
    count = f"{reason.placed} of {reason.desired} replicas placed{on_shape}"
    return f"{count}; {sentence(reason.why)}"


@sentence.register
def _waits_for_cuts(reason: reasons.WaitsForCuts) -> str:
    waits = "wait" if reason.replicas > 1 else "waits"
    needs = f"{reason.replicas} {waits} for a {device_name(reason.shape)}"
    nodes = ", ".join(reason.nodes[:_MOST_NAMED])
    if not reason.plans:
        return f"{needs} that the partition backend of {nodes} cuts, as its GPUNode says"
    plans = " and ".join(reason.plans)
    return f"{needs} that FleetPlan {plans} cuts on {nodes}, until {rfc3339(reason.until)}"


@sentence.register
def _no_free_device(reason: reasons.NoFreeDevice) -> str:
    needs = (
        f"{reason.replicas} more {'needs' if reason.replicas == 1 else 'need'} {_free_device(reason.shape)}"
    )
    where = f" in {' or '.join(reason.pools)}" if reason.pools else ""
    return f"{needs}{where}{_left_out(reason.left_out)}"


@sentence.register
def _none_of_the_pools(reason: reasons.NoneOfThePools) -> str:
    return f"there is no GPUPool {' or '.join(reason.pools)}"


@sentence.register
def _no_device_offered(reason: reasons.NoDeviceOffered) -> str:
    pools = " and ".join(reason.pools)
    unknown = " and ".join(reason.unknown_pools)
    device = "no GPU that the catalog knows" if reason.has_nodes else "no GPU node"
    where = f"GPUPools {pools} have" if pools else "the fleet has"
    text = f"{where} {device}; waits for a node that offers one"
    if unknown:
        text = f"placement.pools names {unknown}, and there is no such GPUPool; waits for one"
    return f"{text}{_left_out(reason.left_out)}{_still_serving(reason.serving)}"


@sentence.register
def _no_shape_serves(reason: reasons.NoShapeServes) -> str:
    more_devices_help = reason.reason is Reason.INFEASIBLE
    left_out = _left_out(reason.left_out) if more_devices_help else ""
    return f"{no_shape_sentence(reason.assessed, reason.why)}{left_out}{_still_serving(reason.serving)}"


def _still_serving(shapes: Iterable[Shape]) -> str:
    names = ", ".join(shape.described for shape in shapes)
    return f"; {names} goes on serving meanwhile" if names else ""


def _left_out(nodes: tuple[Node, ...]) -> str:
    if not nodes:
        return ""
    notes = left_out_notes(nodes, "{nodes} ({reason})")
    more = f" and {len(notes) - _MOST_NAMED} more reasons" if len(notes) > _MOST_NAMED else ""
    count = f"{len(nodes)} node{'s' * (len(nodes) != 1)}"
    return f"; devices of {count} are left out: {', '.join(notes[:_MOST_NAMED])}{more}"


@sentence.register
def _spec_not_accepted(reason: reasons.SpecNotAccepted) -> str:
    waits = "waits until condition Accepted is True"
    stay = "no accepted spec is recorded: running replicas stay unchanged, and are not scaled"
    return f"{waits}; {stay}" if reason.is_running else waits


@sentence.register
def _fault(fault: Fault) -> str:
    failed = FAULT_TEXTS.get(fault.step, FAULT_TEXTS[RoundStep.UNATTRIBUTED])
    return f"{failed} ({fault.error}); please report this; running replicas stay unchanged"


@sentence.register
def _waits_for_plan(reason: reasons.WaitsForPlan) -> str:
    return f"waits for the plan of the fleet, which may cut GPUs for it, until {rfc3339(reason.until)}"


@sentence.register
def _waits_for_consent(reason: reasons.WaitsForConsent) -> str:
    serves = f"FleetPlan {reason.plan} serves it and waits for consent: tangram approve {reason.plan}"
    return f"{serves}; without it: {reason.without_it}"


@sentence.register
def _cannot_move(reason: reasons.CannotMove) -> str:
    return f"{reason.shape} does not serve it any more, or its placement excludes it"


@sentence.register
def _no_large_enough_host(reason: reasons.NoLargeEnoughHost) -> str:
    largest = ", ".join(_host(*host) for host in reason.hosts[:_MOST_NAMED])
    shape, requested = reason.shape, _host(reason.cpu, reason.memory)
    gpus = f"{shape.gpus} {shape.sku}" if shape.gpus > 1 else shape.sku
    return f"a pod requests {requested}, and no node with {gpus} has both: the largest has {largest}"


def _host(cpu: float, memory: float) -> str:
    cores = "any number of cores" if math.isinf(cpu) else f"{cpu:g} cores"
    return f"{cores} and {'any' if math.isinf(memory) else memory_quantity(memory)} memory"


# Notes on a rollout, and on replicas that stay


@sentence.register
def _rollout_waits(reason: reasons.RolloutWaits) -> str:
    if reason.cause is not None:
        return f"the rollout waits for one more pod: {sentence(reason.cause)}"
    return f"the rollout waits for {_free_device(reason.shape, 'one')}"


@sentence.register
def _waits_for_minimum(reason: reasons.WaitsForMinimum) -> str:
    return f"no move begins before the minimum of {reason.replicas} replicas has free devices"


@sentence.register
def _assigned_by_priority(reason: reasons.AssignedByPriority) -> str:
    return f"assigned by priority: the joint decision failed ({reason.failure}); please report this"


@sentence.register
def _kept_replicas(reason: reasons.KeptReplicas) -> str:
    replicas = " and ".join(
        f"{count} replica{'s' * (count != 1)} on {shape.described}" for count, shape in reason.counts
    )
    return f"keeps {replicas} until enough replicas of {reason.chosen.described} are available"


@sentence.register
def _failed_changes(failed: FailedChanges) -> str:
    return f"FleetPlan {failed.plan} could not cut GPUs of GPUPool {failed.pool}: {failed.message}"


@sentence.register
def _runs_where_none_is_placed(reason: reasons.RunsWhereNoneIsPlaced) -> str:
    count, missing, is_single = reason.replicas, reason.without_device, reason.replicas == 1
    device = _device(reason.shape)
    run = "1 replica runs" if is_single else f"{count} replicas run"
    text = f"{run} where no new one is placed: {', '.join(_places(reason))}"
    if missing:
        need = (
            "if it ends, it needs"
            if is_single
            else f"if they end, {missing} of them need{'s' * (missing == 1)}"
        )
        return f"{text}; {need} a free {device}, and there is none"
    is_free = f"if it ends, a {device} is free for it"
    are_free = f"if they end, {count} {_device(reason.shape, count)} are free for them"
    return f"{text}; {is_free if is_single else are_free}"


def _places(reason: reasons.RunsWhereNoneIsPlaced) -> list[str]:
    """Return the nodes with what leaves them out, and the GPUPools outside of which replicas run."""
    places = left_out_notes(reason.nodes, "{nodes} ({reason})")[:_MOST_NAMED]
    pools = " and ".join(reason.pools)
    outside = f"outside of placement.pools ({pools})" if pools else "on nodes that are not known"
    return [*places, outside] if reason.are_outside else places
