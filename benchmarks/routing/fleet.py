"""Engines of a fleet on the capacity model, with prefix caches, and a policy that deals requests to them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

from tangram.capacity.load.engine_events import EngineEventKind, EngineEvents
from tangram.capacity.load.prefix_cache import BLOCK_TOKENS, PrefixCache
from tangram.capacity.load.replica_simulation import ReplicaSimulation
from tangram.capacity.load.traffic import SimulatedRequest
from tangram.capacity.sizing.assess import Assessor, FittingShape
from tangram.capacity.sizing.request import SizingRequest
from tangram.capacity.steps.decode_runs import DecodeTimes
from tangram.catalog import known_model
from tangram.catalog.prices import Prices
from tangram.fleet import WHOLE_GPU, Shape
from tangram.routing.rates import replica_rates
from tangram.routing.replica import ReplicaRates
from tangram.routing.request import RoutedRequest

MODEL = "Llama-3.1-8B"
SHAPES = {
    "h100": Shape("H100-80GB-SXM", WHOLE_GPU, 1, "fp8"),
    "h200": Shape("H200-141GB-SXM", WHOLE_GPU, 1, "fp8"),
    "3g": Shape("H200-141GB-SXM", "3g.71gb", 1, "fp8"),
    "1g": Shape("H200-141GB-SXM", "1g.35gb", 1, "fp8"),
}
# A replica with the engine of one shape and the rates of another: slower than anything predicts.
RATES_OF = {"h100 at half speed": "h100"}
SHAPES["h100 at half speed"] = SHAPES["3g"]
GPUS = {
    "h100 at half speed": 1.0,
    "h100": 1.0,
    "h200": 1.0,
    "3g": 0.5,
    "1g": 0.25,
}  # dominant shares: memory slices of eight
TPOT_OBJECTIVE_S = 0.05


@dataclass(frozen=True)
class TenantRequest:
    """A request of a traffic."""

    sent: SimulatedRequest
    tenant: str = ""

    @property
    def routed(self) -> RoutedRequest:
        """What a gateway knows of it; its client allows an answer twice as long as it is."""
        sent = self.sent
        error = 1 + 0.2 * math.sin(sent.arrival_s * 1000)  # of an estimate from bytes
        return RoutedRequest(
            MODEL,
            max(1, round(sent.input_tokens * error)),
            2 * sent.output_tokens,
            sent.prefix_blocks,
            self.tenant,
            float(BLOCK_TOKENS),
        )


@dataclass(eq=False)
class Engine:
    """A replica, and which request each of its numbers is."""

    address: str
    rates: ReplicaRates
    replica: ReplicaSimulation
    events: EngineEvents
    requests: list[int] = field(default_factory=list)


class Policy(Protocol):
    """What deals requests to replicas."""

    def pick(self, number: int, request: RoutedRequest, now: float) -> str:
        """Return the address for a request that is sent now."""

    def first_token(self, number: int, now: float) -> None:
        """A request has its first token."""

    def ended(self, number: int, now: float, answer_tokens: int) -> None:
        """A request has ended."""


@dataclass(frozen=True)
class Served:
    """Times of the requests of one run, in their order; seconds."""

    ttft_s: list[float]
    tpot_s: list[float]
    output_tokens_per_s: float  # of answers that ended before the last request arrived
    computed_share: float  # of prompt tokens; the others were cached

    @property
    def mean_ttft_s(self) -> float:
        """Mean time to first token."""
        return sum(self.ttft_s) / len(self.ttft_s)

    def ttft_quantile_s(self, share: float) -> float:
        """Time to first token of that share of requests."""
        return sorted(self.ttft_s)[int(share * (len(self.ttft_s) - 1))]


@cache
def fitted_shape(kind: str) -> FittingShape:
    """Return the engine of a shape; raises `TypeError` where the model does not fit."""
    architecture = known_model(MODEL)
    if architecture is None:
        raise LookupError(MODEL)
    request = SizingRequest(1000, 250, 1.0, engine="vllm", max_running=256, max_model_len=65536)
    fitted = Assessor(architecture, Prices()).fit(SHAPES[kind], request)
    if not isinstance(fitted, FittingShape):
        raise TypeError(fitted.message)
    return fitted


@cache
def decode_times(kind: str) -> DecodeTimes:
    """Return the decode times that replicas of a shape share."""
    return DecodeTimes(fitted_shape(kind).model)


def engines_of(kinds: Iterable[str]) -> list[Engine]:
    """Return idle engines."""
    engines = []
    for place, kind in enumerate(kinds):
        fitted, events = fitted_shape(kind), EngineEvents()
        replica = ReplicaSimulation(
            fitted.model, fitted.limits, decode_times(kind), events, PrefixCache(fitted.limits.kv_tokens)
        )
        rates = replica_rates(fitted.model, fitted.limits, tpot_objective_s=TPOT_OBJECTIVE_S, gpus=GPUS[kind])
        engines.append(Engine(f"{kind}-{place}", rates, replica, events))
    return engines


def report_events(
    engines: Iterable[Engine], requests: Sequence[TenantRequest], policy: Policy, at: float
) -> None:
    """Advance all engines and tell the policy what happened up to `at`, in the order of time."""
    happened: list[tuple[float, int, EngineEventKind, int]] = []
    for engine in engines:
        engine.replica.advance(at)
        for event in engine.events.until(at):
            if event.kind is not EngineEventKind.TOKEN_GAPS:
                happened.append((event.at, len(happened), event.kind, engine.requests[event.request]))
    heapq.heapify(happened)
    while happened:
        when, _, kind, number = heapq.heappop(happened)
        if kind is EngineEventKind.FIRST_TOKEN:
            policy.first_token(number, when)
        else:
            policy.ended(number, when, requests[number].sent.output_tokens)


def serve(engines: list[Engine], policy: Policy, requests: Sequence[TenantRequest]) -> Served:
    """Serve a traffic, sorted by arrival, to its end."""
    by_address = {engine.address: engine for engine in engines}
    for number, request in enumerate(requests):
        at = request.sent.arrival_s
        report_events(engines, requests, policy, at)
        engine = by_address[policy.pick(number, request.routed, at)]
        engine.replica.send(request.sent, at)
        engine.requests.append(number)
    for engine in engines:
        engine.replica.drain()
    return served(engines, requests)


def served(engines: Iterable[Engine], requests: Sequence[TenantRequest]) -> Served:
    """Return the times of requests that have all ended, from their arrival at the gateway on."""
    ttft, tpot, tokens = [0.0] * len(requests), [0.0] * len(requests), 0
    last_arrival_s = requests[-1].sent.arrival_s
    for engine in engines:
        for place, number in enumerate(engine.requests):
            sent, times = requests[number].sent, engine.replica.request_times(place)
            ttft[number] = times.first_token_s - sent.arrival_s
            gaps = max(1, sent.output_tokens - 1)
            tpot[number] = (times.finished_s - times.first_token_s) / gaps
            tokens += sent.output_tokens if times.finished_s <= last_arrival_s else 0
    computed = sum(engine.replica.prefill_tokens for engine in engines)
    sent_tokens = sum(request.sent.input_tokens for request in requests)
    return Served(ttft, tpot, tokens / last_arrival_s, computed / sent_tokens)
