"""A test file whose processor seconds have grown is found, on any machine."""

import json
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.duration_report import DurationReport
from tests.support.process_tree import processor_seconds
from tests.support.processor_budget import ProcessorBudget, record, seconds_before, table_text

TABLE = {"tests/a.py": 20.0, "tests/b.py": 100.0, "tests/c.py": 80.0, "tests/small.py": 2.0}
GROWN = TABLE | {"tests/a.py": 40.0}


def slower(seconds: dict[str, float], factor: float = 2.0) -> dict[str, float]:
    return {file: factor * each for file, each in seconds.items()}


def test_a_file_that_has_grown_in_two_runs_in_a_row_exceeds_its_entry() -> None:
    budget = ProcessorBudget(TABLE, before=GROWN)

    assert budget.exceeding_twice(GROWN) == {"tests/a.py"}
    assert any("tests/a.py" in line and "two runs" in line for line in budget.report(GROWN))


def test_a_file_that_has_grown_in_one_run_is_reported_only() -> None:
    budget = ProcessorBudget(TABLE, before=TABLE)

    assert budget.exceeding_twice(GROWN) == set()
    assert any("tests/a.py" in line and "once" in line for line in budget.report(GROWN))


def test_a_first_run_exceeds_nothing() -> None:
    assert ProcessorBudget(TABLE, before={}).exceeding_twice(GROWN) == set()
    assert ProcessorBudget({}, before=GROWN).exceeding_twice(GROWN) == set()


def test_a_slower_machine_exceeds_nothing() -> None:
    assert ProcessorBudget(TABLE, before=slower(TABLE)).exceeding(slower(TABLE)) == set()


def test_a_file_that_waits_does_not_exceed_its_entry_where_all_others_are_quicker() -> None:
    quicker = slower(TABLE, 0.5) | {"tests/a.py": 20.0}

    assert ProcessorBudget(TABLE, before=quicker).exceeding(quicker) == set()


def test_growth_is_found_on_a_slower_machine() -> None:
    budget = ProcessorBudget(TABLE, before=GROWN)

    assert budget.exceeding_twice(slower(GROWN)) == {"tests/a.py"}


def test_the_largest_file_does_not_hide_its_own_growth() -> None:
    table = {"tests/large.py": 100.0, "tests/other.py": 20.0}

    assert ProcessorBudget(table, {}).exceeding(table | {"tests/large.py": 200.0}) == {"tests/large.py"}


def test_a_file_below_ten_seconds_is_not_compared() -> None:
    seconds = TABLE | {"tests/small.py": 9.0}

    assert ProcessorBudget(TABLE, {}).exceeding(seconds) == set()


def test_a_large_file_without_an_entry_is_reported_and_fails_nothing() -> None:
    seconds = TABLE | {"tests/new.py": 50.0, "tests/new_and_small.py": 1.0}
    budget = ProcessorBudget(TABLE, before=seconds)

    assert budget.exceeding_twice(seconds) == set()
    assert [line for line in budget.report(seconds) if " new" in line] == [
        "     50.0       new  tests/new.py"
    ]


def test_the_report_names_the_files_that_grew_most() -> None:
    lines = ProcessorBudget(TABLE, {}).report(GROWN, most=1)

    assert lines[1].split() == ["40.0", "20.0", "tests/a.py"]
    assert "tests/b.py" not in "".join(lines)


def test_the_table_is_read_as_it_was_written() -> None:
    assert tomllib.loads(table_text(TABLE)) == TABLE


@pytest.mark.parametrize(
    ("before", "status"), [(TABLE, pytest.ExitCode.OK), (GROWN, pytest.ExitCode.TESTS_FAILED)]
)
def test_a_run_fails_by_growth_in_the_run_before_and_in_this_one(
    before: dict[str, float], status: pytest.ExitCode, cache: Path
) -> None:
    session = finished(before, pytest.ExitCode.OK)

    assert session.exitstatus == status
    assert json.loads((cache / "cpu_seconds.json").read_text()) == GROWN


def test_a_run_that_failed_otherwise_is_not_kept(cache: Path) -> None:
    session = finished(GROWN, pytest.ExitCode.INTERRUPTED)

    assert session.exitstatus == pytest.ExitCode.INTERRUPTED
    assert list(cache.iterdir()) == []


def test_two_runs_of_different_files_are_both_kept(cache: Path) -> None:
    record({"tests/conftest.py": 1.0, "tests/deleted.py": 3.0})

    record({"tests/repository/test_processor_budget.py": 2.0})

    assert seconds_before() == {"tests/conftest.py": 1.0, "tests/repository/test_processor_budget.py": 2.0}


def test_a_run_is_compared_with_the_same_files_of_the_run_before() -> None:
    slower_others = {"tests/other.py": 1000.0}
    table = TABLE | {"tests/other.py": 100.0}

    assert ProcessorBudget(table, before=GROWN | slower_others).exceeding_twice(GROWN) == {"tests/a.py"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TANGRAM_CACHE", str(tmp_path))
    return tmp_path


def finished(before: dict[str, float], status: pytest.ExitCode) -> Any:
    """End a run that took `GROWN`; return its session."""
    report = DurationReport(1.0, compared=False)
    report._processor_budget = ProcessorBudget(TABLE, before)
    report._processor = Counter({f"{file}::test_it": seconds for file, seconds in GROWN.items()})
    session: Any = SimpleNamespace(config=object(), exitstatus=status)
    report.pytest_sessionfinish(session, status)
    return session


@pytest.mark.parametrize("ended", [False, True])
def test_seconds_of_children_and_their_children_count_while_they_run_and_afterwards(
    ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.process_tree.FRESH_S", 0.0)
    work = "import time; end = time.process_time() + 0.42\nwhile time.process_time() < end: pass\n"
    inner = f"{work}print('done', flush=True); input()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    before = processor_seconds()

    with subprocess.Popen(
        [sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"done\n"
        if ended:
            child.stdin.write(b"\n")
            child.stdin.close()
            child.wait()
        took_s = processor_seconds() - before
        if not ended:
            child.stdin.write(b"\n")

    assert took_s >= 0.4
