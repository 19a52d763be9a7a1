"""Place one LLMDeployment: shape, replicas, and which of its Deployments stay (make before break)."""

from dataclasses import dataclass

from tangram import catalog
from tangram.capacity import model_length
from tangram.fleet import (
    Action,
    ApplyDeployment,
    CheckpointFacts,
    Intent,
    Rejection,
    RemoveDeployment,
    Shape,
    Workload,
)
from tangram.planner.candidates import Candidate, Offers, candidates
from tangram.planner.choose import choose, impossible, rejections
from tangram.planner.reasons import Reason
from tangram.planner.rollout import Rollout, rollout, unit
from tangram.planner.room import Room, pool_of


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one LLMDeployment runs, and what is to be done for it."""

    reason: Reason
    message: str
    shape: Shape | None = None
    placed: int = 0
    price_per_hour: float = 0.0
    rejected: tuple[Rejection, ...] = ()
    tpot_bound_ms: float | None = None
    rollout_waits: str = ""
    actions: tuple[Action, ...] = ()


def place(
    intent: Intent,
    facts: CheckpointFacts,
    offered: Offers,
    present: tuple[Workload, ...],
    desired: int,
    room: Room,
) -> Placement:
    """Decide for `intent`, taking what it gets from `room`."""
    judged = candidates(intent, facts, offered, [workload.shape for workload in present])
    free = {c.shape: _free_for(intent, c.shape, present, room) for c in judged}
    chosen = choose(intent, judged, free, present, desired)
    rejected = rejections(judged, chosen, free, desired)
    if chosen is None:
        reason, message = impossible(judged, has_nodes=offered.has_nodes)
        return Placement(reason, message + _still_serving(present), rejected=rejected)
    mine = next((workload for workload in present if workload.shape == chosen.shape), None)
    others = tuple(workload for workload in present if workload.shape != chosen.shape)
    # A move to where the minimum has no room could never end: it is not begun, and takes nothing meanwhile.
    serves_elsewhere = mine is None and any(workload.available for workload in others)
    is_held_back = serves_elsewhere and free[chosen.shape] < intent.min_replicas
    placed = 0 if is_held_back else min(desired, free[chosen.shape])
    holds = placed + room.for_owner(intent.uid, chosen.shape) - free[chosen.shape]
    if not is_held_back:
        room.take(intent.uid, pool_of(chosen.shape), holds)
    replicas = _replicas(placed, desired, mine)
    way = rollout(intent, mine, placed, replicas, holds, room)
    removed = tuple(w for w in others if _may_go(w, mine, others, intent, placed, _usable(w.shape, judged)))
    reason, message = _verdict(chosen, placed, desired)
    kept = ", ".join(str(w.shape) for w in others if w not in removed)
    notes = (
        f"no move begins before there is room for the minimum of {intent.min_replicas}"
        if is_held_back
        else "",
        way.waits,
        f"{kept} stays until enough replicas of {chosen.shape} are available" if kept else "",
    )
    return Placement(
        reason=reason,
        message="; ".join(filter(None, (message, *notes))),
        shape=chosen.shape,
        placed=placed,
        price_per_hour=placed * chosen.price_per_hour,
        rejected=rejected,
        tpot_bound_ms=chosen.tpot_ms,
        rollout_waits=way.waits,
        actions=(
            *_apply(intent, facts, offered, chosen, replicas, way, exists=mine is not None),
            *(RemoveDeployment(intent.uid, w.namespace, w.name, w.uid) for w in removed),
        ),
    )


def _free_for(intent: Intent, shape: Shape, present: tuple[Workload, ...], room: Room) -> int:
    """Units for replicas of `shape`; what its other shapes hold of the same pool is not free yet."""
    others = sum(w.replicas for w in present if w.shape != shape and pool_of(w.shape) == pool_of(shape))
    held = room.held.get((intent.uid, pool_of(shape)), 0)
    return room.for_owner(intent.uid, shape) - min(others, held)


def _usable(shape: Shape, judged: tuple[Candidate, ...]) -> bool:
    return any(c.shape == shape and c.rejection is None for c in judged)


def _replicas(placed: int, desired: int, mine: Workload | None) -> int:
    """Return the replicas of the Deployment that is wanted.

    Shortage alone never shrinks a Deployment: when a node is lost, or cordoned under running pods, Kubernetes
    finds the pods a place as soon as there is one. Only what is given anew has to have room.
    """
    return max(placed, min(desired, mine.replicas if mine else 0))


def _apply(
    intent: Intent,
    facts: CheckpointFacts,
    offered: Offers,
    chosen: Candidate,
    replicas: int,
    way: Rollout,
    *,
    exists: bool,
) -> tuple[ApplyDeployment, ...]:
    products = offered.products.get(chosen.shape.sku, ())
    if not products or (replicas == 0 and not exists):
        return ()
    length = model_length(facts, intent.max_model_len)
    return (ApplyDeployment(intent.uid, chosen.shape, replicas, products, length, way.max_unavailable),)


def _may_go(
    old: Workload,
    new: Workload | None,
    others: tuple[Workload, ...],
    intent: Intent,
    placed: int,
    usable: bool,
) -> bool:
    """Whether a Deployment of another shape can be removed now.

    It can when the new one has enough available replicas: the minimum, and no fewer than serve now, as far as
    they were placed. One that serves nobody and may not be used any more goes at once: it only takes up room.
    """
    if old.available == 0 and not usable:
        return True
    serving = sum(workload.available for workload in others)
    enough = max(intent.min_replicas, min(placed, serving))
    return new is not None and new.settled and new.available >= enough


def _verdict(chosen: Candidate, placed: int, desired: int) -> tuple[Reason, str]:
    if placed == desired:
        bound = f", at best {chosen.tpot_ms:.2f} ms per token" if chosen.tpot_ms is not None else ""
        text = f"{desired} on {chosen.shape} at {chosen.price_per_hour:.2f} $/h each{bound}"
        gpu = catalog.gpu(chosen.shape.sku)
        if gpu is not None and gpu.unverified:
            text += f"; the catalog's numbers for {gpu.sku} are not verified"
        return Reason.PLACED, text
    missing = desired - placed
    needs = "needs" if missing == 1 else "need"
    what = f"a free {unit(chosen.shape)} on {chosen.shape.sku}"
    return (
        Reason.INSUFFICIENT_CAPACITY,
        f"{placed} of {desired} replicas placed; {missing} more {needs} {what}",
    )


def _still_serving(present: tuple[Workload, ...]) -> str:
    shapes = ", ".join(str(w.shape) for w in present if w.available > 0)
    return f"; {shapes} goes on serving meanwhile" if shapes else ""
