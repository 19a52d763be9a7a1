"""Where the time of a test run goes: per folder, the slowest tests, the total, and a budget for it.

Processor time counts this process and the children that it has waited for, so that a report from a busy
machine can be compared with one from a quiet machine. A fixture of a module or session is counted where it is
set up and torn down: at the first and at the last test that uses it.
"""

import time
from collections import Counter
from collections.abc import Generator
from pathlib import PurePosixPath

import pytest

from tests.support.process_tree import processor_seconds

SLOWEST = 20


class DurationReport:
    """Adds `processor_s` to the report of each phase of a test; prints the sums at the end.

    With xdist the workers measure and the controller prints.
    `budget_s`: wall-clock seconds that the run may take. A run above its budget passes: the machine may be
    busy; the report says so.
    """

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._begin = time.monotonic()
        self._phase_begin = 0.0
        self._wall: Counter[str] = Counter()
        self._processor: Counter[str] = Counter()

    def pytest_runtest_logstart(self) -> None:
        """Leave out what happens between two tests."""
        self._phase_begin = processor_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Measure setup, call and teardown."""
        report = yield
        now = processor_seconds()
        report.processor_s, self._phase_begin = now - self._phase_begin, now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase of one test."""
        self._wall[report.nodeid] += report.duration
        self._processor[report.nodeid] += getattr(report, "processor_s", 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the report."""
        if not self._wall:
            return
        write = terminalreporter.write_line
        terminalreporter.section("durations")
        write(f"{'wall s':>9} {'CPU s':>9} {'tests':>6}  folder")
        tests = Counter(folder_of(test) for test in self._wall)
        processor = by_folder(self._processor)
        for folder, seconds in by_folder(self._wall).most_common():
            write(f"{seconds:9.1f} {processor[folder]:9.1f} {tests[folder]:6}  {folder}")
        write(f"{self._wall.total():9.1f} {processor.total():9.1f} {tests.total():6}  all")
        write(f"\n{'wall s':>9} {'CPU s':>9}  the slowest {SLOWEST}")
        for test, seconds in self._wall.most_common(SLOWEST):
            write(f"{seconds:9.1f} {self._processor[test]:9.1f}  {test}")
        elapsed = time.monotonic() - self._begin
        write(f"\nThe run took {elapsed:.0f} s, imports and collection included.")
        verdict = "within" if elapsed <= self._budget_s else "ABOVE"
        write(f"That is {verdict} its budget of {self._budget_s:.0f} s on two quiet cores.")


def folder_of(test: str) -> str:
    """`tests/shell` of `tests/shell/test_outages.py::test_name`."""
    return str(PurePosixPath(test.partition("::")[0]).parent)


def by_folder(seconds: Counter[str]) -> Counter[str]:
    """Sum the seconds of the tests of each folder."""
    sums: Counter[str] = Counter()
    for test, part in seconds.items():
        sums[folder_of(test)] += part
    return sums
