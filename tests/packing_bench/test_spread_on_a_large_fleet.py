"""A hundred GPUs, twenty LLMDeployments of which a node may hold a tenth each, and hardly any time."""

from dataclasses import replace

from benchmarks.packing import scale
from tangram.packing.search.stages import SolveLimits
from tangram.packing.solve import solve
from tests.support.packing_agreement import improvable


def test_no_gpu_idles_where_a_replica_of_a_demand_that_goes_short_would_fit(monkeypatch):
    solved = []
    monkeypatch.setattr(scale, "APART", 0.1)
    monkeypatch.setattr(
        scale, "solve", lambda *asked: solved.append((asked[0], solve(*asked))) or solved[-1][1]
    )

    scale._solve(replace(scale.asked("100", 0, "spread"), limits=SolveLimits(deterministic_s=0.3)))

    ((problem, packing),) = solved
    problem = replace(
        problem, prices=tuple(sorted({gpu.sku: problem.price(gpu) for gpu in problem.gpus}.items()))
    )
    idle = {layout.id for layout in packing.layouts if not layout.in_use}
    assert packing.unmet
    assert [found for found in improvable(problem, packing) if set(found[2]) <= idle] == []
