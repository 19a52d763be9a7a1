"""Lower bounds of the cost: replicas that start and stop at once, for nothing.

No law reaches them. They tell how much of the cost is due to starts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class VariantPrice:
    """One way to serve a model: what a replica carries and costs."""

    requests_per_second: float
    price_per_hour: float


def fluid_replica_s(need: Sequence[int], *, bin_s: float, min_replicas: int = 0) -> float:
    """Return the replica seconds of `need` without starts."""
    return bin_s * sum(max(count, min_replicas) for count in need)


def fluid_cost(rates: Sequence[float], variants: Sequence[VariantPrice], *, bin_s: float) -> float:
    """Return the USD of the cheapest mix of each bin, without starts."""
    hours = bin_s / 3600
    return sum(
        hours * sum(n * v.price_per_hour for n, v in zip(cheapest_mix(rate, variants), variants, strict=True))
        for rate in rates
    )


def cheapest_mix(rate: float, variants: Sequence[VariantPrice]) -> tuple[int, ...]:
    """Return the replicas of each variant that carry `rate` requests per second at the least price.

    Of equal prices, the mix with most of the first variants. Exact, by trying all mixes but those that the
    price per request rules out.
    """
    price, mix = _cheapest(rate, tuple(variants))
    if price is None:
        raise ValueError("no variant carries any load")
    return mix


@lru_cache(maxsize=65536)
def _cheapest(rate: float, variants: tuple[VariantPrice, ...]) -> tuple[float | None, tuple[int, ...]]:
    if rate <= _ROUNDING:
        return 0.0, (0,) * len(variants)
    if not variants:
        return None, ()
    first, rest = variants[0], variants[1:]
    least_per_request = min((_per_request(variant) for variant in rest), default=float("inf"))
    best: tuple[float | None, tuple[int, ...]] = (None, ())
    most = -int(-(rate - _ROUNDING) // first.requests_per_second)
    for count in range(most, -1, -1):
        left = max(0.0, rate - count * first.requests_per_second)
        price = count * first.price_per_hour
        if best[0] is not None and left and price + left * least_per_request >= best[0]:
            continue
        others, mix = _cheapest(left, rest)
        if others is not None and (best[0] is None or price + others < best[0] - _ROUNDING):
            best = price + others, (count, *mix)
    return best


def _per_request(variant: VariantPrice) -> float:
    return variant.price_per_hour / variant.requests_per_second
