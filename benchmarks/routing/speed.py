"""Processor time of one decision: 100 replicas, a prompt of 100,000 tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from tangram.routing.pick import RoutingRefusal, pick
from tangram.routing.replica import ReplicaLoads, ReplicaRates
from tangram.routing.request import RoutedRequest, prefix_blocks

REPLICAS, PROMPT_TOKENS, BYTES_PER_TOKEN = 100, 100_000, 4
RATES = ReplicaRates(60_000.0, 0.004, 2e-5, 3e-8, 1e-9, kv_tokens=500_000, tpot_objective_s=0.05)


@dataclass(frozen=True)
class DecisionTimes:
    """Median processor milliseconds."""

    hash_ms: float  # of the prompt
    pick_ms: float
    start_ms: float  # `ReplicaLoads.started`


def decision_times(runs: int = 200) -> DecisionTimes:
    """Measure with loads on all replicas, and the prompt's beginning on half of them."""
    loads = ReplicaLoads()
    loads.set_replicas({f"10.0.0.{n}:8000": RATES for n in range(REPLICAS)})
    prompt = bytes(range(256)) * (PROMPT_TOKENS * BYTES_PER_TOKEN // 256)
    blocks = prefix_blocks(prompt)
    for place in range(REPLICAS):
        held = blocks[: len(blocks) * place // REPLICAS] if place % 2 else ()
        request = RoutedRequest("m", PROMPT_TOKENS, 500, held)
        loads.started(f"10.0.0.{place}:8000", request, 0.0)
    request = RoutedRequest("m", PROMPT_TOKENS, 500, blocks)
    hashed = _median_ms(lambda: prefix_blocks(prompt), runs)
    picked = _median_ms(lambda: pick(request, loads, 0.1), runs)
    choice = pick(request, loads, 0.1)
    if isinstance(choice, RoutingRefusal):
        raise TypeError(choice.cause)
    started = _median_ms(lambda: loads.started(choice.address, request, 0.1), runs)
    return DecisionTimes(hashed, picked, started)


def _median_ms(call: Callable[[], object], runs: int) -> float:
    times = []
    for _ in range(runs):
        begin = time.process_time_ns()
        call()
        times.append((time.process_time_ns() - begin) / 1e6)
    return median(times)
