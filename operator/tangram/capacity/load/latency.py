"""TTFT and TPOT of one replica under open load, and the highest load that meets objectives.

Means come from `batching`; the table of `queueing` adds the effect of random arrivals.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

from tangram.capacity.load.batching import UniformLoad
from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.load.queueing import BatchClass, Curve, table
from tangram.capacity.load.simulate import SimResult, simulate
from tangram.capacity.load.traffic import LENGTH_CV2, Tokens, lengths_of, open_traffic
from tangram.capacity.steps.clock import clock
from tangram.capacity.steps.decode_runs import Steps
from tangram.capacity.steps.step_model import StepModel
from tangram.fleet import PERCENTILES, Objective

# Spreads of prompt length and of wait add up like independent ones do: with exponent 2 if both were normal,
# less of the smaller for what is skewed.
ADD = 2.5
HEADROOM = 0.01  # share of the peak rate that is never used: at the peak the queue has no bound
_COLUMN = {percentile: 1 + place for place, percentile in enumerate(PERCENTILES)}


@dataclass(frozen=True, slots=True)
class Percentiles:
    """A distribution in seconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float

    def at(self, percentile: int) -> float:
        """Return one of 50, 90, 95, 99. Raises `KeyError` for others."""
        return dict(zip(PERCENTILES, (self.p50, self.p90, self.p95, self.p99), strict=True))[percentile]


NEVER = Percentiles(math.inf, math.inf, math.inf, math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency of one replica at a request rate; infinite where it cannot carry the rate."""

    ttft_s: Percentiles
    tpot_s: Percentiles
    utilisation: float  # rate over the highest rate that the replica carries
    concurrency: float  # requests that decode, mean
    peak_rate: float  # requests per second with every slot taken


def simulate_open(
    model: Steps,
    limits: EngineLimits,
    input_tokens: Tokens,
    output_tokens: Tokens,
    rate: float,
    cv: float = 1.0,
    requests: int = 10_000,
    seed: int = 1,
) -> tuple[Latency, SimResult]:
    """Return what `ReplicaUnderLoad.under` predicts, by simulation; the first tenth is not counted.

    Requests too long for the cache are cut, as an engine with that limit would refuse them.
    """
    sent = open_traffic(requests, rate, input_tokens, output_tokens, cv, seed, _longest(limits))
    result = simulate(model, limits, sent)
    counted = slice(requests // 10, None)
    answers = [tpot for tpot, r in zip(result.tpot_s, sent, strict=True) if r.output_tokens > 1]
    peak = ReplicaUnderLoad(model, limits, input_tokens, output_tokens, cv).peak
    outside = _outside_s(model)
    latency = Latency(
        percentiles([outside + ttft for ttft in result.ttft_s[counted]]),
        percentiles(answers[counted]),
        rate / peak if peak else math.inf,
        result.mean_running,
        peak,
    )
    return latency, result


def _outside_s(model: Steps) -> float:
    """Seconds of TTFT that an engine spends outside of steps: HTTP, tokenising."""
    return model.coefficients.request_s if isinstance(model, StepModel) else 0.0


def _longest(limits: EngineLimits) -> int | None:
    """Tokens of the longest request that the cache holds."""
    return None if limits.kv_blocks is None else limits.kv_blocks * limits.block_tokens


def percentiles(values: "tuple[float, ...] | list[float]") -> Percentiles:
    """Return mean and percentiles of the values; zeros without values."""
    if not values:
        return Percentiles(0.0, 0.0, 0.0, 0.0, 0.0)
    ordered = sorted(values)
    ranks = (min(len(ordered) - 1, len(ordered) * percentile // 100) for percentile in PERCENTILES)
    return Percentiles(fmean(ordered), *(ordered[rank] for rank in ranks))


class ReplicaUnderLoad:
    """One replica and its traffic: prepared once, evaluated at many rates."""

    def __init__(
        self, model: Steps, limits: EngineLimits, prompts: Tokens, answers: Tokens, cv: float = 1.0
    ) -> None:
        prompt_lengths, answer_lengths = lengths_of(prompts), lengths_of(answers)
        input_tokens, output_tokens = prompt_lengths.mean, answer_lengths.mean
        # What runs is longer than what arrives: a long answer, or token of a long prompt, is met more often.
        prompt_context = input_tokens * (1 + prompt_lengths.cv2) / 2
        context = input_tokens + output_tokens * (1 + answer_lengths.cv2) / 2
        stages = model.footprint.pipeline_parallel
        self.shape = UniformLoad(
            clock(model, context), limits, input_tokens, output_tokens, prompt_context, stages
        )
        self.slots = limits.slots(context + limits.block_tokens / 2)
        self.cv = cv
        self.cv2 = prompt_lengths.cv2, answer_lengths.cv2
        self.outside_s = _outside_s(model)
        full = self.shape
        # Share of slots that the cache is too small for: some prompts are computed twice.
        short = 1 - self.slots / limits.slots(0)
        if short:
            again = min(1.0, 4 * short) * _recomputed(input_tokens, output_tokens)
            full = replace(full, input_tokens=input_tokens + again)
        self.most = full.decoding_of(self.slots, 0.0) if self.slots >= 1 else 0.0
        self.full_s = full.step_s(self.most) if self.most else 0.0
        self.peak = full.prompts(self.most) / self.full_s if self.most else 0.0
        self.prompts = input_tokens, *(prompt_lengths.quantile(p / 100) for p in PERCENTILES)
        self.shortest_s = self.shape.mixed_s(1.0, 0.0)  # no step is shorter than one request's alone

    @property
    def alone_s(self) -> float:
        """Seconds of a request that is alone on the replica."""
        prompt = self.prompts[0]
        return self.shape.clock(0.0, prompt, prompt / 2) + self.shape.output_tokens * self.shortest_s

    def under(self, rate: float) -> Latency:
        """Return the latency at `rate` requests per second."""
        if not self.peak or rate >= self.peak:
            used = rate / self.peak if self.peak else math.inf
            return Latency(NEVER, NEVER, used, self.most, self.peak)
        moment = self.at(self.shape.decoding_at(rate, self.most))
        return Latency(
            Percentiles(*(moment.ttft_s(column) for column in range(5))),
            Percentiles(*(moment.tpot_s(column) for column in range(5))),
            moment.utilisation,
            moment.decoding,
            self.peak,
        )

    def max_rate(self, ttft: Objective | None = None, tpot: Objective | None = None) -> float:
        """Return the highest rate that meets objectives, 0 if even one request alone misses them."""
        if not self.peak:
            return 0.0
        low = self.at(0.0)
        if not low.meets(ttft, tpot):
            return 0.0
        high = self.at(self.shape.decoding_at((1 - HEADROOM) * self.peak, self.most))
        if high.meets(ttft, tpot):
            return high.utilisation * self.peak
        for _ in range(30):
            if high.utilisation - low.utilisation <= 1e-3:
                break
            middle = self.at((low.decoding + high.decoding) / 2)
            low, high = (middle, high) if middle.meets(ttft, tpot) else (low, middle)
        return low.utilisation * self.peak

    @cached_property
    def curve(self) -> Curve:
        """What random arrivals add to the means of this replica."""
        plain = min(self.full_s, self.shape.mixed_s(self.most, 0.0))
        slope = 2 - 2 * self.shape.mixed_s(self.most / 2, 0.0) / plain  # near the peak, where it matters
        prefill = 1 - plain / self.full_s
        prompt_cv2, answer_cv2 = self.cv2
        return table().curve(
            self.cv,
            BatchClass(self.slots, slope, prefill),
            wait=_wait_ratio(self.cv, prefill * prompt_cv2 + (1 - prefill) * answer_cv2),
            slowdown=math.sqrt((1 + prefill * prompt_cv2 + (1 - prefill) * LENGTH_CV2) / (1 + LENGTH_CV2)),
        )

    def at(self, decoding: float) -> "_Moment":
        """Return the replica at the load at which so many requests decode on average."""
        step = self.shape.step_s(decoding)
        used = self.shape.prompts(decoding) / step / self.peak if decoding else 0.0
        return _Moment(self, decoding, step, used)


def _wait_ratio(cv: float, cv2: float) -> float:
    """Return how much longer than in the table requests wait whose service varies by `cv2` (squared).

    Waits grow with the variances of arrivals and of services alike (Allen and Cunneen 1978). They shrink
    less, since steps and slots stay whole: the exponent was chosen by hand (benchmarks/length_spread.py).
    """
    ratio = (cv * cv + cv2) / (cv * cv + LENGTH_CV2)
    return max(ratio, math.pow(ratio, 0.75))


def _recomputed(input_tokens: float, output_tokens: float) -> float:
    """Tokens computed again per request while the cache is full.

    A prompt is admitted as soon as it fits and finds no room to grow: the simulation preempts 0.6 x answer /
    prompt times per request, mostly those that have just begun.
    """
    return 0.6 * output_tokens / input_tokens * (input_tokens + 0.1 * output_tokens)


class _Moment:
    """A replica under one load. Columns: 0 the mean, 1 to 4 the percentiles."""

    __slots__ = ("_first", "decoding", "replica", "step_s", "utilisation")

    def __init__(self, replica: ReplicaUnderLoad, decoding: float, step_s: float, utilisation: float) -> None:
        self.replica, self.decoding = replica, decoding
        self.step_s, self.utilisation = step_s, utilisation
        self._first: tuple[float, float, float] | None = None

    def ttft_s(self, column: int) -> float:
        """Seconds to the first token."""
        if self._first is None:
            self._first = self._first_token()
        mean, own_mean, wait_mean = self._first
        if not column:
            return mean
        replica = self.replica
        own = replica.shape.own_s(self.decoding, replica.prompts[column])
        by_chance = (replica.curve.wait(self.utilisation, column) - wait_mean) / replica.peak
        # No request is faster than the steps of a prompt of that length.
        return max(replica.outside_s + own, mean + _together(own - own_mean, by_chance))

    def _first_token(self) -> tuple[float, float, float]:
        """Return mean TTFT, seconds of the steps of a mean prompt, and the mean wait in departures."""
        replica, shape = self.replica, self.replica.shape
        busy = 1 - math.exp(-self.decoding)  # at an idle engine no request waits for the next step
        before = replica.outside_s + (busy / 2 + shape.queue_steps(self.decoding)) * self.step_s
        own = shape.own_s(self.decoding, replica.prompts[0])
        wait = replica.curve.wait(self.utilisation, 0)
        return before + own + wait / replica.peak, own, wait

    def tpot_s(self, column: int) -> float:
        """Seconds per token."""
        replica = self.replica
        more = replica.curve.slowdown(self.utilisation, column) * replica.full_s
        return max(replica.shortest_s, self.step_s + more)

    def meets(self, ttft: Objective | None, tpot: Objective | None) -> bool:
        """Whether both objectives are met."""
        if tpot and self.tpot_s(_COLUMN[tpot.percentile]) > tpot.seconds:
            return False
        return not ttft or self.ttft_s(_COLUMN[ttft.percentile]) <= ttft.seconds


def _together(first: float, second: float) -> float:
    """Add two deviations from a mean: larger than each, smaller than their sum."""
    size: float = (abs(first) ** ADD + abs(second) ** ADD) ** (1 / ADD)
    return math.copysign(size, first + second)
