"""Where the time of a test run goes: per folder, the slowest tests, the total, and a budget for it.

Processor time counts this process and all its descendants, so that a report from a busy machine can be
compared with one from a quiet machine. A fixture of a module is counted where it is set up and torn down: at
the first and at the last test that uses it. The start of a fixture of the session, an API server for example,
is counted for itself: which test is the first to use it depends on the distribution over processes.
"""

import time
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import PurePosixPath
from typing import Any

import pytest

from tests.support.process_tree import processor_seconds
from tests.support.processor_budget import load_budget, record

SLOWEST = 20
SESSION = "fixtures of the session"


class DurationReport:
    """Adds `processor_s` to the report of each phase of a test; prints the sums at the end.

    With xdist the workers measure and the controller prints.
    `budget_s`: wall-clock seconds that the run may take. A run above its budget passes: the machine may be
    busy; the report says so.
    `compared`: whether the files are compared with the table of processor seconds. A run with a file that
    exceeds its entry twice fails.
    """

    def __init__(self, budget_s: float, *, compared: bool) -> None:
        self._budget_s = budget_s
        self._processor_budget = load_budget() if compared else None
        self._begin = time.monotonic()
        self._phase_begin = 0.0
        self._session_s = 0.0  # not reported yet
        self._wall: Counter[str] = Counter()
        self._processor: Counter[str] = Counter()

    def pytest_runtest_logstart(self) -> None:
        """Leave out what happens between two tests."""
        self._phase_begin = processor_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        """Measure the start of what the tests of a process share."""
        if fixturedef.scope != "session":
            return (yield)
        begin = processor_seconds()
        try:
            return (yield)
        finally:
            took_s = processor_seconds() - begin
            self._session_s += took_s
            self._phase_begin += took_s

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Measure setup, call and teardown."""
        report = yield
        now = processor_seconds()
        # Less where a process has ended and its parent did not wait for it, as those of a pod.
        report.processor_s, self._phase_begin = max(0.0, now - self._phase_begin), now
        report.session_s, self._session_s = self._session_s, 0.0
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase of one test."""
        self._wall[report.nodeid] += report.duration
        self._processor[report.nodeid] += getattr(report, "processor_s", 0.0)
        if session_s := getattr(report, "session_s", 0.0):
            self._processor[SESSION] += session_s

    @property
    def _file_seconds(self) -> dict[str, float]:
        sums = seconds_by(file_of, self._processor)
        return {file: round(seconds, 1) for file, seconds in sums.items() if file != SESSION}

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Fail a run that passed, where the processor seconds of a file have grown for good."""
        budget = self._processor_budget
        if budget is None or hasattr(session.config, "workerinput") or exitstatus != pytest.ExitCode.OK:
            return
        record(self._file_seconds)
        if budget.exceeding_twice(self._file_seconds):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the report."""
        if not self._wall:
            return
        write = terminalreporter.write_line
        terminalreporter.section("durations")
        write(f"{'wall s':>9} {'CPU s':>9} {'tests':>6}  folder")
        tests = Counter(folder_of(test) for test in self._wall)
        wall, processor = seconds_by(folder_of, self._wall), seconds_by(folder_of, self._processor)
        for folder, seconds in wall.most_common():
            write(f"{seconds:9.1f} {processor[folder]:9.1f} {tests[folder]:6}  {folder}")
        write(f"{'':9} {self._processor[SESSION]:9.1f} {'':6}  {SESSION}")
        write(f"{self._wall.total():9.1f} {self._processor.total():9.1f} {tests.total():6}  all")
        write(f"\n{'wall s':>9} {'CPU s':>9}  the slowest {SLOWEST}")
        for test, seconds in self._wall.most_common(SLOWEST):
            write(f"{seconds:9.1f} {self._processor[test]:9.1f}  {test}")
        if self._processor_budget is not None:
            write("")
            for line in self._processor_budget.report(self._file_seconds):
                write(line)
        elapsed = time.monotonic() - self._begin
        write(f"\nThe run took {elapsed:.0f} s, imports and collection included.")
        verdict = "within" if elapsed <= self._budget_s else "ABOVE"
        write(f"That is {verdict} its budget of {self._budget_s:.0f} s on two quiet cores.")


def file_of(test: str) -> str:
    """`tests/shell/test_outages.py` of `tests/shell/test_outages.py::test_name`."""
    return test.partition("::")[0]


def folder_of(test: str) -> str:
    """`tests/shell` of `tests/shell/test_outages.py::test_name`."""
    return str(PurePosixPath(file_of(test)).parent)


def seconds_by(part_of: Callable[[str], str], seconds: Counter[str]) -> Counter[str]:
    """Sum the seconds of the tests by file, or by folder."""
    sums: Counter[str] = Counter()
    for test, part in seconds.items():
        sums[part_of(test)] += part
    return sums
