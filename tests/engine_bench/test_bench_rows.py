"""A row of the GPU benchmark costs its seconds and nothing else, whatever becomes of it."""

import argparse
import json
import time
from pathlib import Path

import pytest

from benchmarks.engine.bench_rows import (
    BenchmarkRow,
    MeasuredValue,
    ResultFile,
    RowResult,
    Unavailable,
    line,
    run_rows,
    table,
)
from benchmarks.engine.gpu import supervise
from benchmarks.engine.predictions import Prediction

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def file(tmp_path):
    return ResultFile(tmp_path / "stage.json")


def row(name, run, seconds=5.0):
    return BenchmarkRow(name, seconds, run, prediction=name)


def good(_seconds):
    return MeasuredValue(10.0, "tok/s", {"steps": 3})


def bad(_seconds):
    raise ValueError("no such kernel")


def missing(_seconds):
    raise Unavailable("not installed: msgspec")


def run(file, rows, seconds=60.0, predictions=None, *, broken=False):
    return run_rows(rows, file, seconds, predictions or {}, lambda: broken)


def test_the_next_row_goes_on_after_a_failure_and_after_a_missing_package(file):
    assert run(file, [row("a", bad), row("b", missing), row("c", good)])

    assert [result.status for result in file.results] == ["failed", "skipped", "ok"]
    assert "no such kernel" in file.results[0].error
    assert "not installed: msgspec" in line(file.results[1])


def test_every_row_is_on_disk_before_the_next_one_begins(file, tmp_path):
    seen = []

    def look(_seconds):
        seen.append([r["status"] for r in json.loads((tmp_path / "stage.json").read_text())["rows"]])
        return MeasuredValue(1.0)

    run(file, [row("a", good), row("b", look)])

    assert seen == [["ok", "hung"]]
    assert ResultFile(tmp_path / "stage.json").results == file.results


def test_a_row_that_takes_too_long_is_ended(file, monkeypatch):
    monkeypatch.setattr("benchmarks.engine.bench_rows.LEAST_SECONDS", 0.0)

    def endless(_seconds):
        while True:
            time.monotonic()

    run(file, [row("a", endless, seconds=0.05), row("b", good)])

    assert [result.status for result in file.results] == ["out of time", "ok"]


def test_no_row_begins_once_the_seconds_of_the_stage_are_over(file):
    run(file, [row("a", good), row("b", good)], seconds=1.0)

    assert [result.status for result in file.results] == ["skipped", "skipped"]


def test_a_broken_device_asks_for_a_new_process_that_goes_on_behind_the_row(file, tmp_path):
    assert not run(file, [row("a", bad), row("b", good)], broken=True)

    again = ResultFile(tmp_path / "stage.json")
    assert run(again, [row("a", bad), row("b", good)])
    assert [result.status for result in again.results] == ["failed", "ok"]


def test_a_row_far_from_its_prediction_is_flagged(file):
    predictions = {"near": Prediction("tok/s", 20.0, 11.0), "far": Prediction("tok/s", 20.0, 14.0)}

    run(file, [row("near", good), row("far", good), row("new", good)], predictions=predictions)

    near, far, new = file.results
    assert near.ratio == pytest.approx(0.909, abs=1e-3)
    assert (near.off, far.off, new.off) == (False, True, False)
    assert near.of_wire == 0.5
    assert "far" in list(table(file.results))[-1]


def test_a_time_is_compared_with_its_limit_the_other_way_round():
    assert RowResult("k", "ok", 0.1, 20.0, "us", wire=15.0, predicted=18.0).of_wire == 0.75


WORKER = """
import pathlib, sys
from benchmarks.engine.bench_rows import BenchmarkRow, MeasuredValue, ResultFile, run_rows

def good(_):
    return MeasuredValue(1.0, "us")

def dies(_):
    sys.exit(1)

file = ResultFile(pathlib.Path(sys.argv[1]) / "probe.json")
rows = [BenchmarkRow(name, 9.0, run) for name, run in (("a", good), ("b", dies), ("c", good))]
run_rows(rows, file, 60.0, {}, lambda: False)
"""


def test_a_row_that_takes_the_process_with_it_is_marked_and_the_next_one_runs(tmp_path, monkeypatch, capfd):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    monkeypatch.setattr("sys.argv", [str(script), str(tmp_path)])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    status = supervise(argparse.Namespace(stage=["probe"], output=tmp_path, resume=False))

    assert status == 1
    assert [(r.name, r.status) for r in ResultFile(tmp_path / "probe.json").results] == [
        ("a", "ok"),
        ("b", "hung"),
        ("c", "ok"),
    ]
    assert "the process ended inside this row" in capfd.readouterr().out
