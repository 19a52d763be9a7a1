"""How many replicas the forecast load needs: the fewest whose expected misses the error budget allows.

What one replica carries is predicted by the capacity model for the present mixture of lengths, times a share
that is corrected live (`capacity_correction`).
"""

from tangram.fleet import Intent
from tangram.scaling.outlook.forecast import Forecast, forecast
from tangram.scaling.outlook.load_outlook import LoadOutlook, ReplicaNeed
from tangram.scaling.outlook.replica_capacity import ReplicaCapacity
from tangram.scaling.sample import Sample
from tangram.scaling.state import ScalingMemory, ScalingParams

MOST_REPLICAS = 10_000  # that are ever recommended
_DRAIN_S = 60.0  # within which a queue is to be served beside the arrivals
_LOOP_S = 30.0  # from a change of the load to an order: half a window of rates and one round


def expected_start_s(memory: ScalingMemory, params: ScalingParams, outlook: LoadOutlook) -> float:
    """Return the seconds from an order to a ready replica: as pods record it, as measured, or as assumed."""
    start_s = outlook.start_s if outlook.start_s is not None else memory.start_s
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
    rate = arrival_rate(sample, params.window_s)
    if rate is None:
        return None
    horizon_s = expected_start_s(memory, params, outlook) + _LOOP_S
    load = forecast(outlook.history, rate, now=now, horizon_s=horizon_s)
    capacity = outlook.capacity.scaled(memory.trusted_share)
    backlog = (sample.waiting or 0.0) / _DRAIN_S if queued else 0.0
    percentile = intent.objectives.strictest_percentile
    replicas = _fewest(load, capacity, backlog, 1 - percentile / 100)
    return ReplicaNeed(
        replicas,
        load,
        capacity.rate_at(percentile),
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


def _fewest(load: Forecast, capacity: ReplicaCapacity, backlog: float, budget: float) -> int:
    """Return the fewest replicas whose expected misses the error budget allows, at most `MOST_REPLICAS`."""
    low, high = 1, 1
    while high < MOST_REPLICAS and expected_misses(load, capacity, backlog, high) > budget:
        low, high = high + 1, min(2 * high, MOST_REPLICAS)
    while low < high:
        middle = (low + high) // 2
        if expected_misses(load, capacity, backlog, middle) <= budget:
            high = middle
        else:
            low = middle + 1
    return low


def arrival_rate(sample: Sample, window_s: float) -> float | None:
    """Return the requests per second that arrive. First tokens stand in where the engine counts no arrivals.

    First tokens lag behind arrivals while a queue grows, so its growth would be missing: the backlog is
    added apart.
    """
    if sample.arrived is not None:
        return sample.arrived / window_s
    return None if sample.requests is None else sample.requests / window_s


def down_window_s(memory: ScalingMemory, params: ScalingParams, outlook: LoadOutlook) -> float:
    """Return the window of recommendations whose maximum bounds a removal."""
    return max(params.down_after_s, 2 * expected_start_s(memory, params, outlook))
