"""A scenario ready to run: its requests for one seed, its LLMDeployment, and what laws may know of one replica."""

from __future__ import annotations

import gzip
import math
from dataclasses import dataclass
from functools import lru_cache

from benchmarks.autoscaling.client_traffic import client_traffic
from benchmarks.autoscaling.laws import CapacityFacts, capacity_facts
from benchmarks.autoscaling.scenarios import Scenario
from benchmarks.autoscaling.traffic_kinds import kind_traffic
from tangram.catalog import known_model
from tangram.catalog.prices import Prices
from tangram.fleet import WHOLE_GPU, CheckpointFacts, Intent, MIGPolicy, Node, Objective, Traffic
from tangram.fleet.lengths import MOST_P90, Lengths
from tangram.simulator.cluster.engine_setups import EngineSetups
from tangram.simulator.cluster.start_times import Delay, StartTimes
from tangram.simulator.cluster.well_known_facts import well_known_facts
from tangram.simulator.controllers import Controller, LawKnowledge
from tangram.simulator.run import SimulatedLLMDeployment
from tangram.simulator.traffic.resampling import at_rate, resampled, window
from tangram.simulator.traffic.trace import Trace
from tangram.simulator.traffic.trace_lines import parse_trace

PERCENTILE = 99  # of both objectives, as the spec has them; results are judged at several attainments
MOST_REPLICAS = 64
GPUS_PER_NODE = 8
SLICES = {WHOLE_GPU: 1, "3g.40gb": 2, "2g.20gb": 3, "1g.20gb": 4}  # of one GPU that is cut into them
SIZED_FOR_S = 300.0  # the fleet is sized for the first five minutes, for every law alike


@dataclass(frozen=True, slots=True)
class PreparedScenario:
    """A scenario with the requests of one seed, and what laws may know of one replica."""

    scenario: Scenario
    intent: Intent
    checkpoint: CheckpointFacts
    trace: Trace
    nodes: tuple[Node, ...]
    start_times: StartTimes
    known: LawKnowledge
    price_per_hour: float  # of one replica

    @property
    def profile(self) -> CapacityFacts:
        """The profile of one replica under the usual lengths."""
        return capacity_facts(self.known)

    @property
    def rates(self) -> tuple[tuple[float, float], ...]:
        """Requests per second of one replica by percentile, the strictest first, under the usual lengths."""
        capacity = self.known.capacity(self.known.prompts.mean, self.known.answers.mean)
        return capacity.rates if capacity else ()

    @property
    def mean_need(self) -> float:
        """Replicas that the mean load needs."""
        return len(self.trace.requests) / self.trace.duration_s / self.profile.requests_per_second

    @property
    def initial_replicas(self) -> int:
        """Replicas for the first five minutes, with a fifth to spare."""
        first = sum(request.arrival_s < SIZED_FOR_S for request in self.trace.requests)
        return max(1, math.ceil(1.2 * first / SIZED_FOR_S / self.profile.requests_per_second))

    def deployment(self, law: Controller, initial: int | None = None) -> SimulatedLLMDeployment:
        """Return the LLMDeployment under a law."""
        return SimulatedLLMDeployment(
            self.intent,
            self.checkpoint,
            self.trace,
            law,
            self.start_times,
            self.initial_replicas if initial is None else initial,
        )


@lru_cache(maxsize=2)
def _trace_of(scenario: Scenario) -> Trace:
    if scenario.client is not None:
        return client_traffic(scenario.client, scenario.rate_factor)
    if scenario.kind:
        return kind_traffic(scenario.kind)
    with gzip.open(scenario.trace, "rt") as lines:
        trace = parse_trace(lines, scenario.trace.name)
    return window(trace, *scenario.cut_s) if scenario.cut_s else trace


@lru_cache(maxsize=2)
def prepared(scenario: Scenario, seed: int) -> PreparedScenario:
    """Return the scenario with its requests resampled by `seed`; 0: as recorded."""
    usual = _trace_of(scenario)  # what a spec says of lengths does not depend on the seed
    factor = 1.0 if scenario.client is not None else scenario.rate_factor
    trace = resampled(at_rate(usual, factor, seed), seed)
    prompts = _lengths([request.input_tokens for request in usual.requests])
    answers = _lengths([request.output_tokens for request in usual.requests])
    ttft, tpot = Objective(PERCENTILE, scenario.ttft_ms), Objective(PERCENTILE, scenario.tpot_ms)
    intent = Intent(
        uid=f"uid-{scenario.name}",
        namespace="serving",
        name=scenario.name,
        generation=1,
        created_at=1_800_000_000.0,
        model_uri=f"image:///models/{scenario.model}",
        served_name=scenario.name,
        max_model_len=scenario.max_model_len,
        max_running_requests=scenario.max_running,
        ttft=ttft,
        tpot=tpot,
        allowed_skus=(scenario.sku,),
        denied_skus=(),
        mig=MIGPolicy.FORBIDDEN if scenario.profile == WHOLE_GPU else MIGPolicy.REQUIRED,
        min_replicas=1,
        max_replicas=MOST_REPLICAS,
        paused=False,
        traffic=Traffic(None, prompts, answers),
    )
    checkpoint = well_known_facts(known_model(scenario.model))
    prices = Prices({})
    setup = EngineSetups([(intent, checkpoint)], prices).setup(intent.uid, scenario.shape)
    start_times = _start_times(scenario)
    known = LawKnowledge(intent, setup, prompts, answers, start_times.mean_s)
    price_per_hour = prices.required_replica_hour(*scenario.shape.key)
    return PreparedScenario(
        scenario, intent, checkpoint, trace, _nodes(scenario), start_times, known, price_per_hour
    )


def _lengths(tokens: list[int]) -> Lengths:
    """Return a lognormal distribution with the mean and, as far as there is one, the P90 of these."""
    mean, p90 = sum(tokens) / len(tokens), sorted(tokens)[int(0.9 * (len(tokens) - 1))]
    return Lengths(mean, min(max(p90, mean), MOST_P90 * mean))


def _start_times(scenario: Scenario) -> StartTimes:
    """Return start times with the scenario's mean: the image is there, warm-up takes 20 s of it."""
    return StartTimes(
        1.0, Delay(0.0), Delay(scenario.start_s - 22.0, scenario.start_cv), Delay(20.0, 0.2), 1.0
    )


def _nodes(scenario: Scenario) -> tuple[Node, ...]:
    each = GPUS_PER_NODE * SLICES[scenario.profile]
    resource = f"nvidia.com/{scenario.node}"
    return tuple(
        Node(f"node-{place}", scenario.sku, scenario.sku, True, ((resource, each),), gpus=GPUS_PER_NODE)
        for place in range(math.ceil(MOST_REPLICAS / each))
    )
