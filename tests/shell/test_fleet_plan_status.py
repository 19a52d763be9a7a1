"""The status of a FleetPlan: its fields, and when it is written again."""

import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tangram.kube.kinds import uid_of
from tangram.kube.store import Store
from tangram.shell.decide.recommendation_worker import RecommendationResult
from tangram.shell.report.fleet_plans import FleetPlans
from tangram.shell.watch.kept_fields import fleet_plan
from tests.support.recommenders import FIGURES, SPEC

SINCE = "1970-01-01T00:16:40Z"


class PlansAPI:
    """The API server as far as FleetPlans go. `drops`: status fields that its CRD does not know."""

    def __init__(self, drops: tuple[str, ...] = ()) -> None:
        self.store = Store(fleet_plan)
        self.drops, self.writes, self._version = drops, 0, 0

    async def create(self, _kind: Any, plan: dict[str, Any], **_: Any) -> dict[str, Any]:
        return self.put(plan | {"metadata": plan["metadata"] | {"uid": f"uid-{plan['metadata']['name']}"}})

    async def apply(self, _kind: Any, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        self.writes += 1
        before = self.store.get(("", body["metadata"]["name"]))
        status = {key: value for key, value in body["status"].items() if key not in self.drops}
        return self.put(copy.deepcopy(before) | {"status": status})

    def put(self, plan: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        plan["metadata"]["resourceVersion"] = str(self._version)
        self.store.upsert(copy.deepcopy(plan))
        return plan

    def status(self, name: str) -> dict[str, Any]:
        stored = self.store.get(("", name))
        assert stored is not None
        return stored["status"]


def writer(api: PlansAPI, now: float = 1000.0) -> FleetPlans:
    return FleetPlans(
        client=api,  # type: ignore[arg-type]
        mirror=SimpleNamespace(store=api.store, synced=True, unavailable=False),  # type: ignore[arg-type]
        events=SimpleNamespace(add=lambda *_: None),  # type: ignore[arg-type]
        clock=lambda: 0.0,
        now=lambda: now,
        operator="here",
    )


def advised(name: str = "abc", **figures: str) -> RecommendationResult:
    return RecommendationResult(name, SPEC, FIGURES | figures, True, ())


async def test_a_new_fleet_plan_gets_state_and_figures_in_one_write() -> None:
    api = PlansAPI()

    await writer(api).write(advised(), lambda: 1.0)

    assert api.status("abc") == {"state": "Recommended", "since": SINCE} | FIGURES
    assert api.writes == 1


async def test_another_solve_time_alone_is_not_written() -> None:
    api = PlansAPI()
    await writer(api).write(advised(), lambda: 1.0)

    await writer(api).write(advised(solveSeconds="9.99"), lambda: 1.0)

    assert api.writes == 1
    assert api.status("abc")["solveSeconds"] == "0.31"


async def test_a_changed_figure_is_written_and_the_state_keeps_its_time() -> None:
    api = PlansAPI()
    await writer(api).write(advised(), lambda: 1.0)

    await writer(api, now=5000.0).write(advised(currentCostPerHour="4.00"), lambda: 1.0)

    assert api.status("abc")["currentCostPerHour"] == "4.00"
    assert api.status("abc")["since"] == SINCE


async def test_a_superseded_fleet_plan_keeps_its_figures_until_it_is_current_again() -> None:
    api = PlansAPI()
    plans = writer(api)
    await plans.write(advised(), lambda: 1.0)
    await plans.write(advised("def"), lambda: 1.0)
    assert api.status("abc") == {"state": "Superseded", "since": SINCE} | FIGURES

    await plans.write(advised(solveSeconds="2.00"), lambda: 1.0)

    assert (api.status("abc")["state"], api.status("abc")["solveSeconds"]) == ("Recommended", "2.00")
    assert api.status("def")["state"] == "Superseded"


@pytest.mark.parametrize("state", ["Recommended", "Superseded"])
async def test_a_fleet_plan_of_an_earlier_version_without_figures_is_no_error(state: str) -> None:
    api = PlansAPI()
    plans = writer(api)
    labels = plans._labels()
    old = {"metadata": {"name": "old", "uid": "uid-old", "labels": labels}, "spec": {"savesPerHour": "1.00"}}
    api.put(old | {"status": {"state": state, "since": SINCE}})

    await plans.write(advised(), lambda: 1.0)
    await plans.write(advised(), lambda: 1.0)

    assert api.status("old") == {"state": "Superseded", "since": SINCE}
    assert api.writes == 1 + (state == "Recommended")


async def test_missing_figures_are_written_once_even_where_the_crd_drops_them() -> None:
    api = PlansAPI(drops=tuple(FIGURES))
    plans = writer(api)
    for _ in range(3):
        await plans.write(advised(), lambda: 1.0)
    assert api.writes == 1

    api.drops = ()
    await writer(api).write(advised(), lambda: 1.0)

    assert api.status("abc") == {"state": "Recommended", "since": SINCE} | FIGURES
    assert uid_of(api.store.get(("", "abc")) or {}) == "uid-abc"


@pytest.mark.parametrize(
    ("current", "plan", "text"),
    [
        (
            "6.15",
            {"costPerHour": "3.07", "totalMoves": 1},
            "The fleet would cost 3.07 $/h instead of 6.15 $/h; 1 replica would move",
        ),
        (
            "3.07",
            {"costPerHour": "3.07", "totalMoves": 2},
            "The fleet would cost 3.07 $/h, as it does now; 2 replicas would move",
        ),
        (
            "3.07",
            {"costPerHour": "6.15", "unmet": 1},
            "The fleet would cost 6.15 $/h instead of 3.07 $/h, because it would serve more; 1 LLMDeployment"
            " would have unmet demand",
        ),
        (
            "6.15",
            {"costPerHour": "3.07", "gap": "2.31%"},
            "The fleet would cost 3.07 $/h instead of 6.15 $/h (gap 2.31%)",
        ),
    ],
)
async def test_the_event_of_a_better_plan_says_what_it_is_better_in(current, plan, text) -> None:
    notes: list[Any] = []
    plans = writer(PlansAPI())
    plans.events = SimpleNamespace(add=lambda _plan, note, _kind: notes.append(note))  # type: ignore[assignment]
    spec = SPEC | {"gap": "0.00%", "unmet": 0, "totalMoves": 0} | plan
    result = replace(advised(currentCostPerHour=current), spec=spec)

    await plans.write(result, lambda: None)

    assert [note.message for note in notes] == [text]
