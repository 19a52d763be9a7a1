"""A clock that jumps while GPUs are cut: each plan ends, no hold stays, and nothing is cut on an open node.

Operator and agent in closed loop over the objects that they read and write. The clock of the operator jumps
once, between any two rounds, by hours or by years; later it may be set right again.
"""

from dataclasses import dataclass, field

import pytest

from tangram.fleet import (
    FleetSnapshot,
    LayoutChange,
    LayoutChanges,
    NodePartition,
    PartitionedGPU,
    PartitionView,
    Pool,
    offered_devices,
)
from tangram.plan.repartition import (
    HoldNode,
    PlanState,
    ReleaseNode,
    RepartitionLimits,
    SetLayouts,
    next_step,
)
from tangram.shell.repartition.fleet_state import (
    RETRY_S,
    Recommended,
    fleet_state,
    hold_value,
    plan_objects,
)
from tangram.shell.repartition.plan_objects import plan_object, plan_status
from tests.support.repartition_worlds import layout

NOW = 1_700_000_000.0
HOURS, YEARS = 3 * 3600.0, 10 * 365 * 86400.0
GPU, RESOURCE, TAINT = "GPU-00000000-0000-0000-0000-000000000001", "nvidia.com/gpu", "hold.tangram.dev/gpu"
HALVES = "2g.12gb@0 2g.12gb@2"
CUT = LayoutChanges((LayoutChange("a", GPU, layout("gpu"), layout(HALVES)),), (), "pool")
LIMITS = RepartitionLimits(cut_s=30.0, move_s=30.0, managed_s=30.0)
LONGEST = 30 + 60 + 60 + 60  # seconds: a plan, its retreat, once more after a hold of another clock
STEPS = ("gpu", "empty", "2g.12gb@0", HALVES)  # one operation of the agent after the other


@dataclass
class Cut:
    """One node, one GPU, one plan; a round a second."""

    wrong_s: float = 0.0  # the operator's clock beside the right one
    second: int = 0
    is_agent_up: bool = True
    has: str = "gpu"
    wanted: str | None = None
    is_seen: bool = True  # the agent knows the present spec
    plans: list = field(default_factory=list)
    taints: list = field(default_factory=list)
    opened_in_mid_cut: list = field(default_factory=list)  # seconds

    @property
    def now(self):
        return NOW + self.second + self.wrong_s

    @property
    def state(self):
        return (self.plans[-1].get("status") or {}).get("state") if self.plans else None

    def round(self):
        self.second += 1
        self._operator()
        is_cutting = self.wanted is not None and self.has != self.wanted
        if is_cutting and self.has == "gpu" and not self.taints:  # the next operation takes the GPU away
            self.opened_in_mid_cut.append(self.second)
        if self.is_agent_up:
            self.is_seen = True
            if is_cutting:
                self.has = STEPS[STEPS.index(self.has) + (1 if self.wanted == HALVES else -1)]

    def _operator(self):
        step, world = self._decided()
        for record, progress in zip(world.plans, step.progress, strict=True):
            found = next((p for p in self.plans if p["metadata"]["name"] == record.name), None)
            if found is None:
                found = plan_object(record.name, record.changes, "", {})
                found["metadata"]["creationTimestamp"] = "2023-11-14T22:13:20Z"
                self.plans.append(found)
            found["status"] = plan_status(progress, record, world.now)
        for action in step.actions:
            match action:
                case HoldNode():
                    self.taints = [self._taint(action)]
                case ReleaseNode():
                    self.taints = []
                case SetLayouts(layouts=((_, wished),)):
                    self.wanted = None if wished is None else HALVES if wished == layout(HALVES) else "gpu"
                    self.is_seen = False

    def _decided(self):
        there = layout(self.has)
        wanted = () if self.wanted is None else ((GPU, layout(self.wanted)),)
        partition = NodePartition(
            "a",
            "nvml",
            is_applied=self.is_seen and self.wanted in (None, self.has),
            is_current=self.is_seen,
            gpus=(PartitionedGPU(GPU, there, "A30"),),
            wanted=wanted,
        )
        offered = offered_devices({GPU: there})
        node = {"metadata": {"name": "a", "creationTimestamp": "2023-11-14T22:00:00Z"}, "taints": self.taints}
        node["allocatable"] = {resource: str(count) for resource, count in offered.items()}
        snapshot = FleetSnapshot(
            pools=(Pool("pool", (("pool", "x"),), backend="nvml"),),
            partition=PartitionView(nodes=(partition,)),
        )
        known = Recommended("", (CUT,) if self.has == "gpu" else (), frozenset({"a"}))
        world = fleet_state(snapshot, (), [node], [], plan_objects(self.plans), known, LIMITS, self.now)
        return next_step(world), world

    def _taint(self, action):
        value = hold_value(max(action.since, self.now), action.until)
        return {"key": TAINT, "value": value, "effect": "NoSchedule"}


def ended(cut, seconds=LONGEST):
    """Go on until the plan has ended and nothing is held or under way; return whether it did."""
    for _ in range(seconds):
        cut.round()
        is_final = cut.state in list(PlanState) and PlanState(cut.state).is_final
        if is_final and not cut.taints and cut.is_seen and cut.wanted in (None, cut.has):
            return True
    return False


def test_without_a_jump_the_gpu_is_cut():
    cut = Cut()

    assert ended(cut)
    assert (cut.state, cut.has, cut.opened_in_mid_cut) == ("Done", HALVES, [])


@pytest.mark.parametrize("jump_s", [HOURS, -HOURS, YEARS, -YEARS], ids=["hours", "-hours", "years", "-years"])
@pytest.mark.parametrize("is_set_right", [False, True], ids=["stays wrong", "is set right"])
@pytest.mark.parametrize("is_agent_up", [True, False], ids=["agent up", "agent down"])
def test_a_jump_between_any_two_rounds_ends_in_a_legal_state(jump_s, is_set_right, is_agent_up):
    for at in range(12):
        cut = Cut(is_agent_up=is_agent_up)
        for _ in range(at):
            cut.round()
        cut.wrong_s = jump_s
        if is_set_right:
            for _ in range(5):
                cut.round()
            cut.wrong_s = 0.0

        if not is_agent_up:
            for _ in range(LONGEST):
                cut.round()
            assert cut.taints == [], (at, cut)
            cut.is_agent_up = True

        assert ended(cut), (at, cut)
        assert cut.opened_in_mid_cut == [], (at, cut)


@pytest.mark.parametrize("jump_s", [HOURS, YEARS], ids=["hours", "years"])
def test_what_failed_by_a_clock_that_was_ahead_is_tried_again_once_it_is_right(jump_s):
    cut = Cut(is_agent_up=False)
    while cut.wanted is None:
        cut.round()
    cut.wrong_s = jump_s
    while cut.state != "Failed":
        cut.round()
    cut.wrong_s, cut.is_agent_up = 0.0, True

    for _ in range(int(RETRY_S) + LONGEST):
        cut.round()

    assert (cut.state, cut.has, cut.taints) == ("Done", HALVES, [])


@pytest.mark.parametrize("value", ["{ahead}-{later}", "{now}-{later}", "{ahead}-{now}"])
def test_a_hold_that_another_clock_placed_is_lifted(value):
    now, ahead, later = int(NOW), int(NOW + HOURS), int(NOW + YEARS)
    cut = Cut(is_seen=False, is_agent_up=False)  # the backend is not at rest: it would stay until its end
    cut.plans = [plan_object(CUT.name, CUT, "", {}) | {"status": {"state": "Rejected"}}]
    cut.taints = [
        {"key": TAINT, "effect": "NoSchedule", "value": value.format(now=now, ahead=ahead, later=later)}
    ]

    cut.round()

    assert cut.taints == []


def test_a_hold_of_a_clock_that_is_a_little_ahead_stays():
    cut = Cut(is_seen=False, is_agent_up=False)
    cut.plans = [plan_object(CUT.name, CUT, "", {}) | {"status": {"state": "Rejected"}}]
    cut.taints = [{"key": TAINT, "effect": "NoSchedule", "value": f"{int(NOW + 30)}-{int(NOW + 120)}"}]

    cut.round()

    assert cut.taints != []
