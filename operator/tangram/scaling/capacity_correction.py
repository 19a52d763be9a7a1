"""The live correction of the predicted capacity, by the misses that it predicts and those that happen.

Three numbers make the prediction explain the requests and misses by load (`LoadMisses`) best: the share of
the predicted load that a replica really carries, how much the load varies within a minute, which the model
does not see (`miss_curve`), and the share of requests that miss at any load, because their prompts are too
long: these are no reason for a replica. All three follow the requests of hours: no single burst decides.

Misses count at the load of the last two minutes, or of the last one where it has doubled: a burst that begins
would count at half of its load, and teach that a replica carries next to nothing. The load is that of the
replicas that were ready in this time: one that is ready at its end served none of the requests that missed.
Misses behind a queue count at the highest load since it began, which caused them, to the minute that begins
with one; not at all where it began while nothing was read, or on replicas of another shape: that load is not
known. Nor is the load of a minute in which a burst and a queue begin. Only FRESH readings count.
"""

import math
from dataclasses import replace
from itertools import product

from tangram.fleet import Objectives
from tangram.scaling.outlook.load_misses import LoadMisses, MissedRequests
from tangram.scaling.outlook.load_outlook import LoadOutlook
from tangram.scaling.outlook.miss_curve import MOST_SPREAD
from tangram.scaling.outlook.replica_capacity import AS_PREDICTED, CapacityCorrection, ReplicaCapacity
from tangram.scaling.sample import Sample, Window
from tangram.scaling.state import CapacityMemory, ScalingParams

LEAST_SHARE, MOST_SHARE = 1e-4, 2.0
_EVERY_S = 60.0
_MINUTES = 2  # whose mean load misses count at: a request may have arrived in the one before
_BURST = 2.0  # times the load of the minute before, from which on a minute counts alone
_GAP = 2.0  # times the time between two readings, after which a queue is of a load that is not known
_CORRELATED = 4.0  # requests of one burst miss together: so many count as one
_ROUNDING = 1e-6  # of log-likelihoods
_COST = 1 / 0.35  # in nats, of numbers that differ from those before any request: see `distance`
# Shares and spreads that are tried: neighbours of the present ones, because the two depend on each other, and
# far ones: the best may be far away, and worse ones may lie between.
_SHARE_STEPS = (0.9, 0.98, 1.0, 1.02, 1.1)
_SPREAD_STEPS = (-0.1, 0.0, 0.1)
_FAR = (
    *product((1e-4, 3e-4, 0.001, 0.003, 0.01, 0.03, 0.1), (0.0, 0.3, 0.9)),
    *product((0.2, 0.3, 0.45, 0.65, 0.9, 1.3, 2.0), (0.0, 0.2, 0.4, 0.6, 0.9)),
)
# So many requests at the lowest loads show what misses at any load, less what chance makes of their misses,
# if as many came at so many times their load: at one load alone, overload would look the same. So it does at
# any load where the model is wrong by far: more misses than these are no property of requests.
_AT_LOW_LOAD, _DEVIATIONS = 400.0, 1.0
_HIGHER, _MOST_UNAVOIDABLE, _MORE = 1.5, 0.1, 4.0


def corrected(
    memory: CapacityMemory,
    params: ScalingParams,
    outlook: LoadOutlook,
    sample: Sample,
    rate: float | None,
    *,
    objectives: Objectives,
    reachable: Objectives,
    ready: int,
    now: float,
) -> CapacityMemory:
    """Return `memory` after one FRESH reading, of `ready` replicas at which `rate` requests/s arrive.

    The prediction is of `objectives`. Misses of those that are `reachable` count.
    """
    reference = outlook.capacity.reference_percentile(objectives.strictest_percentile)
    memory = _comparable(memory, objectives, reference)
    every_s = min(_EVERY_S, params.window_s)  # a shorter window shows no requests of the time before it
    if memory.compared_at is None:  # the window began before the first request: its rate is too low
        return replace(memory, compared_at=now)
    passed = now - memory.compared_at
    memory = _with_round(memory, sample, ready, now, every_s)
    predicted = outlook.capacity.rate_at(reference)
    if 0 <= passed < every_s or not memory.serving or rate is None or predicted <= 0:
        return memory
    if passed > _GAP * every_s:
        memory = replace(memory, loads=(), queued_load=math.inf)
    served_by = sum(count for _, count in memory.serving) / len(memory.serving)
    loads = (*memory.loads[1 - _MINUTES :], rate / served_by / predicted)
    memory = replace(memory, loads=loads, load_misses=memory.load_misses.faded(passed))
    memory = _counted(memory, params, reachable, sample, every_s)
    memory = replace(memory, compared_at=now, is_queued=_waits(sample, ready))
    return _fitted(memory, outlook.capacity, predicted)


def _with_round(
    memory: CapacityMemory, sample: Sample, ready: int, now: float, every_s: float
) -> CapacityMemory:
    """Return `memory` with the replicas that serve in this round, and whether requests wait."""
    rounds = (*memory.serving, (now, ready))
    serving = tuple((at, count) for at, count in rounds if 0 <= now - at < every_s and count)
    return replace(memory, serving=serving, is_queued=memory.is_queued or _waits(sample, ready))


def _waits(sample: Sample, ready: int) -> bool:
    return (sample.waiting or 0.0) >= max(1, ready)


def _counted(
    memory: CapacityMemory, params: ScalingParams, reachable: Objectives, sample: Sample, every_s: float
) -> CapacityMemory:
    """Return `memory` with the requests and misses of the last `every_s` seconds, at the load that caused
    them.
    """
    is_burst = memory.loads[-1] > _BURST * memory.loads[0]
    caused_by = memory.loads[-1] if is_burst else sum(memory.loads) / len(memory.loads)
    if memory.is_queued:
        caused_by = max(caused_by, memory.queued_load)  # the queue is that of an earlier load
    load_misses, missed = memory.load_misses, memory.missed
    window = sample.windows(params.window_s)[0]
    shares = _missed_shares(reachable, window)
    if shares and window.requests:
        requests = every_s / params.window_s * window.requests
        missed = missed.counted(requests, min(1.0, sum(shares)), every_s)
        if math.isfinite(caused_by) and not (is_burst and memory.is_queued):
            load_misses = load_misses.counted(caused_by, requests, max(shares))
    return replace(memory, queued_load=caused_by, load_misses=load_misses, missed=missed)


def interrupted(memory: CapacityMemory) -> CapacityMemory:
    """Return `memory` without the loads before: requests that wait have waited for a load that is not known,
    or for other replicas.
    """
    return replace(memory, loads=(), queued_load=math.inf, serving=(), is_queued=False)


def _comparable(memory: CapacityMemory, objectives: Objectives, reference: float) -> CapacityMemory:
    """Return `memory` without counts that are not to be compared with the present prediction: misses of other
    objectives, after which the correction begins anew, or loads in other units.
    """
    if (memory.corrected_for, memory.corrected_at) == (objectives, reference):
        return memory
    if memory.corrected_for not in (None, objectives):
        memory = replace(memory, correction=AS_PREDICTED, missed=MissedRequests())
    if memory.corrected_at is not None:
        memory = replace(
            memory,
            prior=memory.correction,
            load_misses=LoadMisses(),
            loads=(),
            queued_load=0.0,
        )
    return replace(memory, corrected_for=objectives, corrected_at=reference)


def _missed_shares(objectives: Objectives, window: Window) -> list[float]:
    """Return the share of requests that missed each objective; none if one is unknown."""
    shares = []
    if objectives.ttft:
        shares.append(window.ttft_attainment)
    if objectives.tpot:
        shares.append(window.tpot_attainment)
    missed = [1 - share for share in shares if share is not None]
    return missed if len(missed) == len(shares) else []


def _fitted(memory: CapacityMemory, capacity: ReplicaCapacity, predicted: float) -> CapacityMemory:
    """Return `memory` with the most plausible of the corrections that are tried: one step of a search.

    Loads are counted in units of `predicted`, requests per second.
    """

    counts = memory.load_misses.occupied()

    def plausibility(correction: CapacityCorrection, least: float = -math.inf) -> float:
        """Return any number below `least` where it is below that."""
        fitted, cost = capacity.corrected(correction), _COST * correction.distance(memory.prior)
        likelihood = counts.log_likelihood(
            lambda load: fitted.missed_share(load * predicted), _CORRELATED * (least + cost) - _ROUNDING
        )
        return likelihood / _CORRELATED - cost

    share, spread, _ = memory.correction
    shares = {min(max(share * step, LEAST_SHARE), MOST_SHARE) for step in _SHARE_STEPS}
    spreads = {min(max(round(spread + step, 1), 0.0), MOST_SPREAD) for step in _SPREAD_STEPS}
    pairs = (*product(sorted(shares), sorted(spreads)), *_FAR)
    missed = _missed_at_low_loads(memory.load_misses)
    unavoidable = sorted({0.0, *(missed or (memory.prior.unavoidable_share,))})
    tried = [CapacityCorrection(*pair, misses) for misses in unavoidable for pair in pairs]
    present = memory.correction if memory.correction in tried else tried[0]
    least = plausibility(present)  # few others come near
    return replace(memory, correction=max(tried, key=lambda correction: plausibility(correction, least)))


def _missed_at_low_loads(counts: LoadMisses) -> list[float]:
    """Return the share of the requests at the lowest loads that missed, at least, of more and more requests;
    none if it is not known.
    """
    shares: list[float] = []
    least = _AT_LOW_LOAD
    while True:
        requests, misses, load = counts.lowest(least)
        if counts.requests_from(_HIGHER * load) < _AT_LOW_LOAD:
            return shares
        share = max(0.0, misses - _DEVIATIONS * math.sqrt(_CORRELATED * misses)) / requests
        shares.append(share if share <= _MOST_UNAVOIDABLE else 0.0)
        least = _MORE * requests
