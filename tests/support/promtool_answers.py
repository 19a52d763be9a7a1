"""What Prometheus' own engine answers to PromQL about given series."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from e2e.cluster import packages

STALE = "stale"  # a staleness marker, as a value
_FAILED = re.compile(
    r'^    expr: (?P<expr>".*"), time: (?P<time>\w+),\n\s+exp: \w+\n\s+got: (?P<got>.*)$', re.MULTILINE
)
_ROW = re.compile(r'\{(?P<labels>(?:\w+="(?:[^"\\]|\\.)*"(?:, )?)*)\} (?P<value>[^\s,]+)(?:, |$)')
_LABEL = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*")')


def major_version(program: Path) -> int:
    """The major version of promtool, and of the rules that its engine keeps to."""
    command = [str(program), "--version"]
    shown = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=True)
    return int(re.search(r"version (\d+)\.", shown.stdout + shown.stderr).group(1))


def answers(program: Path, series: dict[str, dict[int, float | str]], queries: list[tuple[str, int]],
            path: Path) -> list[float | None]:  # fmt: skip
    """The answer to each (expression, second): one number, or None for an empty vector.

    `series` maps names with labels to values by second.
    """
    return [_number(text) for text in _printed(program, series, queries, path)]


def vectors(program: Path, series: dict[str, dict[int, float | str]], queries: list[tuple[str, int]],
            path: Path) -> list[list[dict[str, Any]]]:  # fmt: skip
    """The rows of the answer to each (expression, second), as the HTTP API has them."""
    return [_rows(text, at) for text, (_, at) in zip(
        _printed(program, series, queries, path), queries, strict=True)]  # fmt: skip


def _printed(program: Path, series: dict[str, dict[int, float | str]], queries: list[tuple[str, int]],
             path: Path) -> list[str | None]:  # fmt: skip
    """What promtool prints of rows where a test expects none; None where there are none."""
    checks = [{"expr": expr, "eval_time": f"{at}s", "exp_samples": []} for expr, at in queries]
    inputs = [{"series": name, "values": _notation(values)} for name, values in series.items()]
    test = {"interval": "1s", "input_series": inputs, "promql_expr_test": checks}
    path.write_text(json.dumps({"rule_files": [], "evaluation_interval": "1s", "tests": [test]}))
    command = [str(program), "test", "rules", str(path)]
    done = subprocess.run(
        command, env=_environment(), capture_output=True, text=True, timeout=100, check=False
    )
    printed = done.stdout + done.stderr
    different = {(json.loads(m["expr"]), _seconds(m["time"])): m["got"] for m in _FAILED.finditer(printed)}
    assert "got: {" not in printed or different, printed
    assert "err" not in printed, printed
    return [different.get(query) for query in queries]


def _rows(printed: str | None, at: int) -> list[dict[str, Any]]:
    if printed is None:
        return []
    rows, end = [], 0
    for row in _ROW.finditer(printed):
        assert row.start() == end, printed
        labels = {name: json.loads(value) for name, value in _LABEL.findall(row["labels"])}
        rows.append({"metric": labels, "value": [at, row["value"]]})
        end = row.end()
    assert end == len(printed), printed
    return rows


def _environment() -> dict[str, str]:
    return {**os.environ, **packages.environment()}


def _notation(values: dict[int, float | str]) -> str:
    """Promtool's notation for a series: a value, or how many seconds have none."""
    parts, next_s = [], 0
    for second, value in sorted(values.items()):
        if second > next_s:
            parts.append(f"_x{second - next_s}")
        parts.append(STALE if value == STALE else repr(float(value)))
        next_s = second + 1
    return " ".join(parts)


def _seconds(duration: str) -> int:
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([hms])", duration))


def _number(printed: str | None) -> float | None:
    return None if printed is None else float(printed.rsplit(" ", 1)[1])
