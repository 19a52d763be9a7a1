"""The GPU benchmark's code runs, every row of every stage: no minute of a GPU is lost to a typo."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Both at once: loading torch is most of what they do.
PARTS = (("probe", "baseline", "kernels", "model"), ("serve",))

pytestmark = pytest.mark.timeout(300)  # a quarter of a minute alone, longer beside other work


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """stage -> its rows."""
    output = tmp_path_factory.mktemp("gpu")
    # `transformers` alone would take longer than all other rows together.
    command = [
        sys.executable,
        ROOT / "benchmarks/engine/gpu.py",
        "--tiny",
        "--skip",
        "transformers",
        "-o",
        output,
    ]
    started = [
        subprocess.Popen(
            [*command, "--stage", *stages],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for stages in PARTS
    ]
    try:
        printed = [process.communicate(timeout=280)[0] for process in started]
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert [process.returncode for process in started] == [0, 0], "\n".join(printed)
    files = {stage: output / f"{stage}.json" for stages in PARTS for stage in stages}
    return printed, {stage: json.loads(file.read_text())["rows"] for stage, file in files.items()}


@pytest.mark.slow
def test_every_row_of_every_stage_runs(results):
    rows = [row for found in results[1].values() for row in found]
    bad = [row for row in rows if row["status"] != "ok"]

    assert [(row["name"], row["error"]) for row in bad] == []
    assert all(results[1].values())


@pytest.mark.slow
def test_rates_and_times_are_numbers(results):
    rows = [row for found in results[1].values() for row in found if row["unit"]]

    assert len(rows) > 30
    assert [row["name"] for row in rows if not row["value"] or row["value"] < 0] == []


@pytest.mark.slow
def test_the_table_comes_last_and_names_every_row(results):
    for stages, text in zip(PARTS, results[0], strict=True):
        end = text[text.index(f"== {stages[0]}:") :]

        assert [row["name"] for stage in stages for row in results[1][stage] if row["name"] not in end] == []
