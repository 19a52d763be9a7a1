"""How many replicas the forecast load needs: the fewest whose expected misses the error budget allows.

What one replica carries is predicted by the capacity model for the present mixture of lengths, times a share
that is corrected live (`capacity_correction`).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tangram.fleet import Intent
from tangram.scaling import limits
from tangram.scaling.outlook.forecast import Forecast, forecast
from tangram.scaling.outlook.load_history import STEP_S, averaged
from tangram.scaling.outlook.load_misses import MissedRequests
from tangram.scaling.outlook.load_outlook import LoadOutlook, NeedLimit, ReplicaNeed, RunnerUp
from tangram.scaling.outlook.replica_capacity import ReplicaCapacity
from tangram.scaling.sample import Sample
from tangram.scaling.state import ScalingMemory, ScalingParams

MOST_REPLICAS = 10_000  # that are ever recommended
MOST_AVERAGED = 30  # bins of the load that are averaged
# Share of the error budget down to which replicas are removed, and of the expected load that they then carry.
_LASTING_BUDGET, _LASTING_LOAD = 0.5, 1.05
# Error budgets that are planned with beyond the one of the objective while no request misses. Those of an
# hour, or those of which a hundred may miss, are assumed to have missed twice as often as allowed before.
_GIVEN_BACK, _ASSUMED_S, _ASSUMED_MISSES, _ASSUMED_SHARE = 3.0, 1800.0, 100.0, 1.5
# Of the error budget, for misses that replicas prevent, where the others use up the rest of it.
_PREVENTABLE = 0.5
_PART, _LEAST_PART = 0.03, 0.01  # accuracy of a part of a replica, and the smallest one
_DRAIN_S = 60.0  # within which a queue is to be served beside the arrivals
_LOOP_S = 30.0  # from a change of the load to an order: half a window of rates and one round


def expected_start_s(memory: ScalingMemory, params: ScalingParams, outlook: LoadOutlook) -> float:
    """Return the seconds from an order to a ready replica: as pods record it, as measured, or as assumed."""
    start_s = outlook.start_s if outlook.start_s is not None else memory.supply.start_s
    return params.start_s if start_s is None else start_s


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
    rate = lasting_rate(sample, params, outlook)
    if rate is None:
        return None
    horizon_s = expected_start_s(memory, params, outlook) + _LOOP_S
    load = forecast(averaged(outlook.history, outlook.bins), rate, now=now, horizon_s=horizon_s)
    backlog = (sample.waiting or 0.0) / _DRAIN_S if queued else 0.0
    misses = ExpectedMisses(load, outlook.capacity.corrected(memory.capacity.correction), backlog)
    percentile = limits.forecast_objectives(memory.evidence, intent).strictest_percentile
    allowed = 1 - percentile / 100
    is_mixed = outlook.capacity.beside is not None  # what then misses is not counted
    planned = allowed if is_mixed else planned_budget(memory.capacity.missed, allowed)
    return _need(misses, percentile, planned, predicted_rate=outlook.capacity.rate_at(percentile))


def _need(
    misses: "ExpectedMisses", percentile: float, planned: float, *, predicted_rate: float
) -> ReplicaNeed:
    """Return the need of a load. Its forecast is planned with the budget `planned`, and what is certain of it
    with the budget of `percentile`. `predicted_rate`: of a replica that is as predicted.
    """
    allowed, rate = 1 - percentile / 100, misses.capacity.rate_at(percentile)
    certain = misses.of_certain_load
    replicas, part, bound, budget = _fewest(((misses, planned), (certain, allowed)), rate)
    more = replace(certain, load=certain.load.times(_LASTING_LOAD))
    kept = ((misses, _LASTING_BUDGET * planned), (more, _LASTING_BUDGET * allowed))
    lasting, lasting_part, *_ = _fewest(kept, rate)
    return ReplicaNeed(
        replicas,
        lasting,
        misses.load,
        rate,
        bound.share(replicas),
        misses.backlog,
        budget,
        bound.limit(replicas, budget),
        RunnerUp(replicas - 1, bound.share(replicas - 1)) if replicas > 1 else None,
        part * rate,
        lasting_part * rate,
        rate / predicted_rate if predicted_rate else 1.0,
        max(0, replicas - certain.replicas_within(allowed, rate)),
    )


def _fewest(
    bounds: Sequence[tuple["ExpectedMisses", float]], replica_rate: float
) -> tuple[int, float, "ExpectedMisses", float]:
    """Return the fewest replicas within the error budget of each load, how many are enough if the last of
    them may be a smaller one, and the load that needs most of them, with its budget: the first of several.
    """
    counts = [misses.replicas_within(budget, replica_rate) for misses, budget in bounds]
    replicas = max(counts)
    part = max(misses.least_part(budget, replicas) for misses, budget in bounds)
    return replicas, part, *bounds[counts.index(replicas)]


def planned_budget(requests: MissedRequests, allowed: float) -> float:
    """Return the share of requests that the forecast may miss, where the objective allows `allowed`.

    The forecast errs on the side of more replicas, and replicas are kept for a while. Where fewer requests
    miss than are allowed, more are planned to, at most four times `allowed`. The load that is certain is
    planned with `allowed` alone.
    """
    missed = requests.share(_ASSUMED_SHARE * allowed, _ASSUMED_S, _ASSUMED_SHARE * _ASSUMED_MISSES)
    return allowed * (1 + _GIVEN_BACK * max(0.0, 1 - missed / allowed))


@dataclass(frozen=True, slots=True)
class ExpectedMisses:
    """The misses that a load leads to, by the number of replicas: over all loads of the forecast."""

    load: Forecast
    capacity: ReplicaCapacity
    backlog: float = 0.0  # requests per second that wait and are to be served beside those that arrive
    _mean_rate: float = field(init=False, repr=False, compare=False)
    _computed: dict[float, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_mean_rate", self.load.mean_of(lambda rate: rate))

    @property
    def of_certain_load(self) -> "ExpectedMisses":
        """The misses if the expected load came for certain."""
        return ExpectedMisses(self.load.certain, self.capacity, self.backlog)

    def per_second(self, replicas: float) -> float:
        """Return the requests per second that miss an objective; of the backlog alone where none arrive.

        Each number is evaluated once: the searches for a number ask about the same ones.
        """
        if replicas not in self._computed:
            self._computed[replicas] = self._per_second(replicas)
        return self._computed[replicas]

    def _per_second(self, replicas: float) -> float:
        if not self._mean_rate:
            return self.backlog * self.capacity.missed_share(self.backlog / replicas)
        return self.load.mean_of(
            lambda rate: rate * self.capacity.missed_share((rate + self.backlog) / replicas)
        )

    def share(self, replicas: float) -> float:
        """Return the share of the requests that miss an objective."""
        requests = self._mean_rate or self.backlog
        return self.per_second(replicas) / requests if requests > 0 else 0.0

    def replicas_within(self, budget: float, replica_rate: float) -> int:
        """Return the fewest replicas with at most this share of misses, as far as they are worth it.

        Replicas are worth it if together they prevent as many misses as so many fully used ones are allowed:
        a load that hardly ever comes would need ever more of them. One alone may prevent none: a burst misses
        until there are replicas for all of it. Where some requests miss whatever the load is, half of the
        budget is for the others.
        """
        reachable = max(budget, self.share(MOST_REPLICAS) + _PREVENTABLE * budget)
        most = _first(lambda count: self.share(count) <= reachable, 1)
        allowed = budget * replica_rate
        worth, least = 1, math.inf
        for count in _counts(most):
            if allowed * count >= least:  # further replicas alone count as more than all misses
                break
            weighed = self.per_second(count) + allowed * count
            if weighed < least:
                worth, least = count, weighed
        return worth

    def least_part(self, budget: float, replicas: int) -> float:
        """Return how many replicas are enough if the last of `replicas` may be a smaller one.

        The fewest within `budget`, a few hundredths more at most. Where `replicas` are beyond it: all.
        """
        low, high = float(replicas - 1), float(replicas)
        if self.share(high) > budget:
            return high
        while high - low > _PART * high and high > _LEAST_PART:
            middle = (low + high) / 2
            low, high = (low, middle) if self.share(middle) <= budget else (middle, high)
        return high

    def limit(self, replicas: int, budget: float) -> NeedLimit:
        """Return what makes `replicas` the fewest within `budget`, as far as each is worth it."""
        if self.share(replicas) > budget:
            return NeedLimit.FURTHER_REPLICA
        if replicas == 1:
            return NeedLimit.ONE_REPLICA
        if self.backlog and replace(self, backlog=0.0).share(replicas - 1) <= budget:
            return NeedLimit.QUEUE
        return NeedLimit.ERROR_BUDGET


def _counts(most: int) -> Iterator[int]:
    """Yield numbers of replicas from 1 to `most`: each one at first, then in steps of a twelfth."""
    count = 1
    while count < most:
        yield count
        count += max(1, count // 12)
    yield most


def _first(holds: Callable[[int], bool], low: int) -> int:
    """Return the first number from `low` on for which a condition holds that then stays; at most 10,000."""
    high = low
    while high < MOST_REPLICAS and not holds(high):
        low, high = high + 1, min(2 * high, MOST_REPLICAS)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def arrival_rate(sample: Sample, window_s: float) -> float | None:
    """Return the requests per second that arrive. First tokens stand in where the engine counts no arrivals.

    First tokens lag behind arrivals while a queue grows, so its growth would be missing: the backlog is
    added apart.
    """
    if sample.arrived is not None:
        return sample.arrived / window_s
    return None if sample.requests is None else sample.requests / window_s


def lasting_rate(sample: Sample, params: ScalingParams, outlook: LoadOutlook) -> float | None:
    """Return the rate of arrivals over the time for which a request runs: those are a replica's load."""
    rate = arrival_rate(sample, params.window_s)
    if rate is None or outlook.bins <= 1:
        return rate
    before = [past for past in outlook.history.rates[1 - outlook.bins :] if past is not None]
    return (rate + sum(before)) / (1 + len(before))


def bins_of_requests(sample: Sample, params: ScalingParams) -> int | None:
    """Return the bins over which replicas average their load; None while too few requests are known.

    By Little's law requests run for a time of the running ones over the rate at which they begin. Replicas
    respond to arrivals like an exponential average of that time constant, of which twice the time is a mean.
    """
    *_, window = sample.windows(params.window_s)
    if not window.requests or window.requests < params.min_samples or window.running_mean is None:
        return None
    runs_s = window.running_mean / window.requests * window.seconds
    return max(1, min(round(2 * runs_s / STEP_S), MOST_AVERAGED))


def down_window_s(memory: ScalingMemory, params: ScalingParams, outlook: LoadOutlook) -> float:
    """Return the window of recommendations whose maximum bounds a removal."""
    return max(params.down_after_s, 2 * expected_start_s(memory, params, outlook))
