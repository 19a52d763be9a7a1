"""Run steps side by side as their prerequisites allow, tell how each one goes, and find the critical path."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

Say = Callable[[str], None]
QUIET_AFTER_S = 15.0  # a running step speaks at least this often, so that silence means trouble


@dataclass(frozen=True, slots=True)
class Step:
    """One piece of work. `run` gets a function that tells progress and may return a closing remark."""

    name: str
    run: Callable[[Say], str | None]
    after: tuple[str, ...] = ()


class StepFailed(Exception):
    """A step failed; the message says which one and why."""


@dataclass(slots=True)
class _Clocked:
    started: float
    ended: float = 0.0


@dataclass(slots=True)
class Reporter:
    """Prints one line when a step starts, speaks or ends, with the time since the beginning."""

    out: Callable[[str], None] = print
    clock: Callable[[], float] = time.monotonic
    began: float = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _spoke: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began = self.clock()

    def line(self, mark: str, name: str, text: str = "") -> None:
        """Print one line now."""
        with self._lock:
            self._spoke[name] = self.clock()
            self.out(f"{self.clock() - self.began:7.1f}s {mark} {name:<26} {text}".rstrip())

    def progress(self, name: str, text: str) -> None:
        """Print progress, unless the step has just spoken."""
        if self.clock() - self._spoke.get(name, 0.0) >= QUIET_AFTER_S:
            self.line("·", name, text)


def run_steps(steps: Sequence[Step], *, reporter: Reporter | None = None, workers: int = 8) -> list[str]:
    """Run all steps; return the critical path as readable lines.

    Raises:
        StepFailed: a step raised. Steps already running are waited for, no further one starts.
        ValueError: a step waits for one that does not exist, or for itself in a circle.
    """
    _check(steps)
    report = reporter or Reporter()
    pending = {step.name: step for step in steps}
    times: dict[str, _Clocked] = {}
    running: dict[Future[str | None], Step] = {}
    failure: StepFailed | None = None
    with ThreadPoolExecutor(max_workers=workers) as pool:
        while pending or running:
            if failure is None:
                for step in [s for s in pending.values() if _ready(s, times)]:
                    del pending[step.name]
                    times[step.name] = _Clocked(report.clock())
                    report.line("▸", step.name)
                    running[pool.submit(step.run, lambda text, n=step.name: report.progress(n, text))] = step
            if not running:
                break
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                step = running.pop(future)
                failure = _finish(step, future, times, report) or failure
    if failure is not None:
        raise failure
    return critical_path(steps, {name: (t.started, t.ended) for name, t in times.items()})


def _finish(
    step: Step, future: Future[str | None], times: dict[str, _Clocked], report: Reporter
) -> StepFailed | None:
    clocked = times[step.name]
    error = future.exception()
    ended = report.clock()
    took = f"{ended - clocked.started:.1f}s"
    if error is not None:
        report.line("✗", step.name, f"{took}  {error}")
        failed = StepFailed(f"{step.name}: {error}")
        failed.__cause__ = error
        return failed
    clocked.ended = ended
    report.line("✓", step.name, f"{took}  {future.result() or ''}")
    return None


def _ready(step: Step, times: dict[str, _Clocked]) -> bool:
    return all(name in times and times[name].ended for name in step.after)


def _check(steps: Sequence[Step]) -> None:
    names = {step.name for step in steps}
    seen: set[str] = set()
    left = list(steps)
    for step in steps:
        if missing := set(step.after) - names:
            raise ValueError(f"step {step.name!r} waits for {sorted(missing)}, which nobody runs")
    while left:
        free = [step for step in left if set(step.after) <= seen]
        if not free:
            raise ValueError(f"steps wait for each other: {sorted(step.name for step in left)}")
        seen |= {step.name for step in free}
        left = [step for step in left if step.name not in seen]


def critical_path(steps: Sequence[Step], times: dict[str, tuple[float, float]]) -> list[str]:
    """Walk back from the step that ended last, each time to the prerequisite that ended last."""
    by_name = {step.name: step for step in steps}
    name: str | None = max(times, key=lambda n: times[n][1], default=None)
    path: list[str] = []
    while name is not None:
        started, ended = times[name]
        path.append(f"{name} {ended - started:.0f}s")
        name = max(by_name[name].after, key=lambda n: times[n][1], default=None)
    return path[::-1]


def stderr_line(text: str) -> None:
    """Print to standard error, unbuffered: the output of a demo is often piped."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
