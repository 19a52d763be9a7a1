"""Which ordered replicas became ready, which are still expected, and which are written off.

A replica is expected until a deadline, a multiple of the start times that were measured. One that is not
ready by then (its pod crash-loops, its node is broken) is written off: it no longer delays the next step, and
further replicas are ordered beside it. If no replica of two orders in a row becomes ready, the cause is the
image or the model rather than a node: then no replica is added before one becomes ready.

Replicas of a shape are late together where none of them was ready, for a window, for as long as an order may
take. One that is ready for a moment between two crashes changes nothing. While a replica of the shape is
ready its nodes work, so another one that is late is a fault of a node, not of the shape.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tangram.fleet import Shape, StartOutcome, Workload
from tangram.scaling.state import ScalingParams, SupplyMemory

_LATE_AFTER_STARTS = 3  # deadline, in measured start times
_LATEST_S = 3600.0
_MOST_FAILED_ORDERS = 2
_SMOOTHING = 0.5  # weight of the newest start time


@dataclass(frozen=True, slots=True)
class ShapeStart:
    """The replicas of one LLMDeployment on one shape, of one revision."""

    shape: Shape
    generation: int  # that they are of
    unready_since: float  # no replica has been ready for a window since
    ready_since: float | None = None  # a replica is ready without a break since
    is_late: bool | None = None  # None: still starting; False: a replica has been ready for a window


def observe(
    memory: SupplyMemory,
    params: ScalingParams,
    *,
    held: int,
    existing: int,
    ready: int,
    now: float,
    start_budget_s: float = 0.0,
) -> SupplyMemory:
    """Return `memory` after `ready` of the `held` ordered replicas were observed.

    `existing` is how many replicas the Deployments have: those that wait for devices, or fetch their
    checkpoint, are not late. None is late sooner than `start_budget_s` after its order.
    """
    memory = _stability(memory, params, ready, now)
    settled = memory.settled_ready
    if ready >= held and settled >= held:
        memory = replace(memory, written_off=0)
    if memory.failed_orders and settled >= held - memory.written_off + 1:
        memory = replace(memory, failed_orders=0)
    # A smaller order ends replicas that are not ready before others: fewer are late then.
    missing = max(0, held - min(ready, settled))
    memory = replace(memory, written_off=min(memory.written_off, missing))
    memory = _completeness(memory, params, held, existing, ready, now)
    if memory.incomplete_since is None and memory.ordered_from is not None:
        return _succeeded(memory)
    expected_s = max(deadline_s(memory, params), start_budget_s)
    if is_late(memory, expected_s, now) and ready + memory.written_off < held:
        return _failed(memory, held - ready, now)
    return memory


def deadline_s(memory: SupplyMemory, params: ScalingParams) -> float:
    """Return how long after an order its replicas are expected, in seconds."""
    expected = memory.start_s if memory.start_s is not None else params.start_s
    return min(max(_LATE_AFTER_STARTS * expected, 2 * params.window_s), _LATEST_S)


def stable_s(memory: SupplyMemory, now: float) -> float:
    """Return for how long the number of ready replicas has been what it is, in seconds."""
    return 0.0 if memory.stable_since is None else now - memory.stable_since


def is_late(memory: SupplyMemory, expected_s: float, now: float) -> bool:
    """Return whether replicas are missing for longer than they are expected to."""
    since = memory.incomplete_since
    return since is not None and now - since >= expected_s


def nothing_starts(memory: SupplyMemory) -> bool:
    """Return whether so many orders in a row failed that another one would fail too."""
    return memory.failed_orders >= _MOST_FAILED_ORDERS


def after_order(memory: SupplyMemory, now: float) -> SupplyMemory:
    """Return `memory` after an order upwards."""
    return replace(
        memory,
        grown_at=now,
        complete_since=None,
        incomplete_since=now,
        ordered_from=memory.settled_ready,
    )


def forget_orders(memory: SupplyMemory) -> SupplyMemory:
    """Return `memory` without orders and late replicas: the replicas are of another shape now."""
    return replace(
        memory,
        grown_at=None,
        complete_since=None,
        incomplete_since=None,
        ordered_from=None,
        written_off=0,
        failed_orders=0,
    )


def observe_shapes(
    starts: Iterable[ShapeStart],
    workloads: Iterable[Workload],
    memory: SupplyMemory,
    params: ScalingParams,
    now: float,
) -> tuple[ShapeStart, ...]:
    """Return the starts after the Deployments of an LLMDeployment were observed, by shape.

    Timers begin with the process, and anew where the clock was set back.
    """
    before = {(start.shape, start.generation): start for start in starts}
    longest_s = max(deadline_s(memory, params), deadline_s(SupplyMemory(), params))

    def after(workload: Workload) -> ShapeStart:
        previous = before.get((workload.shape, workload.owner_generation))
        return _start_on_shape(previous, workload, longest_s, params, now)

    return tuple(after(w) for w in sorted(workloads, key=lambda w: (w.shape, w.uid)) if w.replicas)


def start_outcomes(uid: str, starts: Iterable[ShapeStart]) -> tuple[StartOutcome, ...]:
    """Return what is known of the shapes of the LLMDeployment `uid`; nothing of those still starting."""
    return tuple(
        StartOutcome(uid, start.shape, start.generation, start.is_late)
        for start in starts
        if start.is_late is not None
    )


def since(started: float | None, now: float) -> float:
    """Return when a state began; a clock that was set back restarts it instead of making it last longer."""
    return now if started is None or started > now else started


def _stability(memory: SupplyMemory, params: ScalingParams, ready: int, now: float) -> SupplyMemory:
    if memory.ready is None:  # assume that it was so for a window
        return replace(memory, ready=ready, stable_since=now - params.window_s, settled_ready=ready)
    if memory.ready != ready:
        return replace(memory, ready=ready, stable_since=now)
    stable_since = since(memory.stable_since, now)
    settled = ready if now - stable_since >= params.window_s else memory.settled_ready
    return replace(memory, stable_since=stable_since, settled_ready=settled)


def _completeness(
    memory: SupplyMemory, params: ScalingParams, held: int, existing: int, ready: int, now: float
) -> SupplyMemory:
    """Update the timers. A pod that is ready for a moment between two crashes does not end the wait."""
    if ready + memory.written_off < held:
        waiting = since(memory.incomplete_since, now) if existing >= held else now
        return replace(memory, complete_since=None, incomplete_since=waiting)
    complete_since = since(memory.complete_since, now)
    lasted = now - complete_since >= params.window_s
    return replace(
        memory,
        complete_since=complete_since,
        incomplete_since=None if lasted or memory.incomplete_since is None else memory.incomplete_since,
    )


def _succeeded(memory: SupplyMemory) -> SupplyMemory:
    start_s = memory.start_s
    if memory.grown_at is not None and memory.complete_since is not None:
        measured = max(0.0, memory.complete_since - memory.grown_at)
        start_s = measured if start_s is None else start_s + _SMOOTHING * (measured - start_s)
    return replace(memory, ordered_from=None, failed_orders=0, start_s=start_s)


def _failed(memory: SupplyMemory, missing: int, now: float) -> SupplyMemory:
    """Write off the missing replicas. An order of which some replicas became ready did not fail."""
    failed = memory.failed_orders
    if memory.ordered_from is not None:
        failed = failed + 1 if memory.settled_ready <= memory.ordered_from else 0
    return replace(
        memory,
        written_off=max(memory.written_off, missing),
        complete_since=now,
        ordered_from=None,
        failed_orders=failed,
    )


def _start_on_shape(
    before: ShapeStart | None, workload: Workload, deadline_s: float, params: ScalingParams, now: float
) -> ShapeStart:
    shape, generation = workload.shape, workload.owner_generation
    unready_since = since(before.unready_since if before else None, now)
    if not _has_node(workload) or (not workload.ready and fetching(workload) >= workload.replicas):
        return ShapeStart(shape, generation, now)
    if not workload.ready:
        if not workload.message:  # it starts: pods that crash do not get the whole budget
            deadline_s = max(deadline_s, workload.start_budget_s)
        return ShapeStart(shape, generation, unready_since, is_late=now - unready_since >= deadline_s or None)
    if not workload.settled or workload.is_rolling:  # those that are ready may be of another revision
        return ShapeStart(shape, generation, now)
    ready_since = since(before.ready_since if before else None, now)
    if now - ready_since >= params.window_s:
        return ShapeStart(shape, generation, now, ready_since, is_late=False)
    return ShapeStart(shape, generation, unready_since, ready_since, before.is_late if before else None)


def fetching(workload: Workload) -> int:
    """Return the replicas that fetch their checkpoint: how long it takes is no fault of a shape."""
    return 0 if workload.fetch is None else min(workload.fetch.waiting, workload.replicas)


def _has_node(workload: Workload) -> bool:
    """Whether a pod has a node, and with it a device."""
    unscheduled = workload.unscheduled.pods if workload.unscheduled is not None else 0
    return workload.total > unscheduled
