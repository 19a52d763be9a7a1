"""Simulated engines behind an admission queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.routing.fleet import Engine, TenantRequest, report_events
from tangram.routing.admission import AdmissionQueue, Dispatched
from tangram.routing.pick import RoutingRefusal
from tangram.routing.replica import ReplicaLoads
from tangram.routing.tenants import HeldRequest, TenantPolicy

TICK_S = 0.01  # in which a gateway hears of first tokens and ends while requests wait


@dataclass
class AdmittedRun:
    """What became of a traffic: times of those that were served, refusals of the others."""

    dispatched: dict[int, Dispatched] = field(default_factory=dict)
    refused: dict[int, RoutingRefusal] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)
    ttft_s: dict[int, float] = field(default_factory=dict)
    tpot_s: dict[int, float] = field(default_factory=dict)

    def attainment(
        self, requests: Sequence[TenantRequest], tenant: str, ttft_s: float, tpot_s: float
    ) -> float:
        """Return which share of a tenant's requests met both objectives."""
        own = [number for number, request in enumerate(requests) if request.tenant == tenant]
        met = [n for n in own if n in self.ttft_s and self.ttft_s[n] <= ttft_s and self.tpot_s[n] <= tpot_s]
        return len(met) / len(own)


class _Listener:
    """Passes what engines report to the queue."""

    def __init__(self, queue: AdmissionQueue, run: AdmittedRun) -> None:
        self.queue, self.run = queue, run

    def pick(self, number: int, request: object, now: float) -> str:
        raise NotImplementedError

    def first_token(self, number: int, now: float) -> None:
        self.queue.first_token(self.run.dispatched[number], now)

    def ended(self, number: int, now: float, answer_tokens: int) -> None:
        self.queue.ended(self.run.dispatched[number], now, answer_tokens)


def serve_admitted(
    engines: list[Engine],
    requests: Sequence[TenantRequest],
    policies: Mapping[str, TenantPolicy],
    deadline_s: float,
) -> AdmittedRun:
    """Serve a traffic, sorted by arrival, to its end; every first token is due `deadline_s` after arrival."""
    loads = ReplicaLoads()
    loads.set_replicas({engine.address: engine.rates for engine in engines})
    queue, run = AdmissionQueue(loads, policies), AdmittedRun()
    listener, by_address = _Listener(queue, run), {engine.address: engine for engine in engines}
    numbers: dict[int, int] = {}  # id of a held request -> its number

    def send_all(at: float) -> None:
        report_events(engines, requests, listener, at)
        for held in queue.late(at):
            run.late.add(numbers[id(held)])
        while sent := queue.next(at):
            number = numbers[id(sent.held)]
            run.dispatched[number] = sent
            engine = by_address[sent.choice.address]
            engine.replica.send(requests[number].sent, at)
            engine.requests.append(number)

    now, kept = 0.0, []
    for number, request in enumerate(requests):
        at = request.sent.arrival_s
        while queue.held and now + TICK_S < at:
            now += TICK_S
            send_all(now)
        now = at
        send_all(now)
        held = HeldRequest(request.routed, 4 * request.sent.input_tokens, at, at + deadline_s)
        numbers[id(held)] = number
        kept.append(held)
        if refusal := queue.offer(held, at):
            run.refused[number] = refusal
        send_all(now)
    while queue.held:
        now += TICK_S
        send_all(now)
    for engine in engines:
        engine.replica.drain()
        for place, number in enumerate(engine.requests):
            sent, times = requests[number].sent, engine.replica.request_times(place)
            run.ttft_s[number] = times.first_token_s - sent.arrival_s
            run.tpot_s[number] = (times.finished_s - times.first_token_s) / max(1, sent.output_tokens - 1)
    return run
