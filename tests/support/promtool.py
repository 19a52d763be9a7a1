"""promtool on rules that a test renders: what it says about them, and what they do on given series."""

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import packages
from e2e.cluster.base import ClusterError

Phase = tuple[int, float]
"""For so many minutes, so many observations a minute."""


def run(*args: str) -> subprocess.CompletedProcess[str]:
    try:
        program = packages.need("promtool")
    except ClusterError as missing:
        pytest.fail(f"these tests need promtool: {missing}", pytrace=False)
    env = {**os.environ, **packages.environment()}
    command = [str(program), *args]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)


def write_rules(path: Path, *groups: Mapping[str, Any]) -> None:
    """Write groups of rules to a file; their names become unique in it."""
    named = [{**group, "name": f"{number} {group['name']}"} for number, group in enumerate(groups)]
    path.write_text(yaml.safe_dump({"groups": named}))  # promtool reads no surrogate pairs of JSON


def counter(*phases: Phase) -> str:
    """Return the values of a counter, one a minute, in promtool's notation. A negative rate: no samples."""
    value, texts = 0.0, ["0"]
    for minutes, per_minute in phases:
        if per_minute < 0:
            texts.append(f"_x{minutes}")
            continue
        texts.append(f"{value + per_minute:g}+{per_minute:g}x{minutes - 1}")
        value += minutes * per_minute
    return " ".join(texts)


def evaluate(
    path: Path,
    groups: Iterable[Mapping[str, Any]],
    series: Mapping[str, str],
    every: str = "30s",
    **checks: Any,
) -> subprocess.CompletedProcess[str]:
    """Evaluate groups on series with a sample a minute; `checks` are those of `promtool test`."""
    rules = path / "rules.json"
    write_rules(rules, *groups)
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": "1m", "input_series": inputs} | checks
    file = path / "test.json"
    file.write_text(json.dumps({"rule_files": [rules.name], "evaluation_interval": every, "tests": [test]}))
    return run("test", "rules", str(file))
