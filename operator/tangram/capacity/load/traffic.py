"""Requests to simulate: gaps, prompts and answers drawn from a seed, the same on every machine."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from tangram.fleet import Lengths
from tangram.fleet.lengths import around

Tokens = float | Lengths  # a number is a mean, with P90 twice that
# Of the lengths that the table of waits was simulated with (`queueing`): P90 = 2 x mean.
LENGTH_CV2 = around(1.0).cv2

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """One request: arrival, prompt and answer in tokens."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    prefix_blocks: tuple[int, ...] = ()  # ids of its prompt's blocks (`prefix_cache`), from the beginning on


def uniforms(seed: int) -> Iterator[float]:
    """Yield numbers in (0, 1) without end: SplitMix64 (Steele, Lea, Flood 2014)."""
    state = seed & _MASK
    while True:
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        yield (((mixed ^ (mixed >> 31)) >> 11) + 0.5) / (1 << 53)


def lengths_of(tokens: Tokens) -> Lengths:
    """Return lengths as they are, or around the mean that a number is."""
    return tokens if isinstance(tokens, Lengths) else around(tokens)


def gap(uniform: float, mean: float, cv: float) -> float:
    """Return the quantile `uniform` of Weibull gaps: cv 1 is Poisson, 0 a metronome, production 1 to 13.

    ServeGen (arXiv 2505.09999) finds Weibull and Gamma gaps in production traffic.
    """
    if cv < 0.05:
        return mean
    shape = _weibull_shape(cv)
    return float(mean / math.gamma(1 + 1 / shape) * (-math.log(uniform)) ** (1 / shape))


@cache
def _weibull_shape(cv: float) -> float:
    """Return the shape whose coefficient of variation is `cv`, by bisection on its logarithm."""
    low, high = math.log(0.1), math.log(30.0)
    for _ in range(60):
        middle = (low + high) / 2
        first, second = math.gamma(1 + math.exp(-middle)), math.gamma(1 + 2 * math.exp(-middle))
        low, high = (middle, high) if second / first**2 - 1 > cv * cv else (low, middle)
    return math.exp(low)


def open_traffic(
    count: int,
    rate: float,
    input_tokens: Tokens,
    output_tokens: Tokens,
    cv: float,
    seed: int,
    longest: int | None = None,
) -> list[SimulatedRequest]:
    """Return `count` requests at `rate` per second, with prompts and answers of the given lengths.

    The sample is scaled to its means: near the peak rate half a per cent of load matters. Prompt and answer
    together are cut at `longest` tokens.
    """
    times = accumulate(_scaled(uniforms(seed), count, 1 / rate, lambda u: gap(u, 1 / rate, cv)))
    prompt_lengths, answer_lengths = lengths_of(input_tokens), lengths_of(output_tokens)
    prompts = _scaled(uniforms(seed + 1), count, prompt_lengths.mean, prompt_lengths.quantile)
    answers = _scaled(uniforms(seed + 2), count, answer_lengths.mean, answer_lengths.quantile)
    requests = []
    for now, prompt, answer in zip(times, prompts, answers, strict=True):
        prompt_tokens = max(1, round(prompt))
        answer_tokens = max(1, round(answer))
        if longest is not None:
            prompt_tokens = min(prompt_tokens, longest - 1)
            answer_tokens = min(answer_tokens, longest - prompt_tokens)
        requests.append(SimulatedRequest(now, prompt_tokens, answer_tokens))
    return requests


def _scaled(
    stream: Iterator[float], count: int, mean: float, quantile: Callable[[float], float]
) -> list[float]:
    values = [quantile(next(stream)) for _ in range(count)]
    scale = mean * count / sum(values) if values else 1.0
    return [value * scale for value in values]
