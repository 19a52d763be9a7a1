"""Figures of a run, from requests, pods and replica counts that are made up."""

import math

import pytest

from tangram.simulator.cluster.simulated_pod import PodPhase, SimulatedPod
from tangram.simulator.control.control_loop import ReplicaCount
from tangram.simulator.result.attainment import Attainment, AttainmentWindow, violated_periods
from tangram.simulator.result.device_use import DeviceUse, device_use
from tangram.simulator.result.oscillation import reversals
from tests.support.fleet import shape


def _counts(*changes: tuple[float, int]) -> list[ReplicaCount]:
    return [ReplicaCount(at, desired, desired, desired) for at, desired in changes]


@pytest.mark.parametrize(
    ("changes", "number"),
    [
        ([(0, 2)], 0),
        ([(0, 2), (100, 3), (200, 5)], 0),
        ([(0, 2), (100, 3), (1000, 2)], 1),
        ([(0, 2), (100, 3), (1001, 2)], 0),
        ([(0, 2), (100, 3), (200, 3), (900, 2), (1000, 4)], 2),
    ],
)
def test_a_reversal_is_a_change_back_within_fifteen_minutes(
    changes: list[tuple[float, int]], number: int
) -> None:
    assert reversals(_counts(*changes)) == number


def _windows(*attained: int) -> list[AttainmentWindow]:
    return [AttainmentWindow(300.0 * place, 100, count) for place, count in enumerate(attained)]


def test_a_violated_period_ends_with_the_first_of_three_clean_windows() -> None:
    periods = violated_periods(_windows(100, 80, 96, 90, 99, 99, 99, 50), target=0.95)

    assert [(p.begin_s, p.end_s, p.missed) for p in periods] == [(300.0, 1200.0, 37), (2100.0, 2400.0, 50)]
    assert [p.recovery_s for p in periods] == [900.0, 300.0]


def test_the_share_of_windows_counts_those_with_requests() -> None:
    windows = (*_windows(100, 80, 95, 60), AttainmentWindow(1200.0, 0, 0))

    assert Attainment((), windows).window_share(0.95) == 0.5


def test_a_window_without_requests_is_clean() -> None:
    windows = [AttainmentWindow(0.0, 10, 0), *(AttainmentWindow(300.0 * n, 0, 0) for n in range(1, 5))]

    assert [(p.begin_s, p.end_s) for p in violated_periods(windows, 0.9)] == [(0.0, 300.0)]


def test_devices_cost_from_scheduling_to_the_end_of_the_drain() -> None:
    slice_shape = shape("1g.10gb")
    pods = [
        SimulatedPod(
            "a", 0, "u", shape(), 0.0, PodPhase.GONE, "n", None, 100.0, 460.0, 3000.0, gone_at=3700.0
        ),
        SimulatedPod("b", 1, "u", slice_shape, 0.0, PodPhase.STARTING, "n", None, 0.0),
        SimulatedPod("c", 2, "u", shape(), 6000.0),
        SimulatedPod("d", 3, "u", shape(), 50.0, PodPhase.GONE, gone_at=80.0),
    ]

    use = device_use(pods, lambda pod: 360.0 if pod.name == "a" else 0.0, lambda _shape: 4.0, 7200.0)

    share = 1 / 7
    assert use == DeviceUse(
        gpu_hours=pytest.approx(1.0 + 2 * share),
        usd=pytest.approx(4.0 + 8.0),
        starting_gpu_hours=pytest.approx(0.1 + 2 * share),
        draining_gpu_hours=pytest.approx(700 / 3600),
        idle_gpu_hours=pytest.approx(0.1),
        pending_s=pytest.approx(100.0 + 0.0 + 1200.0 + 30.0),
        starts=2,
    )
    assert math.isinf(pods[1].gone_at)
