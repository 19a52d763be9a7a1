"""The live correction of the predicted capacity, by the misses that it predicts and those that happen.

Two numbers make the prediction explain the requests and misses by load (`LoadMisses`) best: the share of the
predicted load that a replica really carries, and how sharply misses rise with the load. The model sees a
steady load with the usual lengths; within a minute real loads and lengths vary, so that some requests miss at
a load that is carried on average, and not all at one that is not. Both numbers follow all requests of hours:
no single burst decides. What misses at a quarter of the load, because prompts are too long, misses at any
load and is no reason for a replica.

Misses count at the load of the last two minutes, or of the last one where it has doubled: a burst that begins
would count at half of its load, and teach that a replica carries next to nothing. Those behind a queue count
at the highest load since it began, which caused them. Only FRESH readings count.
"""

import math
from dataclasses import replace
from itertools import product

from tangram.fleet import Intent, Objectives
from tangram.scaling import limits
from tangram.scaling.outlook.load_misses import LoadMisses
from tangram.scaling.outlook.load_outlook import LoadOutlook
from tangram.scaling.outlook.replica_capacity import ReplicaCapacity
from tangram.scaling.sample import Sample, Window
from tangram.scaling.state import ScalingMemory, ScalingParams

LEAST_SHARE, MOST_SHARE = 1e-4, 2.0
LEAST_SHARPNESS, MOST_SHARPNESS = 0.2, 1.0
_EVERY_S = 60.0
_MINUTES = 2  # whose mean load misses count at: a request may have arrived in the one before
_BURST = 2.0  # times the load of the minute before, from which on a minute counts alone
_CORRELATED = 4.0  # requests of one burst miss together: so many count as one
# Factors of the two numbers that are tried together: they depend on each other. Far ones, because at a sharp
# knee a share that is wrong by hundreds predicts no miss, and a tenth of it none either.
_SHARE_STEPS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 0.9, 0.98, 1.0, 1.02, 1.1)
_SHARPNESS_STEPS = (0.9, 0.98, 1.0, 1.02, 1.1)
# At this part of the load that a replica carries misses have other causes than the load.
_LOW_LOAD = 0.25
# Nothing is known of misses at low load before so many requests came at it, and as many at half the load, of
# which most met the objectives: else a replica may carry far less than is believed.
_HALF_LOAD, _LEAST_REQUESTS, _MOST_MISSED = 0.5, 100.0, 0.5
_DEVIATIONS = 2.0  # by which chance may have made their misses more
_COST = 1 / 0.35  # of a factor of e between either number and the one before any request, in nats


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
    memory = _comparable(memory, objectives, reference)
    every_s = min(_EVERY_S, params.window_s)  # a shorter window shows no requests of the time before it
    passed = every_s if memory.compared_at is None else now - memory.compared_at
    predicted = outlook.capacity.rate_at(reference)
    if 0 <= passed < every_s or ready < 1 or rate is None or predicted <= 0:
        return memory
    loads = (*memory.loads[1 - _MINUTES :], rate / ready / predicted)
    caused_by = loads[-1] if loads[-1] > _BURST * loads[0] else sum(loads) / len(loads)
    if (sample.waiting or 0.0) >= ready:
        caused_by = max(caused_by, memory.queued_load)  # the queue is that of an earlier load
    load_misses = memory.load_misses.faded(passed)
    window = sample.windows(params.window_s)[0]
    missed = _missed(limits.reachable_objectives(memory, intent), window)
    if missed is not None and window.requests:
        counts_once = every_s / params.window_s
        load_misses = load_misses.counted(caused_by, counts_once * window.requests, missed)
    memory = replace(memory, compared_at=now, loads=loads, queued_load=caused_by, load_misses=load_misses)
    return _fitted(memory, outlook.capacity, predicted)


def _comparable(memory: ScalingMemory, objectives: Objectives, reference: float) -> ScalingMemory:
    """Return `memory` without counts that are not to be compared with the present prediction: misses of other
    objectives, after which the correction begins anew, or loads in other units.
    """
    if (memory.corrected_for, memory.corrected_at) == (objectives, reference):
        return memory
    if memory.corrected_for not in (None, objectives):
        memory = replace(memory, trusted_share=1.0, sharpness=1.0, unavoidable_share=0.0)
    if memory.corrected_at is not None:
        memory = replace(
            memory,
            prior_share=memory.trusted_share,
            prior_sharpness=memory.sharpness,
            load_misses=LoadMisses(),
            loads=(),
            queued_load=0.0,
        )
    return replace(memory, corrected_for=objectives, corrected_at=reference)


def _missed(intent: Intent, window: Window) -> float | None:
    """Return the share of requests that missed the objective that was missed most, None if one is unknown."""
    shares = []
    if intent.ttft:
        shares.append(window.ttft_attainment)
    if intent.tpot:
        shares.append(window.tpot_attainment)
    missed = [1 - share for share in shares if share is not None]
    return max(missed) if missed and len(missed) == len(shares) else None


def _fitted(memory: ScalingMemory, capacity: ReplicaCapacity, predicted: float) -> ScalingMemory:
    """Return `memory` with the best neighbours of its two numbers: one step of a search for the best ones,
    beside the share of requests that miss at any load.

    Loads are counted in units of `predicted`, requests per second.
    """
    unavoidable = _unavoidable_share(memory)

    def plausibility(share: float, sharpness: float) -> float:
        fitted = capacity.scaled(share, sharpness, unavoidable)
        cost = abs(math.log(share / memory.prior_share)) + abs(math.log(sharpness / memory.prior_sharpness))
        likelihood = memory.load_misses.log_likelihood(lambda load: fitted.missed_share(load * predicted))
        return likelihood / _CORRELATED - _COST * cost

    shares = _steps(memory.trusted_share, _SHARE_STEPS, LEAST_SHARE, MOST_SHARE)
    sharpnesses = _steps(memory.sharpness, _SHARPNESS_STEPS, LEAST_SHARPNESS, MOST_SHARPNESS)
    share, sharpness = max(product(shares, sharpnesses), key=lambda pair: plausibility(*pair))
    return replace(memory, trusted_share=share, sharpness=sharpness, unavoidable_share=unavoidable)


def _unavoidable_share(memory: ScalingMemory) -> float:
    """Return the share of requests that miss at low load, at least; as it was, while too little is known."""
    counts, share = memory.load_misses, memory.trusted_share
    requests, misses = counts.within(0.0, _LOW_LOAD * share)
    at_load, missed_at_load = counts.within(_HALF_LOAD * share, math.inf)
    if min(requests, at_load) < _LEAST_REQUESTS or missed_at_load > _MOST_MISSED * at_load:
        return memory.unavoidable_share
    return max(0.0, misses - _DEVIATIONS * math.sqrt(_CORRELATED * misses)) / requests


def _steps(number: float, factors: tuple[float, ...], least: float, most: float) -> list[float]:
    return sorted({min(max(number * factor, least), most) for factor in factors})
