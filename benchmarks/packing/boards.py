"""The 8x7 board (A100, H100, H200), written out again apart from the product's catalog, and its optimum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from math import ceil

from ortools.sat.python import cp_model

PROFILES = ("1g", "2g", "3g", "4g", "7g")
COMPUTE = {"1g": 1, "2g": 2, "3g": 3, "4g": 4, "7g": 7}
MEMORY = {"1g": 1, "2g": 2, "3g": 4, "4g": 4, "7g": 8}
STARTS = {"1g": range(7), "2g": (0, 2, 4), "3g": (0, 4), "4g": (0,), "7g": (0,)}
COMPUTE_SLICES, MEMORY_SLICES = 7, 8


def mask(profile: str, start: int) -> int:
    return ((1 << MEMORY[profile]) - 1) << start


@cache
def start_in(used: int, profile: str, *, high_first: bool) -> int | None:
    """Where `profile` would go on a GPU whose memory slices `used` are taken; None: nowhere."""
    free = [start for start in STARTS[profile] if not used & mask(profile, start)]
    return (free[-1] if high_first else free[0]) if free else None


@cache
def maximal() -> tuple[Mapping[str, int], ...]:
    """The multisets of profiles on one GPU that no other contains (12 of them)."""
    found: set[tuple[str, ...]] = set()

    def grow(used: int, chosen: tuple[str, ...]) -> None:
        found.add(tuple(sorted(chosen)))
        for profile in PROFILES:
            for start in STARTS[profile]:
                if not used & mask(profile, start) and start >= used.bit_length():
                    grow(used | mask(profile, start), (*chosen, profile))

    grow(0, ())
    counted = [Counter(each) for each in found]
    return tuple(one for one in counted if not any(one < other for other in counted))


def area_bound(counts: Mapping[str, int]) -> int:
    compute = sum(COMPUTE[p] * n for p, n in counts.items()) / COMPUTE_SLICES
    memory = sum(MEMORY[p] * n for p, n in counts.items()) / MEMORY_SLICES
    return ceil(max(compute, memory) - 1e-9)


def fewest(counts: Mapping[str, int]) -> int:
    """The proven fewest GPUs that hold `counts`."""
    return _fewest(tuple(counts.get(p, 0) for p in PROFILES))


@cache
def _fewest(wanted: tuple[int, ...]) -> int:
    counts = dict(zip(PROFILES, wanted, strict=True))
    model = cp_model.CpModel()
    gpus = [model.new_int_var(0, sum(wanted), "") for _ in maximal()]
    for profile, n in counts.items():
        offered = sum(columns.get(profile, 0) * x for columns, x in zip(maximal(), gpus, strict=True))
        model.add(offered >= n)
    model.add(sum(gpus) >= area_bound(counts))
    model.minimize(sum(gpus))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.presolve_inclusion_work_limit = 0  # github.com/google/or-tools/issues/5293
    if solver.solve(model) != cp_model.OPTIMAL:
        raise RuntimeError("twelve columns could not be solved")
    return round(solver.objective_value)
