"""The scaling law where replicas are not as predicted: random services, each for some hours.

    python -m benchmarks.wrong_predictions [--services N] [--hours H]

A service has a load that is constant or rises and falls, with chance from minute to minute; its replicas carry more
or less than the capacity model says, their load varies within the minute, and some requests miss at any load. The law
sees what a reading shows of that. Each row has the share of requests that missed after the first hour beside the error
budget, the cost over that of a law that knows all of it, and how often the replicas changed after the first hour.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from tangram.fleet import Objective
from tangram.scaling import Sample, ScalingMemory, ScalingObservation, ScalingParams, classify
from tangram.scaling.control import decide
from tangram.scaling.outlook.load_history import LoadHistory
from tangram.scaling.outlook.load_outlook import LoadOutlook
from tangram.scaling.outlook.replica_capacity import CapacityCorrection, ReplicaCapacity
from tangram.scaling.sample import Window
from tests.support.fleet import intent

GENTLE = ReplicaCapacity(((99, 10.0), (95, 17.7), (90, 21.1), (50, 28.8)))
KNEE = ReplicaCapacity(((99, 10.0), (95, 11.0), (90, 11.5), (50, 12.5)))
PARAMS = ScalingParams(60.0, 15.0, 30.0, 300.0)
ROUND_S, MINUTE_S, HOUR_S, START_S = 15, 60, 3600, 60
RUNS_S = 2.0  # that a request runs
MOST = 200  # replicas


@dataclass(frozen=True)
class Service:
    """What a law does not know of an LLMDeployment and its load."""

    percentile: int  # of the objectives
    predicted: ReplicaCapacity
    share: float  # of the prediction that a replica carries
    spread: float  # of the load within a minute
    unavoidable: float  # share of requests that miss at any load
    needed: float  # replicas at the mean load
    noise: float  # of the load of a minute
    swing: float  # of a load that rises and falls in two hours; 0: it is constant
    first: int  # replicas at the beginning

    @property
    def real(self) -> ReplicaCapacity:
        """What one of its replicas carries."""
        return self.predicted.corrected(CapacityCorrection(self.share, self.spread, self.unavoidable))


@dataclass(frozen=True)
class Outcome:
    """How the law served it."""

    missed_share: float  # after the first hour
    cost: float  # over the fewest replicas that meet the objective at each time
    changes: int  # after the first hour


def services(count: int) -> list[Service]:
    """Return so many random services, the same ones each time."""
    chance = random.Random(1)
    found = []
    for _ in range(count):
        percentile, needed = chance.choice((90, 95, 99)), chance.uniform(1.2, 12)
        unavoidable = chance.choice((0.0, 0.0, 0.0, 0.003, 0.01, 0.03))
        found.append(
            Service(
                percentile,
                chance.choice((GENTLE, KNEE)),
                chance.choice((0.5, 0.8, 1.0, 1.0, 1.3)),
                chance.choice((0.0, 0.2, 0.4, 0.7, 1.0)),
                unavoidable if unavoidable < 0.5 * (1 - percentile / 100) else 0.0,
                needed,
                chance.choice((0.02, 0.05, 0.15)),
                chance.choice((0.0, 0.0, 0.4)),
                max(1, round(needed * chance.choice((0.5, 1.0, 2.0)))),
            )
        )
    return found


def served(service: Service, hours: int, seed: int) -> Outcome:
    """Return what the law makes of a service."""
    chance, real, budget = random.Random(seed), service.real, 1 - service.percentile / 100
    mean = service.needed * real.rate_at(service.percentile)
    of = intent(
        min_replicas=1,
        max_replicas=MOST,
        ttft=Objective(service.percentile, 1000),
        tpot=Objective(service.percentile, 50),
    )
    memory, ready, rate = ScalingMemory(replicas=service.first), service.first, mean
    ordered: list[tuple[int, int]] = []
    rates: list[float] = []
    paid = least = missed = requests = 0.0
    changes = 0
    for now in range(0, hours * HOUR_S, ROUND_S):
        ready = next((count for due, count in reversed(ordered) if due <= now), ready)
        if now % MINUTE_S == 0:
            swing = 1 + service.swing * math.sin(math.pi * now / HOUR_S)
            rate = mean * swing * max(0.05, 1 + chance.gauss(0, service.noise))
            rates.append(rate)
        share = real.missed_share(rate / ready)
        deviation = math.sqrt(4 * share * (1 - share) / (rate * MINUTE_S))  # requests miss together
        reading = _reading(now, rate, 1 - min(max(chance.gauss(share, deviation), 0.0), 1.0))
        decision = decide(
            memory,
            PARAMS,
            of,
            ScalingObservation(
                float(now),
                ready,
                classify(reading, "", ready=ready, params=PARAMS, now=float(now)),
                outlook=LoadOutlook(
                    LoadHistory(float(now - now % MINUTE_S), tuple(rates[-240:])),
                    service.predicted,
                    float(START_S),
                ),
            ),
        )
        memory = decision.memory
        if decision.replicas != decision.previous:
            changes += now > HOUR_S
            ordered.append((now + (START_S if decision.replicas > ready else 0), decision.replicas))
        paid += ready
        least += next(count for count in range(1, MOST) if real.missed_share(rate / count) <= budget)
        if now > HOUR_S:
            missed, requests = missed + share * rate, requests + rate
    return Outcome(missed / requests, paid / least, changes)


def _reading(now: int, rate: float, attainment: float) -> Sample:
    def window(seconds: float, *, is_widest: bool = False) -> Window:
        count = rate * seconds
        return Window(seconds, count, RUNS_S * rate, attainment, attainment, attainment, is_widest, count)

    return Sample(
        at=float(now),
        targets=float(MOST),
        age_s=3.0,
        waiting=0.0,
        running=RUNS_S * rate,
        running_mean=RUNS_S * rate,
        requests=rate * MINUTE_S,
        arrived=rate * MINUTE_S,
        ttft_attainment=attainment,
        tpot_attainment=attainment,
        itl_attainment=attainment,
        kv_usage=0.1,
        wider=(window(300.0), window(1500.0, is_widest=True)),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--services", type=int, default=60)
    parser.add_argument("--hours", type=int, default=4)
    args = parser.parse_args(arguments)
    outcomes = []
    for number, service in enumerate(services(args.services)):
        outcome = served(service, args.hours, number)
        outcomes.append((service, outcome))
        model = "knee" if service.predicted is KNEE else "gentle"
        print(
            f"P{service.percentile} {model:6} share {service.share:.1f} spread {service.spread:.1f} "
            f"unavoidable {service.unavoidable:.3f} needs {service.needed:4.1f}: missed {outcome.missed_share:.4f}, "
            f"cost x{outcome.cost:.2f}, {outcome.changes} changes",
            flush=True,
        )
    late = sum(o.missed_share > 1 - s.percentile / 100 for s, o in outcomes)
    calm = [o for s, o in outcomes if not s.swing]
    print(
        f"{late} of {len(outcomes)} missed the objective; cost x{sum(o.cost for _, o in outcomes) / len(outcomes):.2f} "
        f"of a law that knows all; {sum(o.changes > 8 for o in calm)} of {len(calm)} under a constant load "
        "changed more than eight times after the first hour"
    )


if __name__ == "__main__":
    main()
