"""Which ordered replicas became ready, which are still expected, and which are written off.

A replica is expected until a deadline, a multiple of the start times that were measured. One that is not
ready by then (its pod crash-loops, its node is broken) is written off: it no longer delays the next step, and
further replicas are ordered beside it. If no replica of two orders in a row becomes ready, the cause is the
image or the model rather than a node: then no replica is added before one becomes ready.
"""

from dataclasses import replace

from tangram.scaling.state import ScalingMemory, ScalingParams

_LATE_AFTER_STARTS = 3  # deadline, in measured start times
_LATEST_S = 3600.0
_MOST_FAILED_ORDERS = 2
_SMOOTHING = 0.5  # weight of the newest start time


def observe(
    memory: ScalingMemory, params: ScalingParams, *, held: int, existing: int, ready: int, now: float
) -> ScalingMemory:
    """Return `memory` after `ready` of the `held` ordered replicas were observed.

    `existing` is how many replicas the Deployments have: those that wait for devices are not late.
    """
    memory = _stability(memory, params, ready, now)
    settled = memory.settled_ready
    if ready >= held and settled >= held:
        memory = replace(memory, written_off=0)
    if memory.failed_orders and settled >= held - memory.written_off + 1:
        memory = replace(memory, failed_orders=0)
    memory = _completeness(memory, params, held, existing, ready, now)
    if memory.incomplete_since is None and memory.ordered_from is not None:
        return _succeeded(memory)
    if is_late(memory, params, now) and ready + memory.written_off < held:
        return _failed(memory, held - ready, now)
    return memory


def deadline_s(memory: ScalingMemory, params: ScalingParams) -> float:
    """Return how long after an order its replicas are expected, in seconds."""
    expected = memory.start_s if memory.start_s is not None else params.start_s
    return min(max(_LATE_AFTER_STARTS * expected, 2 * params.window_s), _LATEST_S)


def is_late(memory: ScalingMemory, params: ScalingParams, now: float) -> bool:
    """Return whether replicas are missing for longer than the deadline."""
    since = memory.incomplete_since
    return since is not None and now - since >= deadline_s(memory, params)


def nothing_starts(memory: ScalingMemory) -> bool:
    """Return whether so many orders in a row failed that another one would fail too."""
    return memory.failed_orders >= _MOST_FAILED_ORDERS


def after_order(memory: ScalingMemory, now: float) -> ScalingMemory:
    """Return `memory` after an order upwards."""
    return replace(
        memory,
        grown_at=now,
        complete_since=None,
        incomplete_since=now,
        queued_since=None,
        ordered_from=memory.settled_ready,
    )


def since(started: float | None, now: float) -> float:
    """Return when a state began; a clock that was set back restarts it instead of making it last longer."""
    return now if started is None or started > now else started


def _stability(memory: ScalingMemory, params: ScalingParams, ready: int, now: float) -> ScalingMemory:
    if memory.ready is None:  # assume that it was so for a window
        return replace(memory, ready=ready, stable_since=now - params.window_s, settled_ready=ready)
    if memory.ready != ready:
        return replace(memory, ready=ready, stable_since=now)
    stable_since = since(memory.stable_since, now)
    settled = ready if now - stable_since >= params.window_s else memory.settled_ready
    return replace(memory, stable_since=stable_since, settled_ready=settled)


def _completeness(
    memory: ScalingMemory, params: ScalingParams, held: int, existing: int, ready: int, now: float
) -> ScalingMemory:
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


def _succeeded(memory: ScalingMemory) -> ScalingMemory:
    start_s = memory.start_s
    if memory.grown_at is not None and memory.complete_since is not None:
        measured = max(0.0, memory.complete_since - memory.grown_at)
        start_s = measured if start_s is None else start_s + _SMOOTHING * (measured - start_s)
    return replace(memory, ordered_from=None, failed_orders=0, start_s=start_s)


def _failed(memory: ScalingMemory, missing: int, now: float) -> ScalingMemory:
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
