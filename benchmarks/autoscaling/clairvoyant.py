"""The oracle of a scenario: the cheapest schedule found, with all requests known, that reaches an attainment.

The load of a time bin is the work of its requests, in replicas at the highest load within the objectives. A cover of
that load, times a factor, is replayed through the same simulation by a schedule; the least factor is sought for each
attainment. Where the best fixed number of replicas is cheaper, it counts. Replicas start in their mean time here: the
oracle knows each start, so it needs no margin for it. It is the best schedule found, not a bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from benchmarks.autoscaling.collector_pause import paused_collector
from benchmarks.autoscaling.oracle import Schedule, ScheduleFamily, cheapest_schedule, clairvoyant_cover
from benchmarks.autoscaling.prepared_scenario import PreparedScenario
from tangram.simulator.cluster.start_times import Delay, StartTimes
from tangram.simulator.controllers import ControllerView
from tangram.simulator.run import SimulationSettings, run

BIN_S = 15.0  # as the rounds of the simulation
SMOOTHED_BINS = (1, 4, 20)  # over which the load is averaged before it is covered; the cheapest one counts
STOP_S = 15.0  # a draining replica, mean
HIGHEST_FACTOR = 16.0
FIRST_FIXED = 1.5  # of the replicas that the mean load needs: the first fixed number that is tried


class ScheduledReplicas:
    """Replicas by time bin, whatever the metrics are."""

    interval_s = BIN_S

    def __init__(self, ordered: Sequence[int]) -> None:
        self.ordered = ordered

    def decide(self, view: ControllerView) -> int:
        """Return the replicas of the present bin."""
        return self.ordered[min(len(self.ordered) - 1, int(view.now // BIN_S))]


@dataclass(frozen=True, slots=True)
class OracleResult:
    """The cheapest replay that reached an attainment, and the cheapest with a fixed number of replicas."""

    usd: float
    miss: float
    starts: int
    factor: float | None  # on the load of the cover; None: the fixed number is the cheapest
    static_usd: float | None  # None: no fixed number reaches it
    static_replicas: int | None


def oracle(
    scenario: PreparedScenario, attainments: Sequence[float], seed: int
) -> dict[float, OracleResult | None]:
    """Return the oracle of each attainment; None: no schedule reached it."""
    known = replace(scenario, start_times=_mean_times(scenario.start_times))
    loads, most = load(known), known.intent.max_replicas
    # A schedule reads no metrics. Each pod is scraped once.
    settings = SimulationSettings(
        known.nodes, seed=seed, scrape_interval_s=known.trace.duration_s, has_metrics=False
    )
    starts: dict[Schedule, int] = {}

    @cache
    def replay(schedule: Schedule) -> tuple[float, float]:
        deployment = known.deployment(ScheduledReplicas(schedule), schedule[0])
        with paused_collector():
            result = run((deployment,), settings).deployments[0]
        starts[schedule] = result.use.starts
        return result.use.usd, result.attainment.share

    def cover(smoothed_load: Sequence[float], factor: float) -> Schedule:
        need = [min(most, math.ceil(factor * replicas - 1e-9)) for replicas in smoothed_load]
        start_s = known.start_times.mean_s
        return clairvoyant_cover(need, bin_s=BIN_S, start_s=start_s, stop_s=STOP_S, min_replicas=1).ordered

    fixed = ScheduleFamily(
        lambda replicas: (round(replicas),) * len(loads),
        replay,
        start=min(most, math.ceil(FIRST_FIXED * known.mean_need)),
        step=1,
        highest=most,
    )
    covers = [
        ScheduleFamily(
            partial(cover, smoothed(loads, bins)), replay, start=1, step=0.005, highest=HIGHEST_FACTOR
        )
        for bins in SMOOTHED_BINS
    ]
    results: dict[float, OracleResult | None] = {}
    for attainment in attainments:
        static = cheapest_schedule([fixed], attainment)
        best = cheapest_schedule([fixed, *covers], attainment)
        results[attainment] = best and OracleResult(
            usd=best.usd,
            miss=1 - best.attainment,
            starts=starts[best.schedule],
            factor=None if best in fixed.replayed else best.scale,
            static_usd=static and static.usd,
            static_replicas=static and static.schedule[0],
        )
    return results


def load(scenario: PreparedScenario) -> list[float]:
    """Return the work that arrives in each bin, in replicas at their highest load within the objectives."""
    profile = scenario.profile
    prompt_s = profile.step_s(0, 0, profile.input_tokens) / profile.input_tokens
    batch, context = profile.running_requests, profile.input_tokens + profile.output_tokens / 2
    token_s = profile.step_s(batch, context, 0) / batch
    usual_s = prompt_s * profile.input_tokens + token_s * profile.output_tokens
    bins = [0.0] * (int(scenario.trace.duration_s // BIN_S) + 1)
    for request in scenario.trace.requests:
        work = (prompt_s * request.input_tokens + token_s * request.output_tokens) / usual_s
        bins[int(request.arrival_s // BIN_S)] += work
    return [work / BIN_S / profile.requests_per_second for work in bins]


def smoothed(values: Sequence[float], bins: int) -> list[float]:
    """Return the mean of the `bins` bins around each: a queue carries work over."""
    half, count = bins // 2, len(values)
    spans = ((max(0, place - half), min(count, place - half + bins)) for place in range(count))
    return [math.fsum(values[begin:end]) / (end - begin) for begin, end in spans]


def _mean_times(times: StartTimes) -> StartTimes:
    """Return start times that always take their mean."""
    return replace(
        times,
        image_pull=Delay(times.image_pull.mean_s),
        weight_load=Delay(times.weight_load.mean_s),
        warm_up=Delay(times.warm_up.mean_s),
    )
