"""Processor seconds of each test file beside those of a former run, so that growth is seen when it comes.

`tests/cpu_seconds.toml` is the former run. `make test` keeps what it took in the cache directory; `make
test-budget`, which is `python -m tests.support.processor_budget`, writes that into the table.

One machine is slower than another, and a busy machine slower than a quiet one. So a file is expected to take
its entry times the ratio of the sums of all other files. On a quicker machine it is expected to take its
entry: a file that polls and waits takes as long there.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import paths

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "cpu_seconds.toml"
LEAST_S = 10.0  # a file that takes less is not compared: its seconds vary too much
MOST_GROWTH = 1.5
HEADING = """\
# Processor seconds of each test file in a run of `make test`, children included, without the cluster suite.
# `make test-budget` writes this file.
"""


@dataclass(frozen=True, slots=True)
class ProcessorBudget:
    """The table, and the seconds of the run before this one, both by file."""

    table: Mapping[str, float]
    before: Mapping[str, float]

    def expected_s(self, seconds: Mapping[str, float]) -> dict[str, float]:
        """Return what each file of the table was expected to take in a run that took `seconds`."""
        known = seconds.keys() & self.table.keys()
        total, table_total = sum(seconds[file] for file in known), sum(self.table[file] for file in known)
        expected = {}
        for file in known:
            entry, others = self.table[file], table_total - self.table[file]
            ratio = (total - seconds[file]) / others if others else 1.0
            expected[file] = entry * max(1.0, ratio)
        return expected

    def exceeding(self, seconds: Mapping[str, float]) -> set[str]:
        """Return the files that took half as long again as expected."""
        return {
            file
            for file, expected_s in self.expected_s(seconds).items()
            if seconds[file] >= LEAST_S and seconds[file] > MOST_GROWTH * expected_s
        }

    def exceeding_twice(self, seconds: Mapping[str, float]) -> set[str]:
        """Return those of them that did so in the run before, too."""
        before = {file: self.before[file] for file in seconds.keys() & self.before.keys()}
        return self.exceeding(seconds) & self.exceeding(before)

    def unlisted(self, seconds: Mapping[str, float]) -> set[str]:
        """Return the files without an entry that are large enough for one to matter."""
        return {file for file in seconds.keys() - self.table.keys() if seconds[file] >= LEAST_S}

    def report(self, seconds: Mapping[str, float], most: int = 5) -> list[str]:
        """Return lines about the files that grew most, and those that are new or exceed their entries."""
        expected = self.expected_s(seconds)
        compared = [file for file in expected if seconds[file] >= LEAST_S]
        compared.sort(key=lambda file: expected[file] - seconds[file])
        lines = [f"{'CPU s':>9} {'expected':>9}  grown most, by {TABLE.relative_to(ROOT)}"]
        lines += [f"{seconds[file]:9.1f} {expected[file]:9.1f}  {file}" for file in compared[:most]]
        lines += [f"{seconds[file]:9.1f} {'new':>9}  {file}" for file in sorted(self.unlisted(seconds))]
        twice = self.exceeding_twice(seconds)
        for file in sorted(self.exceeding(seconds)):
            runs = "in two runs in a row: make it quicker, or `make test-budget`" if file in twice else "once"
            lines.append(f"{file} took more than {MOST_GROWTH:g} times as long as expected, {runs}")
        return lines


def load_budget() -> ProcessorBudget:
    """Read the table and the last run; either may be missing."""
    return ProcessorBudget(load_table(), seconds_before())


def load_table() -> dict[str, float]:
    """Read the table; it may be missing."""
    return tomllib.loads(TABLE.read_text()) if TABLE.exists() else {}


def record(seconds: Mapping[str, float]) -> None:
    """Keep the seconds of a run until the next one, beside those of files that ran in another one."""
    kept = {file: before_s for file, before_s in seconds_before().items() if (ROOT / file).exists()}
    last_run().parent.mkdir(parents=True, exist_ok=True)
    last_run().write_text(json.dumps({**kept, **seconds}))


def seconds_before() -> dict[str, float]:
    """Return what the files took when each of them ran last."""
    return json.loads(last_run().read_text()) if last_run().exists() else {}


def last_run() -> Path:
    """The file that keeps them."""
    return paths.cache() / "cpu_seconds.json"


def table_text(seconds: Mapping[str, float]) -> str:
    """Return the table of a run."""
    return HEADING + "".join(f'"{file}" = {seconds[file]:.1f}\n' for file in sorted(seconds))


if __name__ == "__main__":
    TABLE.write_text(table_text(seconds_before()))
