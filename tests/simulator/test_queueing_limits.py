"""Runs of the simulator in the limits where queueing theory has closed formulas.

A replica with one slot serves one request at a time: Poisson arrivals make it an M/G/1 queue, whose mean wait
is that of Pollaczek and Khinchine, and the wait of each request follows from the one before (Lindley). With k
slots, steps of constant time and geometric answers it is nearly an M/M/k queue: Erlang's C. Random routing
splits Poisson arrivals into independent ones.

The formulas are means over long times. The waits of a few thousand simulated requests are compared with a
recursion over these very requests, exactly; that recursion is compared with the formula over many requests.

Arrivals are scaled to their rate: at a load of 0.8, a hundredth more load is a twentieth more wait.
"""

import heapq
import math
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean

import pytest

from tangram.capacity.load.traffic import SimulatedRequest, gap, uniforms
from tangram.capacity.steps.decode_runs import DecodeTimes
from tangram.capacity.steps.step_model import StepTime
from tangram.catalog.prices import Prices
from tangram.simulator import run as runs
from tangram.simulator.cluster.engine_setups import EngineSetups
from tangram.simulator.run import SimulationSettings, run
from tangram.simulator.serving.gateway import Gateway, Router
from tangram.simulator.traffic.trace import Trace
from tests.support.fleet import FACTS_8B, shape
from tests.support.simulated_fleets import Schedule, h100_nodes, served, served_intent

SIMULATED, MANY = 12_000, 200_000  # requests
SEED = 3
pytestmark = pytest.mark.slow
ANY = {"ttft": None, "tpot": None, "max_request_s": 86_400}  # neither judged nor ended early


def poisson(rate, lengths, count, seed):
    """Requests at `rate` whose lengths (prompt, answer) are drawn by `lengths` of a uniform number."""
    gaps, draws = uniforms(seed), uniforms(seed + 1)
    arrivals = tuple(accumulate(gap(next(gaps), 1.0, 1.0) for _ in range(count)))
    scale = count / rate / arrivals[-1]
    return Trace(tuple(SimulatedRequest(scale * at, *lengths(next(draws))) for at in arrivals))


def mean_ttft_s(trace, replicas=1, **intent_changes):
    deployment = served(
        trace,
        Schedule([(0, replicas)], interval_s=1e6),
        intent_changes=ANY | intent_changes,
        initial_replicas=replicas,
    )
    settings = SimulationSettings(h100_nodes(replicas), seed=SEED, round_s=1e6, scrape_interval_s=1e6)
    result = run((deployment,), replace(settings, router=Router.RANDOM)).deployments[0].attainment
    assert dict(result.verdicts) == {"attained": len(trace.requests)}
    return result.ttft_s.mean


def alone_s(setup, request):
    """Seconds of steps that a request takes alone, and its TTFT."""
    ttft_s, tpot_s = setup.idle_latency_s(request.input_tokens, request.output_tokens)
    return ttft_s - setup.request_s + tpot_s * (request.output_tokens - 1), ttft_s


def pollaczek_khinchine_s(rate, services):
    load = rate * fmean(services)
    return rate * fmean(service * service for service in services) / (2 * (1 - load))


def lindley_s(arrivals, services):
    """The mean wait of these very requests at one server."""
    waits, free_at = [], 0.0
    for arrival, service in zip(arrivals, services, strict=True):
        waits.append(max(0.0, free_at - arrival))
        free_at = max(free_at, arrival) + service
    return fmean(waits)


@pytest.fixture(scope="module")
def one_slot():
    intent = served_intent(max_running_requests=1)
    return EngineSetups([(intent, FACTS_8B)], Prices({})).setup(intent.uid, shape())


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_slot_with_equal_requests_waits_as_an_m_d_1_queue(one_slot, load):
    service, ttft_s = alone_s(one_slot, SimulatedRequest(0.0, 700, 100))

    def requests(count):
        trace = poisson(load / service, lambda _: (700, 100), count, 11)
        return trace, lindley_s([request.arrival_s for request in trace.requests], [service] * count)

    trace, waited_s = requests(SIMULATED)
    assert mean_ttft_s(trace, max_running_requests=1) - ttft_s == pytest.approx(waited_s, rel=1e-6)
    _, mean_s = requests(MANY)
    assert mean_s == pytest.approx(pollaczek_khinchine_s(load / service, [service]), rel=0.03)


def routed(trace, replicas):
    """The replica of each request, as the gateway of a run of seed SEED sends them at random."""
    picked = []

    class Endpoint:
        def __init__(self, place):
            self.place, self.replica = place, self

        def send(self, _request, _at):
            picked.append(self.place)
            return 0

    endpoints = [Endpoint(place) for place in range(replicas)]
    gateway = Gateway(endpoints, lambda _pod: None, 10_000, Router.RANDOM, 0.0, SEED * 1_000_003)
    for request in trace.requests:
        gateway.accept(request, request.arrival_s)
    return picked


def test_random_routing_makes_each_replica_an_m_g_1_queue(one_slot):
    def lengths(uniform):
        return (700, 30) if uniform < 0.8 else (2000, 300)

    kinds = [alone_s(one_slot, SimulatedRequest(0.0, *lengths(uniform))) for uniform in (0.0, 0.9)]
    rate = 0.6 / fmean([kinds[0][0]] * 4 + [kinds[1][0]])

    def requests(count):
        """Requests, and means of what the recursion and the formula say of them."""
        trace = poisson(3 * rate, lengths, count, 21)
        alone = [kinds[request.output_tokens == 300] for request in trace.requests]
        at_replica = [[], [], []]
        for request, (service, _), place in zip(trace.requests, alone, routed(trace, 3), strict=True):
            at_replica[place].append((request.arrival_s, service))
        waited_s = sum(len(queue) * lindley_s(*zip(*queue, strict=True)) for queue in at_replica) / count
        services, ttfts = zip(*alone, strict=True)
        return trace, waited_s, fmean(ttfts), pollaczek_khinchine_s(rate, services)

    trace, waited_s, alone_ttft_s, _ = requests(SIMULATED)
    mean = mean_ttft_s(trace, replicas=3, max_running_requests=1)
    assert mean - alone_ttft_s == pytest.approx(waited_s, rel=1e-6)
    _, mean_s, _, formula_s = requests(MANY)
    assert mean_s == pytest.approx(formula_s, rel=0.03)


@dataclass(frozen=True)
class ConstantSteps:
    """Every step takes as long, whatever it computes."""

    seconds: float
    footprint: object

    def step_s(self, _decode, _context, _prefill_tokens=0, _prefill_context=0):
        return StepTime(0.0, 0.0, 0.0, self.seconds, 0.0)


def erlang_c_s(slots, rate, service):
    """The mean wait in an M/M/k queue."""
    offered = rate * service
    waits = offered**slots / math.factorial(slots) / (1 - offered / slots)
    return (
        waits / (sum(offered**n / math.factorial(n) for n in range(slots)) + waits) / (slots / service - rate)
    )


def waited_in_steps_s(trace, slots, step):
    """The mean wait of these very requests at slots that begin and end with the steps of one engine: a
    request that comes in the middle of a step waits for its end.
    """
    free_at, first_step_at, idle_at, waits = [0.0] * slots, 0.0, 0.0, []
    for request in trace.requests:
        at = request.arrival_s
        if at >= idle_at:
            first_step_at = begin = at
        else:
            next_step_at = first_step_at + step * math.ceil((at - first_step_at) / step)
            begin = max(next_step_at, free_at[0])
        end = begin + step * request.output_tokens
        heapq.heapreplace(free_at, end)
        idle_at = max(idle_at, end)
        waits.append(begin - at)
    return fmean(waits)


@pytest.mark.parametrize(("slots", "load"), [(1, 0.5), (4, 0.7), (16, 0.8)])
def test_slots_with_geometric_answers_wait_as_an_m_m_k_queue(monkeypatch, slots, load):
    step, mean_tokens = 0.01, 200

    class Constant(EngineSetups):
        def setup(self, owner_uid, wanted):
            setup = super().setup(owner_uid, wanted)
            steps = ConstantSteps(step, setup.steps.footprint)
            return replace(setup, steps=steps, times=DecodeTimes(steps), request_s=0.0)

    monkeypatch.setattr(runs, "EngineSetups", Constant)
    rate = load * slots / (step * mean_tokens)

    def lengths(uniform):
        return 1, 1 + int(math.log(uniform) / math.log(1 - 1 / mean_tokens))

    def requests(count):
        trace = poisson(rate, lengths, count, 31)
        return trace, waited_in_steps_s(trace, slots, step)

    trace, waited_s = requests(SIMULATED)
    # By rounding, a request may come before or after the end of a step.
    assert mean_ttft_s(trace, max_running_requests=slots) - step == pytest.approx(waited_s, rel=1e-4)
    trace, mean_s = requests(MANY)
    service = step * fmean(request.output_tokens for request in trace.requests)
    assert mean_s == pytest.approx(erlang_c_s(slots, rate, service), rel=0.04)
