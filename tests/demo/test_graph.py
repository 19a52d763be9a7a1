"""The demo's steps run side by side, in order, and a failure stops what has not begun."""

import threading

import pytest

from e2e.demo.graph import Reporter, Step, StepFailed, critical_path, run_steps


def quiet() -> Reporter:
    return Reporter(out=lambda _: None)


def test_a_step_runs_after_what_it_waits_for() -> None:
    order: list[str] = []
    steps = [
        Step("serve", lambda _: order.append("serve"), after=("build", "cluster")),
        Step("build", lambda _: order.append("build")),
        Step("cluster", lambda _: order.append("cluster"), after=("build",)),
    ]

    run_steps(steps, reporter=quiet())

    assert order == ["build", "cluster", "serve"]


def test_independent_steps_run_at_the_same_time() -> None:
    meeting = threading.Barrier(2, timeout=10)
    steps = [Step("a", lambda _: meeting.wait() and None), Step("b", lambda _: meeting.wait() and None)]

    run_steps(steps, reporter=quiet())  # would break the barrier if they ran one after the other


def test_a_failure_names_the_step_and_starts_nothing_new() -> None:
    ran: list[str] = []

    def fail(_: object) -> None:
        raise RuntimeError("no space left on device")

    with pytest.raises(StepFailed, match="images: no space left"):
        run_steps(
            [Step("images", fail), Step("load", lambda _: ran.append("load"), ("images",))], reporter=quiet()
        )

    assert ran == []


def test_a_circle_and_an_unknown_prerequisite_are_refused_before_anything_runs() -> None:
    ran: list[str] = []
    with pytest.raises(ValueError, match="each other"):
        run_steps(
            [Step("a", lambda _: ran.append("a"), ("b",)), Step("b", lambda _: None, ("a",))],
            reporter=quiet(),
        )
    with pytest.raises(ValueError, match="nobody runs"):
        run_steps([Step("a", lambda _: ran.append("a"), ("ghost",))], reporter=quiet())

    assert ran == []


def test_the_critical_path_follows_the_latest_prerequisite() -> None:
    steps = [
        Step("go", lambda _: None),
        Step("apt", lambda _: None),
        Step("up", lambda _: None, ("go", "apt")),
    ]

    path = critical_path(steps, {"go": (0.0, 300.0), "apt": (0.0, 60.0), "up": (300.0, 315.0)})

    assert path == ["go 300s", "up 15s"]
