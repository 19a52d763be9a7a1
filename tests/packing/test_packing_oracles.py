"""The columns against two models that know none: brute force, and one Boolean per GPU and option."""

import pytest

from tangram.packing.solve import solve
from tests.support.packing_problems import small, tiny
from tests.support.packing_reference import MONEY, UNMET, boolean_optimum, brute_force_optimum


def reached(problem) -> list[int]:
    """The stages that choose, in the oracles' units, after a recount of the GPUs."""
    packed = solve(problem)
    assert packed.status == "OPTIMAL"
    assert packed.gap == 0
    scales = {"unmet": UNMET, "dollars": MONEY, "share": MONEY}
    named = [(stage, scales.get(stage.name.split("[")[0])) for stage in packed.stages]
    assert packed.objective == pytest.approx(next(s.value for s in packed.stages if s.name == "dollars"))
    return [round(stage.value * scale) for stage, scale in named if scale]


def agree(problem, expected) -> bool:
    """Equal up to the rounding of prices: a hundred-thousandth of a dollar per GPU and move."""
    found = reached(problem)
    blur = len(problem.gpus) + 10
    return len(found) == len(expected) and all(
        abs(a - b) <= (blur if i == len(found) - 2 else 0)
        for i, (a, b) in enumerate(zip(found, expected, strict=True))
    )


@pytest.mark.parametrize("batch", range(5))
def test_a_tiny_fleet_is_packed_as_well_as_by_brute_force(batch):
    for seed in range(batch * 20, batch * 20 + 20):
        problem = tiny(seed)
        assert agree(problem, brute_force_optimum(problem)), seed


@pytest.mark.parametrize("batch", range(5))
def test_a_small_mixed_fleet_is_packed_as_well_as_gpu_by_gpu(batch):
    for seed in range(batch * 20, batch * 20 + 20):
        problem = small(seed)
        assert agree(problem, boolean_optimum(problem)), seed


@pytest.mark.campaign
@pytest.mark.parametrize("batch", range(20))
def test_a_thousand_tiny_fleets_are_packed_as_well_as_by_brute_force(batch):
    for seed in range(1000 + batch * 50, 1050 + batch * 50):
        problem = tiny(seed)
        assert agree(problem, brute_force_optimum(problem)), seed


@pytest.mark.campaign
@pytest.mark.parametrize("batch", range(20))
def test_a_thousand_small_fleets_are_packed_as_well_as_gpu_by_gpu(batch):
    for seed in range(1000 + batch * 50, 1050 + batch * 50):
        problem = small(seed)
        assert agree(problem, boolean_optimum(problem)), seed
