"""Packings against an optimiser that shares no code with the product: legal, true to their figures, best."""

from dataclasses import replace

import pytest

from tangram.packing import Spread
from tangram.packing.solve import solve
from tests.support.packing_agreement import compared, disagreements, worse
from tests.support.packing_audit import Audit
from tests.support.packing_enumeration import enumerated
from tests.support.packing_instances import KINDS, instance, tiny
from tests.support.packing_optimum import optimum

pytestmark = pytest.mark.slow

MOVED = ("running-short", 23)  # its packing has moves, and a demand that goes short
ENUMERATED = [kind for kind in KINDS if kind != "growing"]
SECONDS = 2  # deterministic, of each stage of the optimiser: without proof its bound counts


def judged(kind, seeds, gpus=4):
    """What is wrong with the packings of some problems, and where the optimiser has better, by seed."""
    wrong, behind = {}, {}
    for seed in seeds:
        problem = instance(kind, seed, gpus)
        packing, best = solve(problem), optimum(problem, SECONDS)
        if lines := disagreements(problem, packing, best):
            wrong[seed] = lines
        if line := worse(packing, best):
            behind[seed] = line
    return wrong, behind


def differ_from_enumeration(kind, seeds):
    """Tiny problems that packing or optimiser solve otherwise, by seed; how many were compared."""
    found, judged = {}, 0
    for seed in seeds:
        problem = replace(tiny(kind, seed), move_budgets=(), growable=())  # of pools: not enumerated
        expected = enumerated(problem)
        if expected is not None:
            judged += 1
            values, packing = [stage.value for stage in optimum(problem)], solve(problem)
            if values != pytest.approx(expected, abs=1e-6) or not proved_as(expected, packing):
                found[kind, seed] = (expected, values, packing.status, packing.stages)
    return found, judged


def proved_as(expected, packing):
    """Whether a packing is proved, with these values of the stages that choose."""
    values = [s.value for s in packing.stages if s.name.startswith(("unmet", "dollars", "share"))]
    foreign, values = values[: -len(expected)], values[-len(expected) :]
    best = not any(foreign) and values == pytest.approx(expected, abs=2e-4)
    return best and packing.status == "OPTIMAL" and not packing.gap


@pytest.mark.parametrize("kind", KINDS)
def test_a_packing_is_legal_worth_its_figures_and_as_good_as_the_optimiser_says(kind):
    assert judged(kind, range(1, 5)) == ({}, {})


@pytest.mark.parametrize(
    ("kind", "seed", "gpus"),
    [
        ("mig-manager", 17, 4),  # the simplex calls its solution of the second stage imprecise
        ("growing", 133, 4),  # spread allowed a new node as many replicas as a demand may have at most
        ("surplus", 38, 4),  # a protected choice would give up a replica of another shape that must not move
        ("crowded", 188, 4),  # more replicas than serve a demand alone would allow more of them on one node
        ("several", 479, 6),  # equal GPUs of new nodes were cut on one node, despite spread
        ("several", 642, 6),  # presolve took the optimum from the optimiser
    ],
)
def test_a_packing_that_broke_a_rule_once_keeps_all(kind, seed, gpus):
    assert judged(kind, [seed], gpus) == ({}, {})


@pytest.mark.parametrize("kind", ENUMERATED)
def test_packing_and_optimiser_agree_with_enumeration_on_a_tiny_fleet(kind):
    found, judged = differ_from_enumeration(kind, range(3))

    assert found == {}
    assert judged


@pytest.mark.campaign
@pytest.mark.parametrize("batch", range(6))
@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_packings_are_as_good_as_the_optimiser_says(kind, batch):
    wrong, behind = judged(kind, range(100 + batch * 10, 110 + batch * 10))

    assert wrong == {}
    assert len(behind) <= 1, behind  # within its gap a packing may be worse


@pytest.mark.campaign
@pytest.mark.parametrize("kind", ENUMERATED)
def test_packing_and_optimiser_agree_with_enumeration_on_many_tiny_fleets(kind):
    found, judged = differ_from_enumeration(kind, range(100, 160))

    assert found == {}
    assert judged


# ---- each check can fail


def demands(**more):
    return lambda problem: replace(problem, demands=tuple(replace(d, **more) for d in problem.demands))


def gpus(**more):
    return lambda problem: replace(problem, gpus=tuple(replace(gpu, **more) for gpu in problem.gpus))


def movable(problem, *, value=True):
    changed = [tuple(replace(i, movable=value) for i in gpu.instances) for gpu in problem.gpus]
    pairs = zip(problem.gpus, changed, strict=True)
    return replace(problem, gpus=tuple(replace(gpu, instances=instances) for gpu, instances in pairs))


def one_more_node(problem):
    pools = tuple(replace(pool, max_nodes=pool.max_nodes + 1) for pool in problem.growable)
    return replace(problem, growable=pools)


WEAKER = [
    ("budgets", 8, demands(budget_per_hour=None), "above its budget"),
    ("budgets", 3, demands(max_replicas=None), "more than"),
    ("uniform", 2, demands(uniform=False), "shapes"),
    ("spread", 1, demands(spread=Spread()), "replicas on"),
    ("running", 24, demands(pools=()), "stands in pool"),
    ("pinned", 3, movable, "must not move"),
    ("running-short", 14, gpus(cuttable=True), "must not be cut"),
    ("gangs", 9, gpus(convertible=True), "MIG mode"),
    ("gangs", 17, gpus(nvlink_gpus=8), "gang on"),
    ("mig-manager", 2, gpus(backend="nvml"), "moves are listed"),
    ("move-budgets", 21, lambda problem: replace(problem, move_budget=None), "moves"),
    ("move-budgets", 44, lambda problem: replace(problem, move_budgets=()), "moves from pool"),
    ("growing", 8, one_more_node, "grows by"),
]


@pytest.mark.parametrize(("kind", "seed", "weaken", "fault"), WEAKER)
def test_a_packing_without_one_constraint_is_better_and_not_legal(kind, seed, weaken, fault):
    problem = instance(kind, seed)
    packing = solve(weaken(problem))
    best, beyond = optimum(problem, SECONDS), optimum(weaken(problem), SECONDS)

    assert any(fault in line for line in Audit(problem, packing).violations())
    assert [stage.value for stage in beyond] < [stage.value for stage in best]
    assert any("below what is possible" in line for line in compared(packing, best))


def stage(packing, name, **more):
    """The packing with one stage that says something else."""
    stages = (replace(s, **more) if s.name == name else s for s in packing.stages)
    return replace(packing, stages=tuple(stages))


def first_layout(packing, change):
    """The packing with another layout of the first GPU that is in use."""
    changed = next(layout for layout in packing.layouts if layout.in_use)
    layouts = (change(layout) if layout is changed else layout for layout in packing.layouts)
    return replace(packing, layouts=tuple(layouts))


def all_at_zero(layout):
    return replace(layout, instances=tuple(replace(i, start=0) for i in layout.instances))


def without_owners(layout):
    return replace(layout, instances=tuple(replace(i, owner=None) for i in layout.instances))


def swapped(layout):
    return replace(layout, instances=tuple(replace(i, owner="other") for i in layout.instances))


WRONG = {
    "a value": (lambda p: stage(p, "unmet[0]", value=0.1), "unmet[0] is"),
    "dollars": (lambda p: stage(p, "dollars", value=p.objective + 0.01), "dollars is"),
    "a bound": (lambda p: stage(p, "share", bound=99.0), "is above its value"),
    "a proof": (lambda p: stage(p, "share", bound=0.0), "is proved, with bound"),
    "a status": (lambda p: stage(p, "stranded", proved=False), "not every stage is proved"),
    "no solution": (lambda p: replace(p, status="FALLBACK"), "no stage has a solution"),
    "a missing stage": (lambda p: replace(p, stages=p.stages[1:]), "stages are"),
    "the objective": (lambda p: replace(p, objective=p.objective + 0.01), "objective: "),
    "the gap": (lambda p: replace(p, gap=0.01), "gap: "),
    "the price": (lambda p: replace(p, cost_per_hour=p.cost_per_hour + 0.01), "dollars per hour: "),
    "what is idle": (lambda p: replace(p, idle_per_hour=p.idle_per_hour + 0.01), "idle dollars: "),
    "the cost of moves": (lambda p: replace(p, move_cost=p.move_cost + 0.01), "move cost: "),
    "a missing move": (lambda p: replace(p, moves=p.moves[1:]), "moves are listed"),
    "a move twice": (lambda p: replace(p, moves=p.moves[:1] * len(p.moves)), "no move from"),
    "a missing choice": (lambda p: replace(p, choices=p.choices[1:]), "choices are of"),
    "other parts": (lambda p: choice(p, parts=()), "are chosen"),
    "another price": (lambda p: choice(p, price_per_hour=99.0), "costs"),
    "another share": (lambda p: choice(p, unmet=0.5), "is unmet, not 0.5"),
    "a missing shortage": (lambda p: replace(p, unmet=()), "is unmet, listed is"),
    "an overlap": (lambda p: first_layout(p, all_at_zero), "is no layout"),
    "another owner": (lambda p: first_layout(p, swapped), "ask for nothing"),
    "use": (lambda p: first_layout(p, lambda g: replace(g, in_use=False)), "in use is"),
    "room": (lambda p: first_layout(p, without_owners), "fits on"),
}


def choice(packing, **more):
    """The packing with another choice of the first demand that is served."""
    changed = next(c for c in packing.choices if c.parts)
    return replace(packing, choices=tuple(replace(c, **more) if c is changed else c for c in packing.choices))


@pytest.fixture(scope="module")
def moved():
    """A problem and its packing, with moves, choices and a shortage."""
    problem = instance(*MOVED)
    return problem, solve(problem)


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_figure_or_layout_is_seen(moved, fault):
    problem, packing = moved
    corrupt, line = WRONG[fault]

    assert disagreements(problem, packing) == []
    assert any(line in found for found in disagreements(problem, corrupt(packing)))


def test_a_proof_of_less_than_the_optimum_is_seen(moved):
    problem, _ = moved
    packing = solve(movable(problem, value=False))

    assert packing.status == "OPTIMAL"
    assert any("is above a legal packing" in line for line in compared(packing, optimum(problem, SECONDS)))
