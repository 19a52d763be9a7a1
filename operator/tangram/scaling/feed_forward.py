"""How many replicas the forecast load needs, by what one replica carries within the objectives.

What one replica carries is predicted by the capacity model for the present mixture of lengths, times a share
that is corrected live. The share falls below the load at which objectives were missed. It rises to a load at
which they were met, and slowly beyond while half of the error budget is left at a load near the limit. Only
FRESH readings of a steady number of ready replicas count. A miss withdraws only where more load was carried,
or by half a per cent an hour: a constant load keeps a constant number of replicas.
"""

import math
from dataclasses import replace

from tangram.fleet import Intent, replicas_for
from tangram.scaling import limits
from tangram.scaling import objective_evidence as evidence
from tangram.scaling.outlook.forecast import Forecast, forecast
from tangram.scaling.outlook.load_outlook import LoadOutlook, ReplicaNeed
from tangram.scaling.outlook.replica_capacity import ReplicaCapacity
from tangram.scaling.sample import Sample
from tangram.scaling.state import ScalingMemory, ScalingParams

_COMPARED_EVERY_S = 60.0
_BELOW_MISS = 0.95  # share of the load of a miss that a replica is trusted with
_CONTRADICTS = 1.1  # times the load of a miss, from which on a load that is carried withdraws the miss
_LEAST_SHARE, _MOST_SHARE = 1e-4, 2.0  # that slow growth reaches
_GROWTH = 0.002  # of the share, by comparison, while most of the error budget is left ...
_NEAR = 0.7  # ... at this part of the limit or more
_BUDGET_LEFT = 0.5
_FADING_PER_S = 0.005 / 3600  # by which the load of a miss rises
_SHRINKS = 0.98  # of the queue a minute ago
# Into a load that no replica has carried yet, each removal goes by at most this factor.
_TRUST = 1.5
_DRAIN_S = 60.0  # within which a queue is to be served beside the arrivals
_LOOP_S = 30.0  # from a change of the load to an order: half a window of rates and one round


def horizon_s(memory: ScalingMemory, params: ScalingParams, outlook: LoadOutlook) -> float:
    """Return how far ahead an order of now takes effect, in seconds."""
    start_s = outlook.start_s if outlook.start_s is not None else memory.start_s
    return (params.start_s if start_s is None else start_s) + _LOOP_S


def needed(
    memory: ScalingMemory,
    params: ScalingParams,
    intent: Intent,
    outlook: LoadOutlook,
    sample: Sample,
    *,
    queued: bool,
    now: float,
) -> ReplicaNeed | None:
    """Return the replicas for the load at the horizon; None while no rate is known."""
    rate = arrival_rate(sample, params.window_s)
    if rate is None:
        return None
    load = forecast(outlook.history, rate, now=now, horizon_s=horizon_s(memory, params, outlook))
    capacity = outlook.capacity.scaled(memory.trusted_share)
    backlog = (sample.waiting or 0.0) / _DRAIN_S if queued else 0.0
    budget = error_budget(intent, params)
    replicas = _fewest(load, capacity, backlog, budget, intent.max_replicas)
    return ReplicaNeed(
        replicas,
        load,
        capacity.rate_at(_percentile(intent)),
        expected_misses(load, capacity, backlog, replicas),
        backlog,
    )


def expected_misses(load: Forecast, capacity: ReplicaCapacity, backlog: float, replicas: int) -> float:
    """Return the share of requests that miss an objective with so many replicas, over all forecast loads."""
    arriving = load.mean_of(lambda rate: rate)
    if arriving + backlog <= 0:
        return 0.0
    missed = load.mean_of(lambda rate: rate * capacity.missed_share((rate + backlog) / replicas))
    return missed / arriving if arriving > 0 else capacity.missed_share(backlog / replicas)


def _fewest(load: Forecast, capacity: ReplicaCapacity, backlog: float, budget: float, most: int) -> int:
    """Return the fewest replicas whose expected misses the error budget allows, at most one beyond `most`."""
    low, high = 1, max(1, most) + 1
    while low < high:
        middle = (low + high) // 2
        if expected_misses(load, capacity, backlog, middle) <= budget:
            high = middle
        else:
            low = middle + 1
    return low


def error_budget(intent: Intent, params: ScalingParams) -> float:
    """Return the share of requests that may miss an objective."""
    if params.error_budget is not None:
        return params.error_budget
    return 1 - _percentile(intent) / 100


def _percentile(intent: Intent) -> float:
    return max((o.percentile for o in (intent.ttft, intent.tpot) if o), default=90)


def arrival_rate(sample: Sample, window_s: float) -> float | None:
    """Return the requests per second that arrive. First tokens stand in where the engine counts no arrivals.

    First tokens lag behind arrivals while a queue grows, so its growth would be missing: the backlog is
    added apart.
    """
    if sample.arrived is not None:
        return sample.arrived / window_s
    return None if sample.requests is None else sample.requests / window_s


def removable(memory: ScalingMemory, intent: Intent, outlook: LoadOutlook, need: ReplicaNeed) -> int:
    """Return how many replicas may be left by `need`: none is trusted with much more than any has carried."""
    if memory.carried_share is None:
        return need.replicas
    trusted = _TRUST * memory.carried_share * outlook.capacity.rate_at(_percentile(intent))
    return max(need.replicas, replicas_for(need.load.expected, trusted)) if trusted > 0 else need.replicas


def compared(
    memory: ScalingMemory,
    params: ScalingParams,
    intent: Intent,
    outlook: LoadOutlook,
    sample: Sample,
    *,
    ready: int,
    lasted: float,
    queued: bool,
    now: float,
) -> ScalingMemory:
    """Return `memory` after one reading that is FRESH, of replicas whose number has `lasted` for seconds."""
    passed = _COMPARED_EVERY_S if memory.compared_at is None else now - memory.compared_at
    if 0 <= passed < _COMPARED_EVERY_S:
        return memory
    waiting = sample.waiting or 0.0
    shrinks = waiting < _SHRINKS * memory.queue_then
    memory = _faded(replace(memory, compared_at=now, queue_then=waiting), passed)
    predicted = outlook.capacity.rate_at(_percentile(intent))
    if ready < 1 or predicted <= 0:
        return memory
    windows = evidence.usable(sample, params.window_s, lasted)
    missed = windows[0] if queued else evidence.proof_of_violation(intent, windows, params.min_samples)
    if missed is not None:
        if shrinks:  # the replicas carry more than what arrives: an earlier load causes the miss
            return memory
        return _after_miss(memory, (missed.requests_per_second or 0.0) / ready / predicted)
    carried = limits.carried_window(sample, params, lasted)
    if carried is None or sample.waiting or not evidence.met(intent, carried):
        return memory
    share = (carried.requests_per_second or 0.0) / ready / predicted
    return _after_success(memory, share, comfortable=evidence.met(intent, carried, _BUDGET_LEFT))


def _faded(memory: ScalingMemory, seconds: float) -> ScalingMemory:
    if memory.missed_share is None or not 0 < seconds < 1e7:
        return memory
    return replace(memory, missed_share=memory.missed_share * (1 + _FADING_PER_S * seconds))


def _after_miss(memory: ScalingMemory, share: float) -> ScalingMemory:
    share = max(share, _LEAST_SHARE)
    below = _BELOW_MISS * share
    return replace(
        memory,
        missed_share=share if memory.missed_share is None else min(memory.missed_share, share),
        carried_share=None if memory.carried_share is None else min(memory.carried_share, below),
        trusted_share=max(_LEAST_SHARE, min(memory.trusted_share, below)),
    )


def _after_success(memory: ScalingMemory, share: float, *, comfortable: bool) -> ScalingMemory:
    missed = memory.missed_share
    if missed is not None and share >= _CONTRADICTS * missed:
        missed = None
    trusted = max(memory.trusted_share, min(share, _MOST_SHARE))
    if comfortable and share >= _NEAR * trusted:
        trusted = max(trusted, min(trusted * (1 + _GROWTH), _MOST_SHARE))
    if missed is not None:
        trusted = min(trusted, _BELOW_MISS * missed)
    return replace(
        memory,
        carried_share=max(memory.carried_share or 0.0, share),
        missed_share=missed,
        trusted_share=trusted,
    )


def down_window_s(memory: ScalingMemory, params: ScalingParams, outlook: LoadOutlook) -> float:
    """Return the window of recommendations whose maximum bounds a removal."""
    start_s = horizon_s(memory, params, outlook) - _LOOP_S
    return max(params.down_after_s, 2 * start_s) if math.isfinite(start_s) else params.down_after_s
