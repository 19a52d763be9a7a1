"""A simulated fleet of one model: Poisson requests, replicas with slots and a KV cache, scraped counters.

Requests go to a random replica, as through a Service. A replica runs as many as its slots and its cache hold,
the others wait; a token takes longer the more run beside it. `Prometheus` sees only what a scrape would.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass, field, replace
from random import Random

from tangram.scaling import (
    EvidenceMemory,
    Sample,
    ScalingMemory,
    ScalingObservation,
    ScalingParams,
    classify,
    decide,
)
from tangram.scaling.outlook.load_history import LoadHistory, extended
from tangram.scaling.outlook.load_outlook import LoadOutlook
from tangram.scaling.outlook.replica_capacity import ReplicaCapacity
from tangram.scaling.queries import wider_windows
from tangram.scaling.sample import Window

COUNTERS = ("arrived", "requests", "ttft_good", "ended", "tpot_good")


@dataclass(frozen=True)
class Engine:
    """What one replica does."""

    slots: int = 64
    cache: float = math.inf  # requests that the KV cache holds
    prefill_s: float = 0.05
    tokens: float = 100.0  # mean of a request, geometric
    token_s: float = 0.02  # of a request alone
    beside_s: float = 0.002  # more for each request that runs beside it
    start_s: float = 60.0


@dataclass(eq=False)
class Replica:
    running: int = 0
    queue: deque = field(default_factory=deque)
    gone: bool = False


class Plant:
    """One LLMDeployment under its scaling law, from an empty memory."""

    def __init__(self, intent, engine, rate, *, seed=1, replicas=1, params=None, replica_rate=None, **known):
        self.intent, self.engine, self.rate = intent, engine, rate
        self.params = params or ScalingParams(
            window_s=60, scrape_interval_s=15, up_after_s=30, down_after_s=300
        )
        self.tick_s = self.params.scrape_interval_s
        self.memory = ScalingMemory(evidence=EvidenceMemory(**known))
        self.rng, self.now, self.ends, self.order = Random(seed), 0.0, [], 0
        self.fleet = [Replica() for _ in range(replicas)]
        self.wanted, self.starting = replicas, []
        self.counts = dict.fromkeys(COUNTERS, 0)
        self.scrapes: list[tuple[dict, float, float]] = []  # counters, running, KV usage
        self.replica_rate, self.history = replica_rate, LoadHistory(0.0)  # None: no feed-forward
        self.arrives_at = self.rng.expovariate(rate(0.0))

    def arrive(self):
        self.arrives_at = self.now + self.rng.expovariate(max(1e-6, self.rate(self.now)))
        if self.fleet:
            self.counts["arrived"] += 1
            replica = self.rng.choice(self.fleet)
            replica.queue.append(self.now)
            self.admit(replica)

    def admit(self, replica):
        e = self.engine
        while replica.queue and replica.running < min(e.slots, e.cache):
            arrived = replica.queue.popleft()
            replica.running += 1
            token_s = e.token_s + e.beside_s * (replica.running - 1)
            tokens = max(1, round(self.rng.expovariate(1 / e.tokens)))
            self.counts["requests"] += 1
            objective = self.intent.ttft
            if objective and self.now + e.prefill_s - arrived <= objective.milliseconds / 1000:
                self.counts["ttft_good"] += 1
            self.order += 1
            heapq.heappush(
                self.ends, (self.now + e.prefill_s + tokens * token_s, self.order, replica, token_s)
            )

    def end(self, replica, token_s):
        replica.running -= 1
        self.counts["ended"] += 1
        if self.intent.tpot and token_s <= self.intent.tpot.milliseconds / 1000:
            self.counts["tpot_good"] += 1
        if not replica.gone:
            self.admit(replica)

    def window(self, seconds):
        scrapes = self.scrapes[-round(seconds / self.tick_s) - 1 :]
        if len(scrapes) < 2:
            return Window(seconds)
        first, last = scrapes[0][0], scrapes[-1][0]
        counted = {name: last[name] - first[name] for name in COUNTERS}
        mean = sum(running for _, running, _ in scrapes[1:]) / (len(scrapes) - 1)
        return Window(
            seconds,
            float(counted["requests"]),
            mean,
            counted["ttft_good"] / counted["requests"] if self.intent.ttft and counted["requests"] else None,
            counted["tpot_good"] / counted["ended"] if self.intent.tpot and counted["ended"] else None,
            arrived=float(counted["arrived"]),
        )

    def scrape(self):
        running = sum(r.running for r in self.fleet)
        self.scrapes.append((dict(self.counts), running, running / self.engine.cache))
        window = self.window(self.params.window_s)
        wider = [self.window(seconds) for seconds in wider_windows(self.params.window_s)]
        recent = self.scrapes[-4:]
        return Sample(
            at=self.now,
            targets=float(len(self.fleet)),
            age_s=3.0,
            waiting=float(sum(len(r.queue) for r in self.fleet)),
            running=float(running),
            running_mean=window.running_mean,
            requests=window.requests,
            arrived=window.arrived,
            ttft_attainment=window.ttft_attainment,
            tpot_attainment=window.tpot_attainment,
            kv_usage=sum(usage for _, _, usage in recent) / len(recent),
            wider=tuple(wider),
        )

    def tick(self):
        """Let a tick pass, then decide."""
        until = self.now + self.tick_s
        while (ends_at := self.ends[0][0] if self.ends else math.inf) <= until or self.arrives_at <= until:
            if self.arrives_at < ends_at:
                self.now = self.arrives_at
                self.arrive()
            else:
                self.now, _, replica, token_s = heapq.heappop(self.ends)
                self.end(replica, token_s)
        self.now = until
        came = [start for start in self.starting if start <= self.now]
        self.starting = [start for start in self.starting if start > self.now]
        self.fleet += [Replica() for _ in came]
        ready = len(self.fleet)
        sample = self.scrape()
        signal = classify(sample, "", ready=ready, params=self.params, now=self.now)
        decision = decide(
            replace(self.memory, replicas=self.wanted),
            self.params,
            self.intent,
            ScalingObservation(self.now, ready, signal, outlook=self.outlook(sample)),
        )
        self.memory = decision.memory
        self.carry_out(decision.replicas)
        return decision

    def outlook(self, sample):
        """Return the history of arrivals by the minute, and what one replica is predicted to carry."""
        if self.replica_rate is None:
            return None
        step = self.history.step_s
        if self.now % step == 0 and sample.arrived is not None:
            self.history = extended(self.history, sample.arrived / self.params.window_s, self.now, 240)
        rate = self.replica_rate
        capacity = ReplicaCapacity(((99, 0.9 * rate), (95, 0.96 * rate), (90, rate), (50, 1.2 * rate)))
        return LoadOutlook(self.history, capacity, self.engine.start_s)

    def carry_out(self, wanted):
        self.starting += [self.now + self.engine.start_s] * max(0, wanted - self.wanted)
        for _ in range(max(0, self.wanted - wanted)):
            if self.starting:
                self.starting.pop()
                continue
            leaving = self.fleet.pop()
            leaving.gone = True
            for arrived in leaving.queue:
                replica = self.rng.choice(self.fleet)
                replica.queue.append(arrived)
                self.admit(replica)
        self.wanted = wanted

    def run(self, hours):
        """Return every decision."""
        return [self.tick() for _ in range(round(hours * 3600 / self.tick_s))]


def changes(decisions):
    """Return the numbers of replicas, each where it changed, in order."""
    return [d.replicas for d in decisions if d.replicas != d.previous]
