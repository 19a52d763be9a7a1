"""Instances with proven optima (tests/packing/data/README.md): every one is reproduced."""

import csv
import json
from pathlib import Path

import pytest

from tangram.packing import GPUState, Instance, Problem, slice_request
from tangram.packing.solve import solve

DATA = Path(__file__).parent / "data"
SKU = "H100-80GB-SXM"
NAMES = {"1g": "1g.10gb", "2g": "2g.20gb", "3g": "3g.40gb", "4g": "4g.40gb", "7g": "7g.80gb"}
PRICES = ((SKU, 1.0),)
TINY = 1e-4  # USD: every GPU saved is worth its moves, yet moves are counted

STATIC = list(csv.DictReader((DATA / "static_packing_reference.csv").read_text().splitlines()))
REPACK = json.loads((DATA / "repack_reference.json").read_text())
FAST = [case for case in REPACK if case["gpus_in_fleet"] <= 100]
SLOW = [case for case in REPACK if case["gpus_in_fleet"] > 100]


def by_budget(cases):
    for case in cases:
        for budget, moves in case["minimum_moves_by_gpu_budget"].items():
            at_optimum = int(budget) == case["optimum_gpus_used_after"]
            marks = () if case in FAST or at_optimum or not case["seed"] else pytest.mark.campaign
            name = f"{case['gpus_in_fleet']}-{case['seed']}-{budget}"
            yield pytest.param(case, int(budget), moves, id=name, marks=marks)


@pytest.mark.parametrize("mix", sorted({row["distribution"] for row in STATIC}))
def test_a_static_mix_needs_the_proven_number_of_gpus(mix):
    gpus = tuple(GPUState(f"g{i:04}", f"n{i // 8:03}", SKU, mig_enabled=True) for i in range(1000))
    for row in [row for row in STATIC if row["distribution"] == mix][:4]:
        demands = tuple(
            slice_request(name, profile, int(row[f"d_{name}"])) for name, profile in sorted(NAMES.items())
        )
        packed = solve(Problem(gpus, demands, PRICES))

        assert (packed.gpus_in_use, packed.unmet) == (int(row["optimum"]), ()), row["seed"]
        assert packed.status == "OPTIMAL"
        assert packed.objective == packed.bound == int(row["optimum"])


def fragmented(case, move_budget=None) -> Problem:
    states = [c["instances"] for c in case["existing_classes"] for _ in range(c["count"])]
    gpus = tuple(
        GPUState(
            f"g{i:04}",
            f"n{i // 8:03}",
            SKU,
            mig_enabled=True,
            instances=tuple(Instance(NAMES[p], start, "run", move_cost=TINY) for p, start in sorted(state)),
        )
        for i, state in enumerate(states)
    )
    new = tuple(slice_request(f"new-{p}", NAMES[p], n) for p, n in sorted(case["new_requests"].items()))
    return Problem(gpus, new, PRICES, move_budget=move_budget)


@pytest.mark.parametrize(("case", "gpus", "moves"), list(by_budget(FAST)))
def test_a_fragmented_fleet_is_repacked_with_the_fewest_moves(case, gpus, moves):
    at_optimum = gpus == case["optimum_gpus_used_after"]

    packed = solve(fragmented(case, None if at_optimum else moves))

    assert (packed.gpus_in_use, len(packed.moves), packed.unmet) == (gpus, moves, ())
    assert packed.status == "OPTIMAL"


@pytest.mark.slow
@pytest.mark.parametrize(("case", "gpus", "moves"), list(by_budget(SLOW)))
def test_a_large_fragmented_fleet_is_repacked_with_the_fewest_moves(case, gpus, moves):
    at_optimum = gpus == case["optimum_gpus_used_after"]

    packed = solve(fragmented(case, None if at_optimum else moves))

    assert (packed.gpus_in_use, len(packed.moves), packed.unmet) == (gpus, moves, ())
