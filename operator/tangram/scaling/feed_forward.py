"""How many replicas the forecast load needs, by what one replica carries within the objectives.

What one replica carries is predicted by the capacity model for the present mixture of lengths, times a share
that is corrected live. The share falls below the load at which objectives were missed. It rises to a load at
which they were met, and slowly beyond while half of the error budget is left at a load near the limit. Only
FRESH readings of a steady number of ready replicas count. A miss withdraws only where more load was carried,
or by half a per cent an hour: a constant load keeps a constant number of replicas.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from tangram.fleet import Intent, replicas_for
from tangram.scaling import objective_evidence as evidence
from tangram.scaling.forecast import forecast
from tangram.scaling.load_outlook import LoadOutlook, ReplicaNeed
from tangram.scaling.sample import Sample, Window
from tangram.scaling.state import ScalingMemory, ScalingParams

_COMPARED_EVERY_S = 60.0
_BELOW_MISS = 0.95  # share of the load of a miss that a replica is trusted with
_LEAST_SHARE, _MOST_SHARE = 1e-4, 2.0  # that slow growth reaches
_GROWTH = 0.002  # of the share, by comparison, while most of the error budget is left ...
_NEAR = 0.7  # ... at this part of the limit or more
_BUDGET_LEFT = 0.5
_FADING_PER_S = 0.005 / 3600  # by which the load of a miss rises
_SHRINKS = 0.98  # of the queue a minute ago
_PEAK_S = 600.0  # a queue that was caused longer ago has been served
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
    load = forecast(
        outlook.history,
        rate,
        now=now,
        horizon_s=horizon_s(memory, params, outlook),
        quantile=load_quantile(intent, params),
    )
    replica_rate = outlook.replica_rate * memory.trusted_share
    backlog = (sample.waiting or 0.0) / _DRAIN_S if queued else 0.0
    replicas = max(1, replicas_for(load.upper + backlog, replica_rate)) if load.upper + backlog > 0 else 1
    return ReplicaNeed(replicas, load, replica_rate, backlog)


def load_quantile(intent: Intent, params: ScalingParams) -> float:
    """Return the quantile of the load to be ready for: that of the strictest objective."""
    if params.load_quantile is not None:
        return params.load_quantile
    percentiles = [objective.percentile for objective in (intent.ttft, intent.tpot) if objective]
    return max(percentiles, default=90) / 100


def arrival_rate(sample: Sample, window_s: float) -> float | None:
    """Return the requests per second that arrive. First tokens stand in where the engine counts no arrivals.

    First tokens lag behind arrivals while a queue grows, so its growth would be missing: the backlog is
    added apart.
    """
    if sample.arrived is not None:
        return sample.arrived / window_s
    return None if sample.requests is None else sample.requests / window_s


def removable(memory: ScalingMemory, outlook: LoadOutlook, need: ReplicaNeed) -> int:
    """Return how many replicas may be left by `need`: none is trusted with much more than any has carried."""
    if memory.carried_share is None:
        return need.replicas
    trusted = min(need.replica_rate, _TRUST * memory.carried_share * outlook.replica_rate)
    return max(need.replicas, replicas_for(need.load.upper, trusted))


def with_peak(
    memory: ScalingMemory, params: ScalingParams, sample: Sample, ready: int, now: float
) -> ScalingMemory:
    """Return `memory` with the highest load per ready replica of the last minutes."""
    rate = arrival_rate(sample, params.window_s)
    if rate is None or ready < 1:
        return memory
    expired = not 0 <= now - memory.peak_at < _PEAK_S
    if expired or rate / ready >= memory.peak_rate:
        return replace(memory, peak_rate=rate / ready, peak_at=now)
    return memory


def compared(
    memory: ScalingMemory,
    params: ScalingParams,
    intent: Intent,
    outlook: LoadOutlook,
    sample: Sample,
    windows: Sequence[Window],
    *,
    ready: int,
    queued: bool,
    now: float,
) -> ScalingMemory:
    """Return `memory` after one reading that is FRESH, of `ready` steady replicas.

    `windows`: those in which the number of ready replicas was the present one.
    """
    passed = _COMPARED_EVERY_S if memory.compared_at is None else now - memory.compared_at
    if 0 <= passed < _COMPARED_EVERY_S:
        return memory
    waiting = sample.waiting or 0.0
    shrinks = waiting < _SHRINKS * memory.queue_then
    memory = _faded(replace(memory, compared_at=now, queue_then=waiting), passed)
    rates = [w.requests_per_second for w in windows if w.requests_per_second is not None]
    if not rates or ready < 1:
        return memory
    if queued or evidence.proven_violations(intent, windows, params.min_samples):
        if shrinks:  # the replicas carry more than what arrives: an earlier load causes the miss
            return memory
        return _after_miss(memory, max(memory.peak_rate, max(rates) / ready) / outlook.replica_rate)
    carried = windows[-1]
    enough = (carried.requests or 0) >= params.min_samples
    if not enough or sample.waiting or not evidence.met(intent, carried):
        return memory
    share = (carried.requests_per_second or 0.0) / ready / outlook.replica_rate
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
    if missed is not None and share >= missed:
        missed = None
    trusted = memory.trusted_share
    if comfortable and share >= _NEAR * trusted:
        trusted = max(trusted, min(trusted * (1 + _GROWTH), _MOST_SHARE))
    if missed is not None:
        trusted = min(trusted, _BELOW_MISS * missed)
    return replace(
        memory,
        carried_share=max(memory.carried_share or 0.0, share),
        missed_share=missed,
        trusted_share=max(trusted, share),
    )


def down_window_s(memory: ScalingMemory, params: ScalingParams, outlook: LoadOutlook) -> float:
    """Return the window of recommendations whose maximum bounds a removal."""
    start_s = horizon_s(memory, params, outlook) - _LOOP_S
    return max(params.down_after_s, 2 * start_s) if math.isfinite(start_s) else params.down_after_s
