"""Results of every part, kept as JSON beside RESULTS.md, which is written from them."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KEPT = HERE / "results"
FORMER = HERE / "data" / "former_menu.json"  # what the planner with a menu of bundles answered
REPORT = HERE / "RESULTS.md"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows as they are printed."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        lines = [f"**{self.title}**", "", _row(self.head), _row(("---", *("---:",) * (len(self.head) - 1)))]
        lines += [_row(row) for row in self.rows]
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes)])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one part found."""

    name: str
    question: str
    seeds: str
    tables: tuple[Table, ...]
    figures: dict[str, Any] = field(default_factory=dict)  # every number, for machines
    failed: tuple[str, ...] = ()  # what should have been true and was not


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


def machine() -> str:
    cores = len(os.sched_getaffinity(0))
    return (
        f"{cores} cores, {_processor()}, Python {platform.python_version()}, OR-tools {version('ortools')}, "
        "one solver worker"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def keep(outcome: Outcome, command: str, seconds: float) -> dict[str, Any]:
    """Store an outcome and write RESULTS.md again."""
    record = {**asdict(outcome), "command": command, "machine": machine(), "seconds": round(seconds, 1)}
    KEPT.mkdir(exist_ok=True)
    (KEPT / f"{outcome.name}.json").write_text(json.dumps(record, indent=1) + "\n")
    return record


def write(order: tuple[str, ...]) -> None:
    """Write RESULTS.md from what is kept."""
    parts = []
    for name in order:
        path = KEPT / f"{name}.json"
        if not path.exists():
            parts.append(f"## {name}\n\nNot run yet.")
            continue
        record = json.loads(path.read_text())
        tables = [
            Table(t["title"], tuple(t["head"]), tuple(map(tuple, t["rows"])), tuple(t["notes"])).text()
            for t in record["tables"]
        ]
        foot = f"`{record['command']}`, {record['seconds']:.0f} s; seeds: {record['seeds']}; {record['machine']}."
        failed = [f"**Not as it should be:** {each}" for each in record["failed"]]
        parts.append("\n\n".join([f"## {name}", record["question"], *tables, *failed, foot]))
    REPORT.write_text(_HEAD + "\n\n".join(parts) + "\n")


_HEAD = """# Packing: what was measured

Written by `python -m benchmarks.packing`; every part names its command, machine and seeds. Baselines are in this
folder and run beside the planner on the same instances. Gains are to be quoted against best-fit: least-allocated
spreads by design, so any packer looks good beside it. Means are over seeds, ranges in brackets are lowest .. highest
seed. Slices are of the 8x7 board (A100, H100, H200) unless said.

"""
