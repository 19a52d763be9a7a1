"""`tangram plan` of raw slices: an Inventory and SliceRequests, no models."""

import csv
import json
from pathlib import Path

import pytest

from tests.support.plans import H100, Planner, gpu, held, inventory, request, run, used

DATA = Path(__file__).parents[1] / "packing" / "data"
NAMES = {"1g": "1g.10gb", "2g": "2g.20gb", "3g": "3g.40gb", "4g": "4g.40gb", "7g": "7g.80gb"}


@pytest.fixture
def planner(tmp_path):
    return Planner(tmp_path)


def empty(count):
    return inventory(*({"id": f"g{i}", "node": f"n{i // 8}", "sku": H100} for i in range(count)))


def test_requests_take_the_fewest_gpus(planner):
    plan = planner.plan(empty(8), request("small", "1g.10gb", 7), request("big", "3g.40gb", 4))

    assert plan["status"] == "OPTIMAL"
    assert len(used(plan)) == plan["gpusInUse"] == 3
    assert (plan["gap"], plan["moves"], plan["unmet"]) == (0, [], [])
    assert plan["objective"] == plan["bound"] == plan["costPerHour"]
    assert sum(owner == "small" for *_, owner in held(plan)) == 7


def test_static_mixes_take_the_proven_number_of_gpus(planner):
    rows = list(csv.DictReader((DATA / "static_packing_reference.csv").read_text().splitlines()))
    row = rows[7]
    asked = [request(name, full, int(row[f"d_{name}"])) for name, full in NAMES.items()]

    plan = planner.plan(empty(1000), *asked)

    assert (len(used(plan)), plan["status"], plan["unmet"]) == (int(row["optimum"]), "OPTIMAL", [])


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_fragmented_fleet_is_repacked_onto_the_fewest_gpus_with_the_fewest_moves(planner, number):
    case = json.loads((DATA / "repack_reference.json").read_text())[number]
    states = [c["instances"] for c in case["existing_classes"] for _ in range(c["count"])]
    gpus = [
        gpu(f"g{i}", *(f"{NAMES[p]}@{start}=pod-{i}-{start}" for p, start in state))
        for i, state in enumerate(states)
    ]
    asked = [request(f"new-{p}", p, n) for p, n in case["new_requests"].items()]

    plan = planner.plan(inventory(*gpus), *asked)

    assert len(used(plan)) == case["optimum_gpus_used_after"]
    assert len(plan["moves"]) == case["minimum_moves_at_optimum"]
    assert (plan["status"], plan["unmet"]) == ("OPTIMAL", [])


def test_everybody_keeps_their_name_and_their_slices(planner):
    fleet = inventory(
        gpu("g0", "1g.10gb@0=ann", "1g.10gb@4=bob"), gpu("g1", "3g.40gb@4=cid"), gpu("g2", "2g.20gb@0=dan")
    )

    plan = planner.plan(fleet, request("new", "2g.20gb", 1))

    assert sorted(owner for *_, owner in held(plan)) == ["ann", "bob", "cid", "dan", "new"]
    moved = {move["owner"] for move in plan["moves"]}
    for move in plan["moves"]:
        target = (move["to"]["gpu"], move["to"]["profile"], move["to"]["start"], move["owner"])
        assert target in held(plan)
    assert "new" not in moved
    assert len(used(plan)) == 2


def test_what_is_not_movable_stays(planner):
    fleet = inventory(
        {
            "id": "a",
            "sku": H100,
            "instances": [{"profile": "1g.10gb", "start": 0, "owner": "x", "movable": False}],
        },
        {
            "id": "b",
            "sku": H100,
            "instances": [{"profile": "1g.10gb", "start": 0, "owner": "y", "movable": False}],
        },
    )

    plan = planner.plan(fleet, request("new", "4g.40gb", 2))

    assert {("a", "1g.10gb", 0, "x"), ("b", "1g.10gb", 0, "y")} <= held(plan)
    assert plan["unmet"] == [
        {
            "name": "new",
            "priority": 0,
            "share": 1.0,
            "count": 2,
            "reason": "no room left after what must not move",
        }
    ]


def test_the_plan_of_a_plan_changes_nothing(planner):
    asked = [request("small", "1g.10gb", 9), request("big", "4g.40gb", 2)]
    first = planner.plan(empty(6), *asked)
    after = inventory(*({k: g[k] for k in ("id", "node", "sku", "instances", "free")} for g in first["gpus"]))

    second = planner.plan(after, *asked)

    assert second["moves"] == []
    assert held(second) == held(first)
    assert not any(g["recut"] for g in second["gpus"])


def test_moves_that_cost_more_than_they_save_are_not_made(planner):
    fleet = (gpu("g0", "1g.10gb@0=ann"), gpu("g1", "1g.10gb@0=bob"))

    assert len(used(planner.plan(inventory(*fleet)))) == 1
    assert len(used(planner.plan(inventory(*fleet, moveCost=50.0)))) == 2
    assert len(used(planner.plan(inventory(*fleet, moveCost=50.0, horizonHours=100)))) == 1
    assert len(used(planner.plan(inventory(*fleet, moveBudget=0)))) == 2


def test_a_horizon_over_which_prices_round_to_nothing_is_refused(planner):
    refused = planner.refused(inventory(gpu("g0"), horizonHours=1e-7))

    assert "horizonHours" in refused
    assert "at least 1e-06" in refused


def test_higher_priority_is_served_first(planner):
    plan = planner.plan(
        empty(1), request("low", "4g.40gb", 1, priority=1), request("high", "7g.80gb", 1, priority=2)
    )

    assert {owner for *_, owner in held(plan)} == {"high"}
    assert [(u["name"], u["count"]) for u in plan["unmet"]] == [("low", 1)]


def test_an_empty_gpu_serves_whole_or_cut(planner):
    plan = planner.plan(empty(2), request("whole", "gpu", 1), request("slices", "1g.10gb", 3))

    assert len(used(plan)) == 2
    assert plan["unmet"] == []


def test_a_short_profile_is_the_plain_one_of_the_board(planner):
    plan = planner.plan(inventory(gpu("g0", "3g@4=ann")), request("x", "1g", 2))

    assert {p for _, p, _, _ in held(plan)} == {"1g.10gb", "3g.40gb"}


def test_the_same_input_gives_the_same_bytes(planner):
    documents = (
        inventory(gpu("g0", "1g.10gb@0=ann"), gpu("g1", "1g.10gb@3=bob")),
        request("new", "2g.20gb", 3),
    )

    assert planner.run(*documents, flags=("-o", "json")) == planner.run(*documents, flags=("-o", "json"))


def test_documents_may_come_from_many_files_and_standard_input(planner, monkeypatch):
    class Stdin:
        buffer = (planner.file(request("small", "1g.10gb", 1), name="a.yaml")).open("rb")

    monkeypatch.setattr("sys.stdin", Stdin)
    one = planner.file(empty(1), name="one.yaml")
    two = planner.file({"kind": "List", "items": [request("big", "3g.40gb", 1)]}, name="two.yaml")

    status, out, _ = run("plan", "-f", one, "-f", two, "-f", "-", "-o", "json")

    Stdin.buffer.close()
    assert status == 0
    assert {owner for *_, owner in held(json.loads(out))} == {"small", "big"}


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (request("r", "3g.20gb", 2), "no GPU of this fleet can be cut into 3g.20gb"),
        (request("r", "gpu", 2, sku="A30"), "this fleet has no A30"),
    ],
)
def test_a_board_that_is_not_there_is_an_answer_and_not_an_error(planner, asked, reason):
    plan = planner.plan(empty(1), asked)

    assert plan["unmet"] == [{"name": "r", "priority": 0, "share": 1, "count": 2, "reason": reason}]
    assert plan["objective"] == 0


def test_a_slice_that_only_new_nodes_have_is_a_reason_to_add_one(planner):
    nodes = {"max": 1, "gpusPerNode": 1, "migEnabled": True}
    spec = {"nodeSelector": {"pool": "elastic"}, "sku": "A30", "nodes": nodes, "pricePerGPUHour": "0.5"}
    pool = {"kind": "GPUPool", "metadata": {"name": "elastic"}, "spec": spec}

    plan = planner.plan(empty(1), pool, request("r", "2g.12gb", 2))

    assert (plan["unmet"], plan["newNodes"]) == ([], [{"pool": "elastic", "count": 1}])
    assert plan["objective"] == 0.5


def growing(name, sku, price, most=1, **nodes):
    """A pool without nodes yet, of one GPU each."""
    nodes = {"max": most, "sku": sku, "gpusPerNode": 1, "migEnabled": True} | nodes
    sku = nodes.pop("sku")
    spec = {"nodeSelector": {"g": name}, "migPolicy": "Full", "sku": sku, "nodes": nodes}
    return {"kind": "GPUPool", "metadata": {"name": name}, "spec": {**spec, "pricePerGPUHour": price}}


A100 = "A100-80GB-SXM"
L4 = inventory({"id": "x", "sku": "L4"}, prices={"L4": 0.5})


@pytest.mark.parametrize("profile", ["3g.40gb", "3g", "gpu"])
@pytest.mark.parametrize("fleet", [L4, inventory(gpu("x", "7g.80gb@0=other"))], ids=["L4", "full"])
def test_of_growing_pools_the_cheapest_is_taken_whatever_its_name(planner, fleet, profile):
    cut = profile != "gpu"
    pools = growing("a", A100, "5", migEnabled=cut), growing("b", H100, "2.45", migEnabled=cut)
    held_too = inventory({**gpu("x", "gpu@0=other", sku="L4"), "migEnabled": False}, prices={"L4": 0.5})

    plan = planner.plan(held_too if fleet is L4 else fleet, *pools, request("r", profile, 1))

    assert (plan["unmet"], plan["newNodes"]) == ([], [{"pool": "b", "count": 1}])
    assert plan["gap"] == 0


def test_a_request_takes_nodes_of_several_growing_pools_where_one_is_too_small(planner):
    pools = growing("a", A100, "5"), growing("b", H100, "2.5")

    plan = planner.plan(L4, *pools, request("r", "3g.40gb", 4))

    assert plan["unmet"] == []
    assert plan["newNodes"] == [{"pool": "a", "count": 1}, {"pool": "b", "count": 1}]
    assert plan["costPerHour"] == 7.5


def test_a_request_takes_gpus_that_there_are_and_nodes_that_are_added(planner):
    pools = growing("a", A100, "9"), growing("b", H100, "2.5")

    plan = planner.plan(inventory(gpu("x", sku=A100)), *pools, request("r", "3g.40gb", 4))

    assert (plan["unmet"], plan["newNodes"]) == ([], [{"pool": "b", "count": 1}])


def test_a_replica_that_changes_its_slice_moves_at_the_cost_that_was_said(planner):
    fleet = inventory(gpu("g0", "1g.10gb@0=r"), gpu("g1", "1g.10gb@0=s"), gpu("g2"), moveCost=3)

    plan = planner.plan(fleet, request("r", "7g.80gb", 1), request("s", "1g.10gb", 1))

    assert [(move["owner"], move["cost"]) for move in plan["moves"]] == [("r", 3)]
    assert plan["moveCost"] == 3


@pytest.mark.parametrize(("cost", "stays"), [(0.7, False), (0.9, True)])
def test_nothing_moves_to_a_cheaper_board_unless_that_saves_more_than_the_move_costs(planner, cost, stays):
    boards = gpu("g0", "gpu@0=r", sku="L40S"), gpu("g1", node="n1", sku="L4")
    fleet = inventory(*boards, prices={"L4": 0.55, "L40S": 1.35}, moveCost=cost)

    plan = planner.plan(fleet, request("r", "gpu", 1))

    assert used(plan) == (["g0"] if stays else ["g1"])
    assert plan["moveCost"] == (0 if stays else cost)


def test_one_slice_instead_of_three_is_one_move_and_of_the_cheapest(planner):
    slices = [{"profile": "1g.10gb", "start": n, "owner": "r", "moveCost": 1 + n} for n in (2, 0, 1)]

    plan = planner.plan(inventory(gpu("g0") | {"instances": slices}), request("r", "7g.80gb", 1))

    assert [(move["from"]["start"], move["cost"]) for move in plan["moves"]] == [(0, 1)]
    assert plan["moveCost"] == 1


def firm(name, owner, **more):
    """A GPU on which somebody runs who must not move."""
    at = gpu(name, f"gpu@0={owner}", sku="L4", node=name, **more)
    at["instances"][0]["movable"] = False
    return at


def test_what_must_not_move_stays_where_it_is_whatever_the_priority(planner):
    fleet = inventory(firm("g0", "low"))

    plan = planner.plan(fleet, request("low", "gpu", 1), request("high", "gpu", 1, priority=1))

    assert held(plan) == {("g0", "gpu", 0, "low")}
    assert [(short["name"], short["reason"]) for short in plan["unmet"]] == [
        ("high", "no room left after what must not move")
    ]


def test_what_must_not_move_goes_once_fewer_are_wanted(planner):
    fleet = inventory(firm("g0", "low"), firm("g1", "low"))

    plan = planner.plan(fleet, request("low", "gpu", 1), request("high", "gpu", 1, priority=1))

    assert sorted(owner for *_, owner in held(plan)) == ["high", "low"]
    assert (plan["moves"], plan["unmet"]) == ([], [])


def test_thirds_of_a_request_are_worth_as_much_as_one_whole(planner):
    whole = request("whole", "gpu", 1, priority=5)
    three = request("three", "1g.6gb", 3, priority=5)

    plan = planner.plan(inventory({"id": "g0", "sku": "A30"}), whole, three, request("more", "1g.6gb", 1))

    assert sorted(owner for *_, owner in held(plan)) == ["more", "three", "three", "three"]


def test_why_slices_are_not_placed_is_true(planner):
    fleet = inventory(gpu("a"), gpu("l4", sku="L4"))
    alone, above = request("big", "4g.40gb", 3), request("first", "3g.40gb", 1, priority=1)
    elsewhere = request("first", "gpu", 1, priority=1, sku="L4")

    reasons = [
        [short["reason"] for short in planner.plan(fleet, alone, *more)["unmet"]]
        for more in ((), (above,), (elsewhere,))
    ]

    assert reasons == [
        ["no room left: 1 of 3 are placed"],
        ["no room left after demands of higher priority"],
        ["no room left: 1 of 3 are placed"],
    ]


def test_input_is_refused_in_the_words_that_people_wrote(planner):
    whole = gpu("a", "gpu@0=x", sku="L4")
    whole["migEnabled"] = True

    refused = planner.refused(inventory(whole))

    assert "migEnabled" in refused
    assert "_" not in refused
