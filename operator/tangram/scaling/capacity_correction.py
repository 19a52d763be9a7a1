"""The live correction of the predicted capacity, by the misses that it predicts and those that happen.

Three numbers make the prediction explain the requests and misses by load (`LoadMisses`) best: the share of
the predicted load that a replica really carries, how much the load varies within a minute, which the model
does not see (`miss_curve`), and the share of requests that miss at any load, because their prompts are too
long: these are no reason for a replica. All three follow the requests of hours: no single burst decides.

Misses count at the load of the last two minutes. A minute in which it doubles does not count: how much of it
came at which load is not known, and a leap from silence would teach that a replica carries next to nothing.
The load is that of the replicas that were ready in this time: one that is ready at its end served none of the
requests that missed.
Misses behind a queue count at the highest load since it began, which caused them, to the minute in which
it ends; not at all where it began while nothing was read, or on replicas of another shape: that load is not
known. Only FRESH readings count.
"""

import math
from dataclasses import dataclass, replace
from itertools import product

from tangram.fleet import Intent, Objectives
from tangram.scaling import limits
from tangram.scaling.outlook.load_misses import LoadMisses
from tangram.scaling.outlook.load_outlook import LoadOutlook
from tangram.scaling.outlook.miss_balance import NONE_COUNTED
from tangram.scaling.outlook.miss_curve import MOST_SPREAD
from tangram.scaling.outlook.replica_capacity import AS_PREDICTED, CapacityCorrection, ReplicaCapacity
from tangram.scaling.sample import Sample, Window
from tangram.scaling.state import Evidence, ScalingMemory, ScalingParams

LEAST_SHARE, MOST_SHARE = 1e-4, 2.0
_EVERY_S = 60.0
_MINUTES = 2  # whose mean load misses count at: a request may have arrived in the one before
# Times the load of the minute before from which on it leaps, if it is more than a part of the predicted one.
_BURST, _LEAST_LEAP = 2.0, 0.25
_GAP = 2.0  # times the time between two readings, after which a queue is of a load that is not known
_CORRELATED = 4.0  # requests of one burst miss together: so many count as one
_COST = 1 / 0.35  # in nats, of numbers that differ from those before any request: see `distance`
# Shares and spreads that are tried: neighbours of the present ones, because the two depend on each other, and
# far ones: the best may be far away, and worse ones may lie between.
_SHARE_STEPS = (0.9, 0.98, 1.0, 1.02, 1.1)
_SPREAD_STEPS = (-0.1, 0.0, 0.1)
_FAR = (
    *product((1e-4, 3e-4, 0.001, 0.003, 0.01, 0.03, 0.1), (0.0, 0.3, 0.9)),
    *product((0.2, 0.3, 0.45, 0.65, 0.9, 1.3, 2.0), (0.0, 0.2, 0.4, 0.6, 0.9, 1.2)),
)
# So many requests at the lowest loads show what misses at any load, less what chance makes of their misses,
# if as many came at so many times their load: at one load alone, overload would look the same. So it does at
# any load where the model is wrong by far: more misses than these are no property of requests.
_AT_LOW_LOAD, _AT_HIGHER_LOAD, _DEVIATIONS = 2000.0, 400.0, 1.0
_HIGHER, _MOST_UNAVOIDABLE = 1.2, 0.1


@dataclass(frozen=True, slots=True)
class ServedWindow:
    """What a FRESH reading shows of the replicas that serve."""

    at: float
    ready: int
    rate: float | None  # requests per second that arrive
    window: Window
    missed_share: float | None  # of the objective that was missed most
    is_queued: bool
    is_changing: bool  # another number of replicas was ready within the window


def corrected(
    memory: ScalingMemory,
    params: ScalingParams,
    intent: Intent,
    outlook: LoadOutlook,
    sample: Sample,
    rate: float | None,
    *,
    ready: int,
    now: float,
) -> ScalingMemory:
    """Return `memory` after one FRESH reading, of `ready` replicas at which `rate` requests/s arrive."""
    objectives = limits.forecast_objectives(memory, intent)
    reference = outlook.capacity.reference_percentile(objectives.strictest_percentile)
    evidence = _comparable(memory.evidence, objectives, reference)
    window = sample.windows(params.window_s)[0]
    reading = ServedWindow(
        now,
        ready,
        rate,
        window,
        _missed(limits.reachable_objectives(memory, intent), window),
        is_queued=(sample.waiting or 0.0) >= max(1, ready),
        is_changing=memory.supply.ready is not None and ready != memory.supply.settled_ready,
    )
    every_s = min(_EVERY_S, params.window_s)  # a shorter window shows no requests of the time before it
    return replace(memory, evidence=_compared(evidence, reading, outlook.capacity, reference, every_s))


def _compared(
    evidence: Evidence, reading: ServedWindow, capacity: ReplicaCapacity, reference: float, every_s: float
) -> Evidence:
    """Return `evidence` after a reading. Loads are in units of the highest one at a percentile."""
    now, ready, rate = reading.at, reading.ready, reading.rate
    if evidence.compared_at is None:  # the window began before the first request: its rate is too low
        return replace(evidence, compared_at=now)
    passed = now - evidence.compared_at
    rounds = (*evidence.serving, (now, ready))
    serving = tuple((at, count) for at, count in rounds if 0 <= now - at < every_s and count)
    is_queued = evidence.is_queued or reading.is_queued
    evidence = replace(evidence, serving=serving, is_queued=is_queued)
    predicted = capacity.rate_at(reference)
    if 0 <= passed < every_s or not serving or rate is None or predicted <= 0:
        return evidence
    if passed > _GAP * every_s:
        evidence = interrupted(evidence)
    served_by = sum(count for _, count in serving) / len(serving)
    loads = (*evidence.loads[1 - _MINUTES :], rate / served_by / predicted)
    leaps = loads[-1] > max(_BURST * loads[0], _LEAST_LEAP) and len(loads) > 1
    caused_by = loads[-1] if leaps else sum(loads) / len(loads)
    if is_queued:
        caused_by = max(*loads, evidence.queued_load)  # the queue is that of an earlier load
    load_misses, balance = evidence.load_misses.faded(passed), evidence.balance.faded(passed)
    window, missed = reading.window, reading.missed_share
    if missed is not None and window.requests and math.isfinite(caused_by):
        requests = every_s / window.seconds * window.requests
        is_settled = not (leaps or is_queued or reading.is_changing)
        balance = balance.counted(requests, missed, evidence.expected_share if is_settled else None)
        if not leaps:
            load_misses = load_misses.counted(caused_by, requests, missed)
    evidence = replace(
        evidence,
        compared_at=now,
        loads=loads,
        is_queued=False,
        queued_load=caused_by,
        load_misses=load_misses,
        balance=balance,
    )
    return _fitted(evidence, capacity, predicted)


def interrupted(evidence: Evidence) -> Evidence:
    """Return `evidence` without the loads before: requests that wait have waited for a load that is not
    known, or for other replicas.
    """
    return replace(evidence, loads=(), queued_load=math.inf, serving=(), is_queued=False)


def forgotten(evidence: Evidence) -> Evidence:
    """Return what is left where replicas are of another kind now: the requests that wait, and when it was."""
    return Evidence(
        queued_load=evidence.queued_load,
        serving=evidence.serving,
        is_queued=evidence.is_queued,
        compared_at=evidence.compared_at,
    )


def _comparable(evidence: Evidence, objectives: Objectives, reference: float) -> Evidence:
    """Return `evidence` without counts that are not to be compared with the present prediction: misses of
    other objectives, after which the correction begins anew, or loads in other units.
    """
    if (evidence.corrected_for, evidence.corrected_at) == (objectives, reference):
        return evidence
    if evidence.corrected_for not in (None, objectives):
        evidence = replace(evidence, correction=AS_PREDICTED)
    if evidence.corrected_at is not None:
        evidence = replace(
            evidence,
            prior=evidence.correction,
            load_misses=LoadMisses(),
            balance=NONE_COUNTED,
            loads=(),
            queued_load=0.0,
        )
    return replace(evidence, corrected_for=objectives, corrected_at=reference)


def _missed(intent: Intent, window: Window) -> float | None:
    """Return the share of requests that missed the objective that was missed most, None if one is unknown."""
    shares = []
    if intent.ttft:
        shares.append(window.ttft_attainment)
    if intent.tpot:
        shares.append(window.tpot_attainment)
    missed = [1 - share for share in shares if share is not None]
    return max(missed) if missed and len(missed) == len(shares) else None


def _fitted(evidence: Evidence, capacity: ReplicaCapacity, predicted: float) -> Evidence:
    """Return `evidence` with the most plausible of the corrections that are tried: one step of a search.

    Loads are counted in units of `predicted`, requests per second.
    """

    counts = evidence.load_misses.occupied()

    def plausibility(correction: CapacityCorrection) -> float:
        fitted = capacity.corrected(correction)
        likelihood = counts.log_likelihood(lambda load: fitted.missed_share(load * predicted))
        return likelihood / _CORRELATED - _COST * correction.distance(evidence.prior)

    share, spread, _ = evidence.correction
    shares = {min(max(share * step, LEAST_SHARE), MOST_SHARE) for step in _SHARE_STEPS}
    spreads = {min(max(round(spread + step, 1), 0.0), MOST_SPREAD) for step in _SPREAD_STEPS}
    pairs = (*product(sorted(shares), sorted(spreads)), *_FAR)
    missed = _missed_at_low_load(evidence.load_misses)
    unavoidable = sorted({0.0, evidence.prior.unavoidable_share if missed is None else missed})
    tried = (CapacityCorrection(*pair, least) for least in unavoidable for pair in pairs)
    return replace(evidence, correction=max(tried, key=plausibility))


def _missed_at_low_load(counts: LoadMisses) -> float | None:
    """Return the share of the requests at the lowest loads that missed, at least; None: it is not known."""
    requests, misses, load = counts.lowest(_AT_LOW_LOAD)
    if counts.requests_from(_HIGHER * load) < _AT_HIGHER_LOAD:
        return None
    share = max(0.0, misses - _DEVIATIONS * math.sqrt(_CORRELATED * misses)) / requests
    return share if share <= _MOST_UNAVOIDABLE else 0.0
