"""Properties of plans: no demand is lost, no instances overlap, the costs add up."""

import random

import pytest

from tangram.catalog.lookup import gpu as facts
from tangram.packing.geometry.board import board
from tangram.packing.geometry.layouts import Placement, check, layouts
from tangram.plan.fleet_input.documents.fleet_input import FleetInput
from tangram.plan.fleet_input.documents.inventory import read_inventory, read_slice_request
from tangram.plan.fleet_input.documents.merge_documents import merged_input
from tangram.plan.place.best.pack import pack
from tangram.plan.place.best.packing_problem import fleet_problem
from tangram.plan.result.plan_document import plan_document

SKUS = ("H100-80GB-SXM", "A30", "L4")


def fleet(seed):
    """An Inventory and SliceRequests as people write them."""
    rng = random.Random(seed)
    gpus = []
    for i in range(rng.randint(1, 7)):
        sku = rng.choice(SKUS)
        entry = {"id": f"g{i}", "node": f"n{i // 2}-{sku}", "sku": sku, "instances": []}
        cut = board(sku)
        if cut is not None and rng.random() < 0.7:
            plain = frozenset(p for p in cut.profiles if "+" not in p)
            entry["backend"] = rng.choice(("nvml", "mig-manager"))
            for place in rng.choice(layouts(cut.only(plain))):
                instance = {"profile": place.profile, "start": place.start}
                if rng.random() < 0.7:
                    instance |= {"owner": f"o{i}-{place.start}", "movable": rng.random() < 0.7}
                entry["instances"].append(instance)
        elif rng.random() < 0.3:
            entry["instances"].append({"profile": "gpu", "start": 0, "owner": f"w{i}"})
        gpus.append(entry)
    asked = [
        {
            "name": f"r{i}",
            "profile": rng.choice(("1g.10gb", "2g.20gb", "3g.40gb", "2g.12gb", "gpu")),
            "count": rng.randint(1, 4),
        }
        for i in range(rng.randint(0, 3))
    ]
    known = {p for each in gpus if (cut := board(each["sku"])) for p in cut.profiles} | {"gpu"}
    return {"gpus": gpus}, [each for each in asked if each["profile"] in known]


def planned(fleet_document, requests):
    parts = [
        read_inventory(fleet_document, "test"),
        *(FleetInput(requests=(read_slice_request(r, "test"),)) for r in requests),
    ]
    asked = fleet_problem(merged_input(parts))
    return plan_document(asked, pack(asked))


@pytest.fixture(scope="module", params=range(40))
def case(request):
    before, requests = fleet(request.param)
    return before, requests, planned(before, requests)


def sites(gpus):
    return {
        (g["id"], i["profile"], i["start"]): i["owner"]
        for g in gpus
        for i in g["instances"]
        if i.get("owner")
    }


def test_every_layout_is_legal_on_its_board(case):
    _, _, plan = case
    for each in plan["gpus"]:
        placed = [Placement(i["start"], i["profile"]) for i in (*each["instances"], *each["free"])]
        if [p.profile for p in placed] == ["gpu"]:
            continue
        check(board(each["sku"]), placed) if placed else None


def test_everybody_who_ran_still_runs_with_the_same_profile(case):
    before, requests, plan = case
    mine = {r["name"] for r in requests}
    ran = sorted((owner, profile) for (_, profile, _), owner in sites(before["gpus"]).items())
    runs = sorted((owner, p) for (_, p, _), owner in sites(plan["gpus"]).items() if owner not in mine)

    assert runs == ran


def test_what_may_not_move_does_not(case):
    before, _, plan = case
    after = sites(plan["gpus"])
    for each in before["gpus"]:
        for i in each["instances"]:
            if i.get("movable") is False:
                assert after[each["id"], i["profile"], i["start"]] == i["owner"]


def test_moves_are_exactly_what_changed_its_place(case):
    before, _requests, plan = case
    was, after = sites(before["gpus"]), sites(plan["gpus"])
    moved = {m["owner"] for m in plan["moves"]}
    for site, owner in was.items():
        if after.get(site) != owner:
            assert owner in moved
    for move in plan["moves"]:
        source, target = (
            (move[end]["gpu"], move[end]["profile"], move[end]["start"]) for end in ("from", "to")
        )
        assert was[source] == move["owner"]
        assert after[target] == move["owner"]


def test_requests_are_placed_or_told(case):
    _, requests, plan = case
    placed = list(sites(plan["gpus"]).values())
    missing = {u["name"]: u["count"] for u in plan["unmet"]}
    for each in requests:
        assert placed.count(each["name"]) + missing.get(each["name"], 0) == each["count"]


def test_the_bill_adds_up(case):
    _, _, plan = case
    used = [g for g in plan["gpus"] if g["instances"]]

    assert plan["gpusInUse"] == len(used)
    assert plan["costPerHour"] == pytest.approx(sum(facts(g["sku"]).price_per_hour for g in used), abs=1e-4)
    assert plan["objective"] == pytest.approx(
        plan["costPerHour"] + sum(m["cost"] for m in plan["moves"]), abs=1e-4
    )
    assert plan["bound"] <= plan["objective"]


def test_nothing_is_done_for_nothing(case):
    before, requests, plan = case
    again = {"gpus": [{k: g[k] for k in ("id", "node", "sku", "instances", "free")} for g in plan["gpus"]]}
    backends = {g["id"]: g.get("backend", "nvml") for g in before["gpus"]}
    movable = {
        i["owner"]: i.get("movable", True) for g in before["gpus"] for i in g["instances"] if "owner" in i
    }
    for each in again["gpus"]:
        each["backend"] = backends[each["id"]]
        each["instances"] = [i | {"movable": movable.get(i["owner"], True)} for i in each["instances"]]

    second = planned(again, requests)

    assert second["moves"] == []
    assert sites(second["gpus"]) == sites(plan["gpus"])
