"""Packings of small mixed fleets against an optimiser that knows no columns: GPU by GPU."""

import pytest

from tangram.packing.solve import solve
from tests.support.packing_agreement import disagreements, worse
from tests.support.packing_optimum import optimum
from tests.support.packing_problems import small

SECONDS = 2  # deterministic, of each stage of the optimiser: without proof its bound counts


def worse_than_gpu_by_gpu(seeds):
    """What is wrong with packings, or better elsewhere, by seed."""
    found = {}
    for seed in seeds:
        problem = small(seed)
        packed, best = solve(problem), optimum(problem, SECONDS)
        if lines := [*disagreements(problem, packed, best), *filter(None, [worse(packed, best)])]:
            found[seed] = lines
    return found


@pytest.mark.parametrize("batch", range(2))
def test_a_small_mixed_fleet_is_packed_as_well_as_gpu_by_gpu(batch):
    assert worse_than_gpu_by_gpu(range(batch * 4, batch * 4 + 4)) == {}


@pytest.mark.campaign
@pytest.mark.parametrize("batch", range(20))
def test_many_small_fleets_are_packed_as_well_as_gpu_by_gpu(batch):
    assert worse_than_gpu_by_gpu(range(1000 + batch * 15, 1015 + batch * 15)) == {}
