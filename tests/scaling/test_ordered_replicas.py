"""Replicas that do not come: one must not freeze growth, and many must not be ordered for nothing."""

from dataclasses import replace

import pytest

from tangram.scaling import (
    Sample,
    ScalingMemory,
    ScalingObservation,
    ScalingParams,
    SupplyMemory,
    classify,
    decide,
)
from tangram.scaling import (
    ordered_replicas as supply,
)
from tests.scaling.test_control import INTENT

PARAMS = ScalingParams(window_s=60, scrape_interval_s=15, up_after_s=10, down_after_s=120, start_s=60)
MISSED = {"ttft_attainment": 0.4, "running": 8.0, "running_mean": 8.0, "requests": 300.0}


class Fleet:
    """Replicas of which the test says which start: `starts(number)` for the n-th that is ordered."""

    def __init__(self, starts, replicas=2, start_s=45.0, room=99, start_budget_s=0.0, **memory):
        self.starts, self.start_s, self.room, self.start_budget_s = starts, start_s, room, start_budget_s
        self.memory, self.now = ScalingMemory(supply=SupplyMemory(**memory)), 1000.0
        self.wanted, self.ready, self.ordered, self.coming = replicas, replicas, 0, []
        self.flapping = 0  # ready in every fourth tick

    def tick(self, **load):
        self.now += 15.0
        self.ready += sum(1 for at in self.coming if at <= self.now)
        self.coming = [at for at in self.coming if at > self.now]
        ready = self.ready + (self.flapping if round(self.now / 15) % 4 == 0 else 0)
        seen = Sample(self.now, float(ready), 3.0, 0.0, **(MISSED | load))
        decision = decide(
            replace(self.memory, replicas=self.wanted),
            PARAMS,
            INTENT,
            ScalingObservation(
                self.now,
                ready,
                classify(seen, "", ready=ready, params=PARAMS, now=self.now),
                existing=min(self.wanted, self.room),
                start_budget_s=self.start_budget_s,
            ),
        )
        self.memory = decision.memory
        for _ in range(max(0, min(decision.replicas, self.room) - self.wanted)):
            self.ordered += 1
            if self.starts(self.ordered):
                self.coming.append(self.now + self.start_s)
        self.wanted = decision.replicas
        return decision

    def run(self, ticks):
        return [self.tick() for _ in range(ticks)]


def test_growth_goes_on_beside_one_replica_that_never_starts():
    fleet = Fleet(lambda number: number != 1)

    decisions = fleet.run(80)

    assert decisions[-1].replicas == INTENT.max_replicas
    assert any("1 of 5 replicas did not become ready in time" in d.warning for d in decisions)


def test_growth_goes_on_beside_a_replica_that_is_ready_for_a_moment_between_two_crashes():
    fleet = Fleet(lambda number: number != 1)
    fleet.tick()
    fleet.flapping = 1

    assert fleet.run(80)[-1].replicas == INTENT.max_replicas


def test_a_replica_that_is_expected_still_delays_the_next_step():
    fleet = Fleet(lambda _number: True, start_s=150.0)

    assert [d.replicas for d in fleet.run(8)] == [3] * 8


def test_an_image_that_never_starts_is_not_ordered_up_to_the_maximum():
    fleet = Fleet(lambda _number: False)

    decisions = fleet.run(400)

    assert decisions[-1].replicas == 4  # two orders of one each
    assert decisions[-1].reason == "ReplicasNotStarting"
    assert "no replica of the last orders became ready" in decisions[-1].warning


def test_growth_resumes_when_a_replica_starts_at_last():
    fleet = Fleet(lambda number: number > 2)
    fleet.run(60)
    assert fleet.wanted == 4

    fleet.ready += 1

    assert fleet.run(60)[-1].replicas > 4


def test_replicas_that_wait_for_room_are_not_late():
    fleet = Fleet(lambda _number: True, room=2)

    decisions = fleet.run(80)

    assert decisions[-1].replicas == 3
    assert fleet.memory.supply.written_off == 0


def test_replicas_of_a_runtime_that_starts_slowly_are_not_late_before_its_budget():
    """They are late after three minutes otherwise, and others are ordered beside them."""
    slow, usual = (Fleet(lambda _number: True, start_s=1500.0, start_budget_s=s) for s in (1800.0, 0.0))

    slow.run(90), usual.run(90)  # of 15 s

    assert slow.memory.supply.written_off == 0 < usual.memory.supply.written_off
    assert slow.wanted == 3 < usual.wanted


def test_what_came_back_counts_again():
    fleet = Fleet(lambda number: number != 1)
    fleet.run(30)
    assert fleet.memory.supply.written_off == 1

    fleet.ready = fleet.wanted
    for _ in range(6):
        fleet.tick(ttft_attainment=0.99)

    assert fleet.memory.supply.written_off == 0


@pytest.mark.parametrize(
    ("measured", "deadline_s"), [(None, 180.0), (10.0, 120.0), (100.0, 300.0), (5000.0, 3600.0)]
)
def test_the_deadline_follows_the_starts_that_were_measured(measured, deadline_s):
    assert supply.deadline_s(SupplyMemory(start_s=measured), PARAMS) == deadline_s


def test_starts_are_measured():
    fleet = Fleet(lambda _number: True, start_s=90.0)

    fleet.run(40)

    assert fleet.memory.supply.start_s == pytest.approx(90.0, abs=15.0)


def test_a_clock_that_is_set_back_makes_nothing_late():
    fleet = Fleet(lambda _number: False)
    fleet.run(3)
    fleet.now -= 3600.0

    assert fleet.run(3)[-1].memory.supply.written_off == 0


def test_a_restart_remembers_what_is_late():
    fleet = Fleet(lambda _number: False)
    fleet.run(60)
    kept = fleet.memory.supply

    fleet.memory = ScalingMemory(
        supply=SupplyMemory(written_off=kept.written_off, failed_orders=kept.failed_orders)
    )

    assert {d.reason for d in fleet.run(20)} == {"ReplicasNotStarting"}


@pytest.mark.parametrize(("held", "written_off"), [(12, 3), (11, 2), (10, 1), (9, 0)])
def test_a_smaller_order_ends_late_replicas_before_others(held, written_off):
    """Else they would be ordered beside the smaller number again, as often as the load allows it."""
    memory = SupplyMemory(ready=9, settled_ready=9, stable_since=0.0, written_off=3)

    seen = supply.observe(memory, PARAMS, held=held, existing=held, ready=9, now=1000.0)

    assert seen.written_off == written_off
