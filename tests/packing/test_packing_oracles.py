"""Packings of small fleets against two optimisers that know no columns: enumeration, and GPU by GPU."""

import pytest

from tangram.packing.solve import solve
from tests.support.packing_agreement import disagreements, worse
from tests.support.packing_enumeration import enumerated
from tests.support.packing_optimum import optimum
from tests.support.packing_problems import small, tiny

SECONDS = 2  # deterministic, of each stage of the optimiser: without proof its bound counts


def differs(problem, expected):
    """The values of the stages that choose, where they are not those of the enumeration."""
    packed = solve(problem)
    found = [stage.value for stage in packed.stages if stage.name.startswith(("unmet", "dollars", "share"))]
    wrong = packed.status != "OPTIMAL" or packed.gap or found != pytest.approx(expected, abs=2e-4)
    return (packed.status, found, expected) if wrong else None


def worse_than_enumerated(seeds):
    """Problems whose packing is not as good, by seed; how many were compared."""
    found, judged = {}, 0
    for seed in seeds:
        expected = enumerated(tiny(seed))
        if expected is not None:
            judged += 1
            if line := differs(tiny(seed), expected):
                found[seed] = line
    return found, judged


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
def test_a_tiny_fleet_is_packed_as_well_as_by_enumeration(batch):
    found, judged = worse_than_enumerated(range(batch * 20, batch * 20 + 20))

    assert found == {}
    assert judged


@pytest.mark.parametrize("batch", range(2))
def test_a_small_mixed_fleet_is_packed_as_well_as_gpu_by_gpu(batch):
    assert worse_than_gpu_by_gpu(range(batch * 4, batch * 4 + 4)) == {}


@pytest.mark.campaign
@pytest.mark.parametrize("batch", range(20))
def test_a_thousand_tiny_fleets_are_packed_as_well_as_by_enumeration(batch):
    found, judged = worse_than_enumerated(range(1000 + batch * 50, 1050 + batch * 50))

    assert found == {}
    assert judged


@pytest.mark.campaign
@pytest.mark.parametrize("batch", range(20))
def test_many_small_fleets_are_packed_as_well_as_gpu_by_gpu(batch):
    assert worse_than_gpu_by_gpu(range(1000 + batch * 15, 1015 + batch * 15)) == {}
