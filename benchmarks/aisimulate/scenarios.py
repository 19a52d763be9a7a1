"""What both simulators run, step times, engines, requests and replicas over time, and what they say of it."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from benchmarks.autoscaling.scenarios import HERE as AUTOSCALING
from benchmarks.autoscaling.scenarios import PACKAGED
from benchmarks.linear_steps import LinearSteps
from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.load.traffic import SimulatedRequest, open_traffic
from tangram.capacity.memory.footprint import Footprint
from tangram.capacity.steps.step_model import StepTime
from tangram.simulator.traffic.resampling import window
from tangram.simulator.traffic.trace_lines import parse_trace

PROMPT_TOKENS, ANSWER_TOKENS = 1000, 200  # means of the Poisson scenarios
START_S = 60.0


@dataclass(frozen=True)
class AdditiveSteps:
    """Step times as AISimulate has them: of the prompts plus of the decodes. Seconds.

    The default is close to the calibrated model for Llama-3.1-8B on `A100-80GB-SXM:3g.40gb`.
    """

    prompt_token: float = 165e-6
    decode: float = 20e-3  # of a step in which any request decodes
    context_token: float = 0.17e-6  # of each decoding request

    @property
    def footprint(self) -> Footprint:
        """A model without attention windows."""
        return LinearSteps().footprint

    def step_s(
        self, decode: float, context: float, prefill_tokens: float = 0, prefill_context: float = 0
    ) -> StepTime:
        """Return a step whose time is all launches."""
        seconds = self.prompt_token * prefill_tokens
        if decode:
            seconds += self.decode + self.context_token * decode * context
        return StepTime(0.0, 0.0, 0.0, seconds, 0.0)

    def prefill_s(self, tokens: float, context: float = 0) -> float:
        """Return the seconds of a step of prompt tokens alone."""
        return self.step_s(0, 0, tokens, context).total


SLICE_STEPS = AdditiveSteps()
GPU_STEPS = AdditiveSteps(22e-6, 7e-3, 0.065e-6)  # likewise, on a whole H100-80GB-SXM
SLICE = EngineLimits(max_running=64, max_batched_tokens=2048, kv_tokens=156_480, block_tokens=16)
GPU = EngineLimits(max_running=64, max_batched_tokens=8192, kv_tokens=200_000, block_tokens=16)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Requests, the replicas that are ordered over time, and what they can do."""

    name: str
    requests: tuple[SimulatedRequest, ...]  # the first arrives at 0
    replicas: tuple[tuple[float, int], ...] = ((0.0, 1),)  # (from this second on, ordered), the first at 0
    limits: EngineLimits = SLICE
    steps: AdditiveSteps = SLICE_STEPS
    prefix_caching: bool = False
    ttft_s: float = 1.0
    tpot_s: float = 0.06

    @property
    def duration_s(self) -> float:
        """Until the last arrival; replicas are paid until then."""
        return self.requests[-1].arrival_s


@dataclass(frozen=True, slots=True)
class Outcome:
    """Attainment, latencies and cost of a scenario in one simulator."""

    attained: float  # share of all requests that met both objectives
    ttft_s: Sequence[float]  # P50, P90, P99
    tpot_s: Sequence[float]  # likewise, of answers of more than one token
    replica_hours: float


def scenarios() -> tuple[Scenario, ...]:
    """Return all scenarios."""
    few_blocks, small_steps = replace(SLICE, kv_tokens=32_000), EngineLimits(24, 256, SLICE.kv_tokens, 16)
    one = "one replica"
    return (
        Scenario(f"{one}, 1.5 requests/s", poisson(1.5)),
        Scenario(f"{one}, 2.5 requests/s", poisson(2.5)),
        Scenario(f"{one}, 3.5 requests/s", poisson(3.5)),
        Scenario(f"{one}, 2 requests/s, a fifth of the KV blocks", poisson(2.0), limits=few_blocks),
        Scenario(f"{one}, 2 requests/s, 24 slots, 256 tokens a step", poisson(2.0), limits=small_steps),
        Scenario("3 replicas, 20 minutes of conversations", conversations(600.0, 1800.0), ((0.0, 3),)),
        Scenario(
            "2 to 5 replicas, 8 minutes of conversations",
            conversations(600.0, 1080.0),
            ((0.0, 2), (60.0, 4), (180.0, 5), (300.0, 2), (390.0, 3)),
        ),
        Scenario(
            "4 replicas, 10 minutes of long prompts, prefix caching",
            long_prompts(0.0, 600.0),
            ((0.0, 4),),
            GPU,
            GPU_STEPS,
            prefix_caching=True,
            ttft_s=2.0,
        ),
    )


@cache
def poisson(rate: float, seconds: float = 480.0) -> tuple[SimulatedRequest, ...]:
    """Return Poisson arrivals at a rate per second."""
    drawn = open_traffic(round(rate * seconds), rate, PROMPT_TOKENS, ANSWER_TOKENS, 1.0, seed=1, longest=8192)
    return _from_zero(drawn)


def conversations(begin_s: float, end_s: float) -> tuple[SimulatedRequest, ...]:
    """Return a part of the Azure conversation trace of 2023."""
    return _part_of(PACKAGED / "azure2023_conv.csv.gz", begin_s, end_s)


def long_prompts(begin_s: float, end_s: float) -> tuple[SimulatedRequest, ...]:
    """Return a part of the Mooncake conversation trace, which names the blocks that prompts share."""
    return _part_of(AUTOSCALING / "mooncake_conversation_00-30min.jsonl.gz", begin_s, end_s)


@cache
def _part_of(file: Path, begin_s: float, end_s: float) -> tuple[SimulatedRequest, ...]:
    with gzip.open(file, "rt") as lines:
        return _from_zero(window(parse_trace(lines, file.name), begin_s, end_s).requests)


def _from_zero(requests: Iterable[SimulatedRequest]) -> tuple[SimulatedRequest, ...]:
    """Move the first arrival to 0, as AISimulate does."""
    moved = tuple(requests)
    return tuple(replace(request, arrival_s=request.arrival_s - moved[0].arrival_s) for request in moved)
