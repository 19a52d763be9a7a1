"""Carry out what was decided for one LLMDeployment: which of its Deployments stay (make before break)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tangram import catalog
from tangram.capacity.memory.budget import model_length
from tangram.eligibility.reasons import Reason
from tangram.fleet import (
    Action,
    Alternative,
    ApplyDeployment,
    RemoveDeployment,
    ScaleDeployment,
    Shape,
    Workload,
)
from tangram.fleet.times import rfc3339
from tangram.planner.observe.free_capacity import FreeDevices
from tangram.planner.placement.lost_shapes import alternatives, impossible
from tangram.planner.placement.targets import Case, PlacementTarget, own
from tangram.planner.rollout.moves import kept_replicas
from tangram.planner.rollout.node_selection import steering
from tangram.planner.rollout.pod_replacement import Rollout, resumed, rollout, unit
from tangram.planner.shapes.candidates import Candidate, Offers
from tangram.planner.shapes.judge import rate


@dataclass(frozen=True, slots=True)
class DeploymentPlacement:
    """Where one LLMDeployment runs, and what is to be done for it."""

    reason: Reason
    message: str
    shape: Shape | None = None
    desired: int = 0
    placed: int = 0
    price_per_hour: float = 0.0
    alternatives: tuple[Alternative, ...] = ()
    predicted_tpot_ms: float | None = None
    rollout_waits: str = ""
    actions: tuple[Action, ...] = ()


def place(
    case: Case,
    target: PlacementTarget,
    offered: Offers,
    devices: FreeDevices,
    pending: Mapping[tuple[str, Shape], str],
) -> DeploymentPlacement:
    """Say what is to be done for `case`. What `target` gives it is taken from `devices` already.

    `pending` tells of pods that the scheduler finds no node for, though there is room.
    """
    chosen, intent, present = target.candidate, case.intent, case.present
    lost = alternatives(case, target, devices)
    if chosen is None:
        reason, message = impossible(case, offered)
        return DeploymentPlacement(
            reason, message + _still_serving(present), desired=case.desired, alternatives=lost
        )
    mine = case.on(chosen.shape)
    others = tuple(workload for workload in present if workload.shape != chosen.shape)
    placed, desired = target.replicas, target.desired
    holds = placed + devices.count_held(intent.uid, chosen.shape) - own(case, chosen.shape, devices)
    replicas = _replicas(target, mine)
    can_double = replicas < target.most
    limit = case.limits.get(chosen.shape)
    no_surge = limit.message if limit is not None and limit.replicas <= replicas else ""
    way = rollout(intent, mine, placed, replicas, holds, devices, can_double=can_double, no_surge=no_surge)
    kept = kept_replicas(case, target, mine)
    stays = ", ".join(f"{kept[w.uid]} on {w.shape.described}" for w in others if kept[w.uid])
    reason, message = _verdict(case, target, chosen, offered)
    waits = pending.get((intent.uid, chosen.shape))
    if waits and reason == Reason.PLACED:
        reason, message = Reason.UNSCHEDULABLE, waits
    if chosen.rejection is not None:  # it serves, and is predicted to be too slow
        reason, message = impossible(case, offered)
        message += _still_serving(present)
    notes = (
        _not_begun(case, target, mine, others),
        way.waits,
        f"given in turn: the joint decision failed ({target.failed}); please report this"
        if target.failed
        else "",
        f"{stays} stays until enough replicas of {chosen.shape.described} are available" if stays else "",
    )
    return DeploymentPlacement(
        reason=reason,
        message="; ".join(filter(None, (message, *notes))),
        shape=chosen.shape,
        desired=desired,
        placed=placed,
        price_per_hour=placed * chosen.price_per_hour,
        alternatives=lost,
        predicted_tpot_ms=chosen.tpot_ms,
        rollout_waits=way.waits,
        actions=(
            *_apply(case, offered, devices, chosen, replicas, way, mine),
            *resumed(mine, replicas),
            *_leave(others, kept),
        ),
    )


def _not_begun(
    case: Case, target: PlacementTarget, mine: Workload | None, others: tuple[Workload, ...]
) -> str:
    waits = mine is None and target.replicas == 0 and any(workload.available for workload in others)
    least = case.intent.min_replicas
    if not waits or target.waits or target.limit is not None:
        return ""
    return f"no move begins before there is room for the minimum of {least}"


def _leave(others: tuple[Workload, ...], kept: Mapping[str, int]) -> Iterator[Action]:
    """Take down what a move needs no more of other shapes."""
    for old in others:
        identity = (old.owner_uid, old.namespace, old.name, old.uid)
        if kept[old.uid] == 0:
            yield RemoveDeployment(*identity)
        elif kept[old.uid] < old.replicas:
            yield ScaleDeployment(*identity, kept[old.uid])


def _replicas(target: PlacementTarget, mine: Workload | None) -> int:
    """Return the replicas of the Deployment that is wanted.

    Shortage alone never shrinks a Deployment: when a node is lost, or cordoned under running pods, Kubernetes
    finds the pods a place as soon as there is one. Only what is given anew has to have room. A budget does.
    """
    return max(target.replicas, min(target.desired, target.most, mine.replicas if mine else 0))


def _apply(
    case: Case,
    offered: Offers,
    devices: FreeDevices,
    chosen: Candidate,
    replicas: int,
    way: Rollout,
    mine: Workload | None,
) -> tuple[Action, ...]:
    intent = case.intent
    surge = mine is not None and mine.is_rolling
    where = steering(intent.uid, intent.pools, chosen.shape, mine, replicas + surge, offered, devices)
    selectors = offered.selectors(intent.pools)
    nowhere = not where or (intent.pools and not selectors)
    if nowhere and mine is not None and replicas < mine.replicas:  # what cannot come to be holds no quota
        return (ScaleDeployment(mine.owner_uid, mine.namespace, mine.name, mine.uid, replicas),)
    # A Deployment that the API server refused is tried without replicas: that takes no room.
    if nowhere or (replicas == 0 and mine is None and not case.is_refused):
        return ()
    return (
        ApplyDeployment(
            intent.uid,
            chosen.shape,
            replicas,
            where.products,
            model_length(case.facts, intent.max_model_len),
            way.max_unavailable,
            intent.spread,
            selectors,
            where.declared,
        ),
    )


def _verdict(case: Case, target: PlacementTarget, chosen: Candidate, offered: Offers) -> tuple[Reason, str]:
    placed, desired = target.replicas, target.desired
    if placed == desired:
        limit = case.limits.get(chosen.shape)
        if limit is not None and limit.is_probe and limit.replicas <= placed:
            return limit.reason, limit.message
        return Reason.PLACED, _placed(case, target, chosen)
    told = f"{placed} of {desired} replicas placed"
    if target.limit is not None:
        return target.limit.reason, f"{told}; {target.limit.message}{_next_try(case)}"
    if target.waits:
        return Reason.OVER_BUDGET, f"{told}; {target.waits}"
    pools = case.intent.pools
    if pools and not set(pools) & set(offered.pools):
        return Reason.INSUFFICIENT_CAPACITY, f"{told}; there is no GPUPool {' or '.join(pools)}"
    missing = desired - placed
    needs = "needs" if missing == 1 else "need"
    what = f"a free {unit(chosen.shape)} on {chosen.shape.sku}"
    where = f" in {' or '.join(pools)}" if pools else ""
    return (
        Reason.INSUFFICIENT_CAPACITY,
        f"{told}; {missing} more {needs} {what}{where}{offered.left_out_message(case.intent)}",
    )


def _next_try(case: Case) -> str:
    """Say when the first shape is tried again, where all that may be used are in back-off."""
    times = [limit.until if (limit := case.limits.get(c.shape)) else None for c in case.usable]
    known = [until for until in times if until is not None]
    if len(known) < 2 or len(known) < len(times):
        return ""
    first = rfc3339(min(known))
    return f"; all {len(times)} shapes that may be used are in back-off, the next is tried at {first}"


def _placed(case: Case, target: PlacementTarget, chosen: Candidate) -> str:
    text = f"{target.desired} on {chosen.shape.described} at {chosen.price_per_hour:.2f} $/h each"
    if chosen.tpot_ms is not None:
        text += f", predicted {chosen.tpot_ms:.2f} ms per token when idle"
    if case.intent.traffic.requests_per_second:
        one = rate(case.facts, chosen.shape, case.request)
        text += f", good for {target.desired * one:.3g} requests/s in all" if one else ""
    gpu = catalog.gpu(chosen.shape.sku)
    if gpu is not None and gpu.unverified:
        text += f"; the catalog's numbers for {gpu.sku} are not verified"
    return text


def _still_serving(present: tuple[Workload, ...]) -> str:
    shapes = ", ".join(w.shape.described for w in present if w.available > 0)
    return f"; {shapes} goes on serving meanwhile" if shapes else ""
