"""A cheap cover of a known load by several variants, with a bound of how far it is from the best.

Integer program on coarse bins (a minute): replicas of each variant and bin, those that start and stop; the
load is carried in each bin. A day is solved in windows that overlap: of each window the first part is kept,
the rest is only looked ahead to. The bound is the sum of the bounds of windows that do not overlap and in
which the replicas of the first bin cost no start: the parts of any cover cost at least that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tangram.packing.model import cp_model
from tangram.simulator.oracle.fluid_bound import VariantPrice

_SEED = 1
_MICRO = 1_000_000  # of a USD per hour, and of a request per second


@dataclass(frozen=True, slots=True)
class VariantSwitching:
    """A variant, and for how long one replica is paid before and after it serves."""

    price: VariantPrice
    start_s: float
    stop_s: float = 0.0
    most: int = 100  # replicas, by quota


@dataclass(frozen=True, slots=True)
class VariantCover:
    """Replicas of each variant by bin, their cost and a bound of the least."""

    bin_s: float
    ready: tuple[tuple[int, ...], ...]  # by bin, then by variant
    cost: float  # USD
    bound: float  # USD; no cover costs less

    @property
    def gap(self) -> float:
        """Return by what share of its cost the cover may be too dear."""
        return (self.cost - self.bound) / self.cost if self.cost else 0.0


def cover_by_variants(
    rates: Sequence[float],
    variants: Sequence[VariantSwitching],
    *,
    bin_s: float = 60.0,
    window: int = 180,
    overlap: int = 60,
    seconds_per_window: float = 1.0,
    initial: tuple[int, ...] | None = None,
) -> VariantCover:
    """Return a cover of `rates`, requests per second by bin. Raises `ValueError` if quotas are too low.

    `initial` replicas are ready at the start; None: those of the first bin. `seconds_per_window` is
    deterministic time of the solver.
    """
    step = window - overlap
    ready: list[tuple[int, ...]] = []
    before = initial
    for begin in range(0, len(rates), step):
        solved = _solve(rates[begin : begin + window], variants, bin_s, before, seconds_per_window)
        ready += solved.ready[:step]
        before = ready[-1]
    bound = sum(
        _solve(
            rates[begin : begin + window], variants, bin_s, None if begin else initial, seconds_per_window
        ).bound
        for begin in range(0, len(rates), window)
    )
    return VariantCover(bin_s, tuple(ready), cost_of(ready, variants, bin_s, initial), bound)


def cost_of(
    ready: Sequence[Sequence[int]],
    variants: Sequence[VariantSwitching],
    bin_s: float,
    initial: Sequence[int] | None = None,
) -> float:
    """Return what these replicas cost in USD, with their starts and stops."""
    total = 0.0
    for place, variant in enumerate(variants):
        counts = [row[place] for row in ready]
        steps = [
            after - count for count, after in pairwise([initial[place] if initial else counts[0], *counts])
        ]
        started, stopped = sum(max(0, n) for n in steps), sum(max(0, -n) for n in steps)
        paid_s = bin_s * (sum(counts) + _bins(variant.start_s, bin_s) * started)
        paid_s += bin_s * _bins(variant.stop_s, bin_s) * stopped
        total += paid_s / 3600 * variant.price.price_per_hour
    return total


def _solve(
    rates: Sequence[float],
    variants: Sequence[VariantSwitching],
    bin_s: float,
    before: tuple[int, ...] | None,
    seconds: float,
) -> VariantCover:
    """Solve one window; `before`: the replicas of the bin before it (None: the first bin's are free)."""
    model = cp_model.CpModel()
    counts = [
        [model.new_int_var(0, v.most, f"ready {t} {i}") for i, v in enumerate(variants)]
        for t in range(len(rates))
    ]
    cost = []
    for t, (rate, row) in enumerate(zip(rates, counts, strict=True)):
        carried = sum(
            math.floor(v.price.requests_per_second * _MICRO) * n for v, n in zip(variants, row, strict=True)
        )
        model.add(carried >= math.floor(rate * _MICRO))
        for i, (variant, count) in enumerate(zip(variants, row, strict=True)):
            price = round(variant.price.price_per_hour * _MICRO)
            cost.append(price * count)
            previous = counts[t - 1][i] if t else before[i] if before else None
            if previous is None:
                continue
            started = model.new_int_var(0, variant.most, f"started {t} {i}")
            model.add(started >= count - previous)
            cost.append(price * _bins(variant.start_s, bin_s) * started)
            if variant.stop_s:
                stopped = model.new_int_var(0, variant.most, f"stopped {t} {i}")
                model.add(stopped >= previous - count)
                cost.append(price * _bins(variant.stop_s, bin_s) * stopped)
    model.minimize(sum(cost[1:], cost[0]))
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = 1
    parameters.random_seed = _SEED
    parameters.max_deterministic_time = seconds
    parameters.linearization_level = 2
    if solver.solve(model) not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        raise ValueError("the variants do not carry the load within their quotas")
    values = solver.response_proto.solution
    ready = tuple(tuple(int(values[n.index]) for n in row) for row in counts)
    return VariantCover(bin_s, ready, 0.0, solver.best_objective_bound / _MICRO * bin_s / 3600)


def _bins(seconds: float, bin_s: float) -> int:
    return math.ceil(seconds / bin_s)
