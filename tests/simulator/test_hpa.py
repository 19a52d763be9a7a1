"""The HPA of the simulator on cases that are counted by hand."""

import pytest

from tangram.scaling.queries import RUNNING
from tangram.simulator.controllers import HPAOnUtilisation
from tangram.simulator.controllers.hpa_behavior import HPAStabilizer
from tests.support.scraped_fleet import ScrapedFleet


def hpa():
    return HPAOnUtilisation(RUNNING, 100)


@pytest.mark.parametrize(
    ("running", "ready", "starting", "expected"),
    [
        ([90, 90], 2, 0, 3),  # ceil(2 * 0.9 / 0.7)
        ([75, 75], 2, 0, 2),  # inside the tolerance
        ([90, 90], 2, 2, 4),  # pods that start count as idle: 4 pods at 0.45 would be enough
        ([100, 100], 2, 1, 3),  # 3 pods at 0.67 are inside the tolerance
        ([20, 20], 3, 0, 3),  # the pod that does not report counts as at the target, and down takes 300 s
    ],
)
def test_pods_that_do_not_report_count_against_the_change(running, ready, starting, expected):
    fleet = ScrapedFleet(len(running)).set(running=running).wait(15)

    assert hpa().decide(fleet.view(ready + starting, ready=ready, starting=starting)) == expected


@pytest.mark.parametrize("away", [ScrapedFleet.prometheus_down, ScrapedFleet.fall_silent])
def test_replicas_stay_while_no_metric_can_be_read(away):
    fleet, law = ScrapedFleet(4).set(running=30).wait(600), hpa()
    away(fleet)

    assert {law.decide(fleet.view(after=seconds)) for seconds in range(1800, 3000, 15)} == {4}


def test_replicas_step_down_to_the_highest_recommendation_of_five_minutes():
    fleet, stabilizer = ScrapedFleet(), HPAStabilizer()
    replicas, after = 10, {}
    for seconds in range(0, 630, 15):
        recommended = 10 if seconds < 60 else 6 if seconds < 120 else 1
        replicas = stabilizer.replicas(fleet.wait(15).view(replicas), recommended)
        after[seconds] = replicas

    # 10 until the last recommendation of 10, at 45 s, is 300 s old; 6 until that of 105 s is; then 1.
    assert [after[s] for s in (330, 345, 390, 405)] == [10, 6, 6, 1]


def test_as_many_replicas_are_added_as_the_policy_allows_each_period():
    fleet, stabilizer = ScrapedFleet(), HPAStabilizer()
    replicas, seen = 3, []
    for _ in range(4):
        replicas = stabilizer.replicas(fleet.wait(15).view(replicas), 100)
        seen.append(replicas)

    assert seen == [7, 14, 28, 56]
