"""The live correction of the predicted capacity, by the misses that it predicts and those that happen.

At a load per replica the capacity predicts the share of requests that misses an objective. Where another
share is measured, and chance does not explain it, a replica carries another share of what was predicted: the
one that would explain the measurement. Only FRESH readings of a steady number of ready replicas under a
steady load count: of a burst and the queue behind it, the mean load of a window explains nothing.

A share that misses have refuted is not reached again until a higher load has been carried (or, by half a per
cent an hour, after days): a constant load keeps a constant number of replicas.
"""

import math
from dataclasses import replace

from tangram.fleet import Intent
from tangram.scaling import limits
from tangram.scaling import objective_evidence as evidence
from tangram.scaling.outlook.load_outlook import LoadOutlook
from tangram.scaling.outlook.replica_capacity import ReplicaCapacity
from tangram.scaling.sample import Sample, Window
from tangram.scaling.state import ScalingMemory, ScalingParams

LEAST_SHARE, MOST_SHARE = 1e-4, 2.0
_EVERY_S = 60.0
_DOWN, _UP = 0.5, 0.1  # weight of one measurement, in the logarithm of the share
_CHANCE = 0.002  # probability below which chance does not explain a deviation
_CORRELATED = 4.0  # requests of one burst miss together: so many count as one
_MOST_MISSED = 0.9  # share beyond which more misses prove nothing more
_LEAST_LOAD = 0.3  # of the limit, below which misses are not those of the load
_REFUTED_MARGIN = 1.02
_BELOW_MISS = 0.95  # share of the load of a miss that a replica is trusted with
_GROWTH, _NEAR, _BUDGET_LEFT = 0.001, 0.7, 0.5  # by comparison, at this part of the limit, with so much left
_FADING_PER_S = 0.005 / 3600
_STEADY = 1.25  # highest rate of a minute over the mean of the window
_STEADY_BINS = 5  # minutes after which a burst and its queue are over
_SHRINKS = 0.98  # of the queue a minute ago


def corrected(
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
    passed = _EVERY_S if memory.compared_at is None else now - memory.compared_at
    if 0 <= passed < _EVERY_S:
        return memory
    waiting = sample.waiting or 0.0
    shrinks = waiting < _SHRINKS * memory.queue_then
    memory = _faded(replace(memory, compared_at=now, queue_then=waiting), passed)
    # While a queue shrinks, an earlier load causes the misses.
    if ready < 1 or outlook.capacity.rates[0][1] <= 0 or (shrinks and waiting):
        return memory
    if queued:
        return _after_queue(memory, outlook, sample.windows(params.window_s)[0], ready)
    windows = [w for w in evidence.usable(sample, params.window_s, lasted) if _is_steady(outlook, w)]
    for window in windows:
        if (window.requests or 0) >= params.min_samples:
            lowered = _after_misses(memory, intent, outlook.capacity, window, ready)
            if lowered is not None:
                return lowered
    carried = limits.carried_window(sample, params, lasted)
    if carried is None or carried not in windows:
        return memory
    return _raised(memory, intent, outlook.capacity, carried, ready)


def refuted(memory: ScalingMemory, outlook: LoadOutlook, rate: float) -> ScalingMemory:
    """Return `memory` after objectives were missed at `rate` requests per second per replica, which it was
    trusted with. The next fall of the load must not lead to the same number of replicas again.
    """
    predicted = outlook.capacity.rates[0][1]
    load = rate / predicted if predicted > 0 else 0.0
    if not 0 < load < memory.trusted_share:
        return memory
    return _distrusted(memory, max(LEAST_SHARE, _BELOW_MISS * load), load)


def _is_steady(outlook: LoadOutlook, window: Window) -> bool:
    """Whether no minute of the window, or just before it, had much more load than the mean."""
    history = outlook.history
    bins = history.rates[-1 - max(_STEADY_BINS, math.ceil(window.seconds / history.step_s)) :]
    rates = [rate for rate in bins if rate is not None]
    return bool(rates) and max(rates) <= _STEADY * sum(rates) / len(rates)


def _after_queue(memory: ScalingMemory, outlook: LoadOutlook, window: Window, ready: int) -> ScalingMemory:
    """Return `memory` after a lasting queue: its replicas carry what gets first tokens, and no more."""
    rate = (window.requests_per_second or 0.0) / ready
    if outlook.capacity.scaled(memory.trusted_share).missed_share(rate) >= _MOST_MISSED:
        return memory  # as predicted
    return _lowered(memory, outlook.capacity, rate, _MOST_MISSED)


def _after_misses(
    memory: ScalingMemory, intent: Intent, capacity: ReplicaCapacity, window: Window, ready: int
) -> ScalingMemory | None:
    """Return `memory` with a lower share if more requests missed than predicted, else None."""
    missed, rate = _missed(intent, window), (window.requests_per_second or 0.0) / ready
    trusted = capacity.scaled(memory.trusted_share)
    if missed is None or rate < _LEAST_LOAD * trusted.rates[0][1]:
        return None  # some requests miss at any load
    budget = 1 - intent.objectives.strictest_percentile / 100
    if not _is_more(missed, max(budget, trusted.missed_share(rate)), window.requests or 0.0):
        return None
    return _lowered(memory, capacity, rate, missed)


def _missed(intent: Intent, window: Window) -> float | None:
    """Return the share of requests that missed the objective that was missed most, None if one is unknown."""
    shares = []
    if intent.ttft:
        shares.append(window.ttft_attainment)
    if intent.tpot:
        shares.append(window.tpot_attainment)
    missed = [1 - share for share in shares if share is not None]
    return max(missed) if missed and len(missed) == len(shares) else None


def _is_more(missed: float, expected: float, requests: float) -> bool:
    """Whether so many misses among `requests` are no chance if `expected` is the share."""
    if missed <= expected or expected >= _MOST_MISSED:
        return False
    independent = requests / _CORRELATED
    return independent * evidence.divergence(1 - missed, 1 - expected) >= math.log(1 / _CHANCE)


def _lowered(memory: ScalingMemory, capacity: ReplicaCapacity, rate: float, missed: float) -> ScalingMemory:
    load = capacity.load_at(min(missed, _MOST_MISSED))
    share = max(LEAST_SHARE, rate / load) if load > 0 else LEAST_SHARE
    if share >= memory.trusted_share:
        return memory
    trusted = memory.trusted_share * (share / memory.trusted_share) ** _DOWN
    return _distrusted(memory, trusted, rate / capacity.rates[0][1])


def _distrusted(memory: ScalingMemory, trusted: float, load: float) -> ScalingMemory:
    """Return `memory` with a lower share, which misses at `load` (over the predicted one) leave."""
    return replace(memory, trusted_share=trusted, most_share=_REFUTED_MARGIN * trusted, refuted_load=load)


def _raised(
    memory: ScalingMemory, intent: Intent, capacity: ReplicaCapacity, window: Window, ready: int
) -> ScalingMemory:
    """Return `memory` with a higher share if fewer requests missed than predicted."""
    missed, rate = _missed(intent, window), (window.requests_per_second or 0.0) / ready
    if missed is None or rate <= 0:
        return memory
    # No miss among so many requests is compatible with a share of up to about three of them.
    most = max(missed, 3 * _CORRELATED / max(window.requests or 0.0, 1.0))
    if most >= _MOST_MISSED:
        return memory
    load, predicted = capacity.load_at(most), capacity.rates[0][1]
    if rate / predicted > _REFUTED_MARGIN * memory.refuted_load:
        memory = replace(memory, most_share=None)
    limit = MOST_SHARE if memory.most_share is None else min(MOST_SHARE, memory.most_share)
    share = min(limit, rate / load) if load > 0 else limit
    trusted = memory.trusted_share
    if share > trusted:
        trusted *= (share / trusted) ** _UP
    elif rate >= _NEAR * trusted * predicted and evidence.met(intent, window, _BUDGET_LEFT):
        trusted = min(trusted * (1 + _GROWTH), limit)
    return replace(memory, trusted_share=max(trusted, memory.trusted_share))


def _faded(memory: ScalingMemory, seconds: float) -> ScalingMemory:
    if memory.most_share is None or not 0 < seconds < 1e7:
        return memory
    return replace(memory, most_share=memory.most_share * (1 + _FADING_PER_S * seconds))
