"""The baselines that the planner is measured against are legal, and as good as the reference says."""

import csv
import random
from collections import Counter

import pytest

from benchmarks.packing import greedy, planner
from benchmarks.packing.boards import MEMORY, PROFILES, STARTS, fewest, mask, maximal
from benchmarks.packing.full_fleet import fits, simulate
from benchmarks.packing.online import BEST, DECREASING, FIRST, LEAST, POLICIES, Fleet, decreasing, gpus_needed
from benchmarks.packing.static import REFERENCE, requests
from benchmarks.packing.workloads import SMALL, Nodes, cheapest_rate, deployment, fleet, menu
from tangram.packing import Problem, board
from tangram.packing.geometry.layouts import check, maximal_multisets

ROWS = [row for row in csv.DictReader(REFERENCE.read_text().splitlines()) if int(row["seed"]) < 2]


def test_the_board_of_the_benchmarks_is_the_board_of_the_catalog():
    cut = board(planner.SKU).only(frozenset(planner.SHORT))
    theirs = {tuple((planner.SHORT[p], n) for p, n in each) for each in maximal_multisets(cut)}

    assert {tuple(sorted(each.items())) for each in maximal()} == theirs
    assert len(theirs) == 12


@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_overlaps_and_only_legal_starts_are_used_while_requests_come_and_go(policy):
    rng, placed = random.Random(policy), Fleet(20, policy)
    for _ in range(600):
        if placed.held and rng.random() < 0.45:
            placed.remove(rng.choice(sorted(placed.held)))
        else:
            placed.place(rng.choice(PROFILES))
        taken = Counter(gpu for gpu, _ in placed.held)
        assert placed.gpus_in_use == len(taken)
        for gpu in taken:
            here = [(start, profile) for (g, start), profile in placed.held.items() if g == gpu]
            assert all(start in STARTS[profile] for start, profile in here)
            assert sum(MEMORY[profile] for _, profile in here) == placed.used[gpu].bit_count()
            check(board(planner.SKU), [_placement(start, profile) for start, profile in here])


def _placement(start, profile):
    from tangram.packing.geometry.layouts import Placement

    return Placement(start, planner.NAMES[profile])


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['distribution']}-{r['seed']}")
def test_heuristics_need_as_many_gpus_as_the_reference_says(row):
    asked = requests(row["distribution"], int(row["seed"]))

    assert gpus_needed(asked, FIRST, 1000) == int(row["first_fit_arrival_order"])
    assert gpus_needed(asked, BEST, 1000) == int(row["best_fit_arrival_order"])
    assert gpus_needed(decreasing(asked), DECREASING, 1000) == int(row["first_fit_decreasing"])
    assert fewest(Counter(asked)) == int(row["optimum"])


def test_policies_differ_in_the_gpu_and_in_the_start():
    sites = {}
    for policy in POLICIES:
        placed = Fleet(3, policy)
        placed.put((1, 4), "3g")
        sites[policy] = placed.place("1g")

    assert sites == {FIRST: (0, 0), BEST: (1, 3), LEAST: (0, 6)}


def test_what_fits_after_free_migration_is_told_from_what_does_not():
    assert fits(Counter({"3g": 4}), 2)
    assert not fits(Counter({"3g": 5}), 2)
    assert fits(Counter({"1g": 14}), 2)
    assert not fits(Counter({"1g": 15}), 2)


def test_a_plan_that_is_carried_out_leads_to_the_layout_it_promised():
    placed = Fleet(2)
    for site, profile in (((0, 0), "1g"), ((1, 0), "1g")):
        placed.put(site, profile)

    found = planner.plan(placed, {"7g": 1}, planner.Terms(1000.0, 1))
    planner.apply(placed, found)

    assert len(found.moves) == 1
    assert placed.counts() == Counter({"1g": 2, "7g": 1})
    assert all(not placed.used[0] & mask("7g", 0) or p != "7g" or s == 0 for (_, s), p in placed.held.items())


def test_making_room_accepts_no_less_than_best_fit_on_a_small_run():
    alone, helped = (simulate("uniform", 1, BEST, 120, 1.6, budget) for budget in (None, 4))

    assert helped.asked == alone.asked
    assert helped.accepted >= alone.accepted


def test_greedy_serves_everybody_on_legal_layouts_with_enough_replicas():
    skus = ("A30", "H100-80GB-SXM")
    found = [menu(model, skus) for model in SMALL[2:6:3]]
    asked = [deployment(n, each, 3 * cheapest_rate(each).rate) for n, each in enumerate(found)]
    empty = Problem(fleet([Nodes("A30", 2, 4), Nodes("H100-80GB-SXM", 1, 8)]), ())

    layout = greedy.plan(empty, asked)

    assert layout.unserved == ()
    by_id = {gpu.id: gpu for gpu in empty.gpus}
    assert layout.cost_per_hour == pytest.approx(sum(empty.price(by_id[name]) for name in layout.in_use))
    for name, placements in layout.placed:
        if placements[0].profile != "gpu":
            check(board(by_id[name].sku), placements)
    assert sum(len(placements) for _, placements in layout.placed) >= 6
