"""What numbers of replicas leave unserved of a demand, and which numbers of one shape serve it whole.

Unserved is the missing share of the rate or of the minimum of replicas, whichever is larger.
"""

import math
from collections.abc import Mapping
from fractions import Fraction

from tangram.packing.problem.statement import Bundle, Demand, Offer, Part, ShapeKey

# Sums of rates are floating point: as large a share of the rate is not missing.
_ROUNDING = 1e-9
_UNBOUNDED = 10**6  # replicas of a demand without a maximum


def unmet_share(rate: float, served: float, least: int, replicas: int) -> float:
    """Return the unserved share, 0 to 1: `served` of `rate` requests per second, `replicas` of `least`."""
    missing = max(0.0, 1 - served / rate) if rate else 0.0
    absent = max(0.0, 1 - replicas / least) if least else 0.0
    return max(missing if missing > _ROUNDING else 0.0, absent)


def served_parts(rate: float, wanted: float, whole: int) -> int:
    """Return the parts that a replica of `rate` serves of `wanted` requests per second; `whole` are all.

    Rounded up, so that replicas that reach the rate but for a rounding of floating point serve all of it.
    """
    exact = Fraction(rate) / Fraction(wanted) * (1 + Fraction(1, 10**9))
    return min(whole, math.ceil(whole * exact))


def replicas_needed(rate: float, offer_rate: float, least: int) -> int:
    """Return how many replicas of `offer_rate` requests per second each serve all of a demand."""
    return max(least, math.ceil(rate / offer_rate * (1 - _ROUNDING)))


def unmet_with(demand: Demand, counts: Mapping[ShapeKey, int]) -> float:
    """Return the share of a demand that replicas of its offers leave unserved; other shapes serve nothing."""
    rates = {offer.shape: offer.rate for offer in demand.offers}
    counted = {shape: n for shape, n in counts.items() if shape in rates}
    served = sum(rates[shape] * n for shape, n in counted.items())
    return unmet_share(demand.rate, served, demand.min_replicas, sum(counted.values()))


def alone(demand: Demand, offer: Offer) -> Bundle:
    """Return the replicas of one shape that serve a demand whole, or as many as it may have."""
    most = _UNBOUNDED if demand.max_replicas is None else demand.max_replicas
    count = min(most, replicas_needed(demand.rate, offer.rate, demand.min_replicas))
    unmet = unmet_with(demand, {offer.shape: count})
    return Bundle((Part(*offer.shape, count),), count * offer.price_per_hour, unmet)


def single_shape_bundles(demand: Demand) -> tuple[Bundle, ...]:
    """Return the bundles that a demand lists, else of each of its offers as many replicas as serve it."""
    return demand.bundles or tuple(alone(demand, offer) for offer in demand.offers)


def least_unmet(demand: Demand) -> float:
    """Return the share that no fleet would serve. Of offers the fastest, as often as allowed, serves most."""
    return min((bundle.unmet for bundle in single_shape_bundles(demand)), default=1.0)
