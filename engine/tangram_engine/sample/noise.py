"""Random numbers that are a function of (seed, position, token) and of nothing else.

SplitMix64 is counter-based: number n of a stream is a hash of the stream's key plus n times an odd
constant. With one stream per (seed, position) and the token id as n, what a request draws depends
neither on the batch it is in nor on how often it was preempted.
Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, figure 17.
"""

from hashlib import blake2b

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
MASK = (1 << 64) - 1


def streams(seeds: Tensor, positions: Tensor) -> Tensor:
    """The keys of the streams from which the tokens at `positions` are drawn. int64 [N]."""
    golden = signed(GOLDEN)
    return _mix(_mix(seeds + golden) + positions * golden)


def derived_seed(engine_seed: int, request_id: str) -> int:
    """The seed of a request that brings none."""
    digest = blake2b(f"{engine_seed}:{request_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


class GumbelNoise:
    """Adding it to log-probabilities and taking the largest draws from the distribution."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        counters = [signed((token + 1) * GOLDEN & MASK) for token in range(vocab_size)]
        self._counters = torch.tensor(counters, dtype=torch.int64, device=device)

    def __call__(self, streams: Tensor) -> Tensor:
        """One row of noise per stream, int64 [N]: [N, vocabulary], float32, finite."""
        bits = _mix(streams[:, None] + self._counters)
        # 32 bits keep small numbers exact, and small ones win; the cap keeps the logarithm finite.
        uniform = ((_shift(bits, 32).float() + 0.5) * 2.0**-32).clamp_(max=1.0 - 2.0**-24)
        return -(-(-uniform).log1p_()).log_()


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's finalizer, on signed integers that wrap."""
    x = (x ^ _shift(x, 30)) * signed(FIRST)
    x = (x ^ _shift(x, 27)) * signed(SECOND)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's own is arithmetic on signed integers."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def signed(value: int) -> int:
    """The same 64 bits as a signed integer, which is what torch has."""
    return value - (1 << 64) if value >> 63 else value
