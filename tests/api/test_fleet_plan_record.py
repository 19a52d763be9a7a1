import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tangram.api.fleet_plan import FleetPlanSpec, FleetPlanStatus
from tangram.plan.result.fleet_plan_spec import fleet_plan_spec, status_figures
from tests.support.plan_documents import large_plan
from tests.support.plans import run

EXAMPLES = Path(__file__).parents[2] / "examples" / "plan"

PLAN: dict[str, Any] = {
    "objective": 7.513,
    "bound": 7.513,
    "gap": 0.0,
    "status": "OPTIMAL",
    "gpusInUse": 2,
    "costPerHour": 7.51,
    "idlePerHour": 0.5,
    "moveCost": 0.0025,
    "horizonHours": 1.0,
    "gpus": [
        {"id": f"node-{i}/0", "node": f"node-{i}", "sku": "H100-80GB-SXM", "inUse": False, "recut": False}
        | {"instances": [], "free": []}
        for i in range(4)
    ]
    + [
        {"id": "node-8/0", "node": "node-8", "sku": "H100-80GB-SXM", "inUse": True, "recut": True}
        | {
            "instances": [
                {"profile": "1g.10gb", "start": 0, "owner": "chat"},
                {"profile": "1g.10gb", "start": 1, "owner": "chat"},
                {"profile": "3g.40gb", "start": 4, "owner": "ml/code"},
            ],
            "free": [{"profile": "2g.20gb", "start": 2}],
        },
        {"id": "node-9/0", "node": "node-9", "sku": "L40S", "inUse": True, "recut": False}
        | {"instances": [{"profile": "gpu", "start": 0, "owner": "chat"}], "free": []},
    ],
    "newNodes": [],
    "deployments": [
        {"name": "chat", "namespace": "default", "costPerHour": 2.9, "unmet": 0.0, "alternatives": []}
        | {
            "chosen": [
                {"sku": "H100-80GB-SXM", "profile": "1g.10gb", "tensorParallel": 1, "precision": "bf16"}
                | {"replicas": 2},
                {"sku": "L40S", "profile": "gpu", "tensorParallel": 2, "precision": "bf16", "replicas": 1},
            ]
        },
        {"name": "code", "namespace": "ml", "costPerHour": 4.0, "unmet": 1.0, "alternatives": []}
        | {"chosen": []},
    ],
    "requests": [],
    "moves": [
        {"owner": "chat", "cost": 0.0025}
        | {"from": {"gpu": "node-9/0", "profile": "gpu", "start": 0}}
        | {"to": {"gpu": "node-8/0", "profile": "1g.10gb", "start": 1}}
    ],
    "unmet": [{"name": "ml/code", "priority": 3, "share": 1.0, "reason": "no room"}],
    "steps": [
        {"number": 1, "kind": "set-mode", "node": "node-8", "gpus": ["node-8/0"], "migEnabled": True}
        | {"after": []},
        {"number": 2, "kind": "set-geometry", "node": "node-8", "gpus": ["node-8/0"], "after": [1]}
        | {"layout": [{"profile": "1g.10gb", "start": 0}, {"profile": "3g.40gb", "start": 4}]},
        {"number": 3, "kind": "start-replica", "node": "node-8", "gpus": ["node-8/0"], "after": [2]}
        | {"profile": "1g.10gb", "start": 0, "owner": "chat"},
        {"number": 4, "kind": "add-node", "node": "spot/new-1", "pool": "spot", "after": []},
    ],
    "stepsMissing": {"text": "chat on 1g.10gb@0 of node-8/0 waits"},
    "notes": ["read me"],
}


def spec_of(plan: dict[str, Any]) -> dict[str, Any]:
    return fleet_plan_spec(plan, inputs_hash="0123456789ab")


def assert_fits_the_api(spec: dict[str, Any]) -> None:
    """No key that the API does not know, no value out of its bounds."""
    read = FleetPlanSpec.model_validate(spec)
    assert read.model_dump(mode="json", by_alias=True, exclude_unset=True) == spec


def test_a_plan_is_kept_with_what_it_costs_and_how_good_it_is():
    spec = spec_of(PLAN)

    assert_fits_the_api(spec)
    assert {key: value for key, value in spec.items() if not isinstance(value, list)} == {
        "inputsHash": "0123456789ab",
        "proof": "Optimal",
        "costPerHour": "7.51",
        "idlePerHour": "0.50",
        "moveCost": "0.0025",
        "horizonHours": "1.00",
        "objective": "7.51",
        "bound": "7.51",
        "gap": "0.00%",
        "gpus": "2/6",
        "gpusInUse": 2,
        "gpuCount": 6,
        "unmet": 1,
        "totalDeployments": 2,
        "totalLayouts": 3,
        "totalMoves": 1,
        "totalSteps": 4,
        "stepsMissing": "chat on 1g.10gb@0 of node-8/0 waits",
    }


def test_layouts_are_told_by_class_those_that_are_cut_first_then_the_most_frequent():
    assert spec_of(PLAN)["layouts"] == [
        {
            "count": 1,
            "sku": "H100-80GB-SXM",
            "recut": True,
            "slices": [
                {"profile": "1g.10gb", "starts": [0, 1], "owner": "chat"},
                {"profile": "2g.20gb", "starts": [2]},
                {"profile": "3g.40gb", "starts": [4], "owner": "ml/code"},
            ],
            "gpus": ["node-8/0"],
        },
        {
            "count": 4,
            "sku": "H100-80GB-SXM",
            "recut": False,
            "gpus": ["node-0/0", "node-1/0", "node-2/0"],
        },
        {
            "count": 1,
            "sku": "L40S",
            "recut": False,
            "slices": [{"profile": "gpu", "starts": [0], "owner": "chat"}],
            "gpus": ["node-9/0"],
        },
    ]


def test_who_gets_what_who_goes_short_and_what_moves_is_told():
    spec = spec_of(PLAN)

    assert spec["deployments"] == [
        {"namespace": "ml", "name": "code", "costPerHour": "4.00"},
        {
            "namespace": "default",
            "name": "chat",
            "chosen": [
                {"shape": "H100-80GB-SXM:1g.10gb", "precision": "bf16", "replicas": 2},
                {"shape": "L40S TP2", "precision": "bf16", "replicas": 1},
            ],
            "costPerHour": "2.90",
        },
    ]
    assert spec["short"] == [{"name": "ml/code", "priority": 3, "share": "1.0000", "reason": "no room"}]
    assert spec["moves"] == [
        {"owner": "chat", "from": "node-9/0", "to": "node-8/0 1g.10gb@1", "cost": "0.0025"}
    ]
    assert spec["notes"] == ["read me"]


def test_steps_say_where_and_after_which():
    assert [(s["number"], s["at"], s.get("after")) for s in spec_of(PLAN)["steps"]] == [
        (1, "node-8/0 MIG on", None),
        (2, "node-8/0 1g.10gb@0 3g.40gb@4", [1]),
        (3, "node-8/0 1g.10gb@0", [2]),
        (4, "spot/new-1 of GPUPool spot", None),
    ]


@pytest.mark.parametrize(
    ("current", "cost", "saves"),
    [(7.0, 7.51, "-0.51"), (7.51, 7.51, "0.00"), (7.509999, 7.51, "0.00"), (7.515, 7.51, "0.0050")],
)
def test_what_is_saved_may_be_negative_and_is_never_minus_zero(current, cost, saves):
    found = status_figures(PLAN | {"costPerHour": cost}, current_cost_per_hour=current, solve_s=0.0)
    assert found["savesPerHour"] == saves


def test_the_status_says_what_the_fleet_costs_and_how_long_the_solve_took():
    found = status_figures(PLAN, current_cost_per_hour=10.0, solve_s=1.234)

    assert found == {"currentCostPerHour": "10.00", "savesPerHour": "2.49", "solveSeconds": "1.23"}
    read = FleetPlanStatus.model_validate(found)
    assert read.model_dump(mode="json", by_alias=True, exclude_unset=True) == found
    assert not found.keys() & spec_of(PLAN).keys()


@pytest.mark.parametrize(
    ("gap", "told"), [(0.0, "0.00%"), (1e-7, "<0.01%"), (0.0123, "1.23%"), (1, "100.00%")]
)
def test_a_gap_that_is_not_closed_is_never_told_as_zero(gap, told):
    assert spec_of(PLAN | {"gap": gap})["gap"] == told


@pytest.mark.parametrize("long_names", [False, True])
def test_ten_thousand_gpus_and_five_hundred_models_fit_an_object(long_names):
    plan = large_plan(long_names=long_names)

    spec = spec_of(plan)

    assert_fits_the_api(spec)
    assert len(json.dumps(spec, ensure_ascii=False).encode()) < 500 * 1024
    kept = {name: len(value) for name, value in spec.items() if isinstance(value, list)}
    assert min(kept.values()) > 0
    # What is left out is counted, and what is kept comes first.
    assert (spec["gpuCount"], spec["totalDeployments"], spec["totalSteps"]) == (10_000, 500, 29_999)
    assert (spec["totalMoves"], spec["unmet"]) == (5000, 500)
    assert kept["layouts"] < spec["totalLayouts"]
    assert [step["number"] for step in spec["steps"]] == list(range(1, kept["steps"] + 1))
    assert long_names or kept["deployments"] == 500


def test_a_large_fleet_of_few_layouts_is_kept_whole():
    plan = large_plan()
    for i, gpu in enumerate(plan["gpus"]):
        gpu |= {"instances": plan["gpus"][i % 250]["instances"], "free": [], "recut": False}

    spec = spec_of(plan)

    assert sum(layout["count"] for layout in spec["layouts"]) == 10_000
    assert len(spec["layouts"]) == spec["totalLayouts"] <= 250


def test_equal_documents_give_equal_records_whatever_their_order():
    turned = PLAN | {key: PLAN[key][::-1] for key in ("gpus", "deployments")}

    assert json.dumps(spec_of(turned)) == json.dumps(spec_of(PLAN))


@pytest.mark.parametrize("files", [("fleet.yaml", "models.yaml"), ("fragmented.yaml",)], ids=" ".join)
def test_what_tangram_plans_fits_the_api(files):
    words = [word for name in files for word in ("-f", EXAMPLES / name)]
    status, out, _ = run("plan", *words, "-o", "json")
    assert status == 0
    plan = json.loads(out)

    spec = spec_of(plan)

    assert_fits_the_api(spec)
    assert sum(layout["count"] for layout in spec["layouts"]) == len(plan["gpus"]) == spec["gpuCount"]
    told = Counter()
    for layout in spec["layouts"]:
        for each in layout.get("slices", ()):
            told[layout["sku"], each["profile"], each.get("owner")] += len(each["starts"]) * layout["count"]
    assert told == Counter(
        (gpu["sku"], each["profile"], each.get("owner"))
        for gpu in plan["gpus"]
        for each in (*gpu["instances"], *gpu["free"])
    )
    assert [step["number"] for step in spec["steps"]] == [step["number"] for step in plan["steps"]]
