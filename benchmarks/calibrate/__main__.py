"""Refit the step-time model on the measured points: `make calibrate`.

python -m benchmarks.calibrate            writes coefficients.yaml into the package and REPORT.md beside this
python -m benchmarks.calibrate --check    makes both again and compares: status 1 if they differ
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import tangram.capacity
from benchmarks.calibrate import coefficients, report, whole
from benchmarks.calibrate.fit import fit, hold_out
from benchmarks.calibrate.points import measured
from tangram.capacity.steps import calibration

COEFFICIENTS = Path(tangram.capacity.__file__).parent / "coefficients.yaml"
REPORT = Path(__file__).parent / "REPORT.md"
HELD_OUT = ("combination", "gpu", "model", "engine", "version")
SAME = (
    0.02  # numbers that differ by less are equal: the optimum is flat, other processors stop elsewhere in it
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare with the files instead of writing them")
    check = parser.parse_args().check
    before = {path: path.read_text() if path.exists() else "" for path in (COEFFICIENTS, REPORT)}
    stale = 0
    for path, text in make(write=not check).items():
        same = equal(before[path], text) if check else before[path] == text
        stale += not same
        if not check:
            path.write_text(text)
        print(f"{'same' if same else 'differs' if check else 'written'}: {path.name}")
    return bool(check and stale)


def make(write: bool) -> dict[Path, str]:
    """Both files by path. The report is of the package with these coefficients, so they are written first."""
    everything = measured()
    p = everything.take(everything.labels["kind"] != "ep")
    found = fit(p)
    times = whole.times(p, found)
    bursts = whole.fit_bursts(p, times)
    steps = {label: hold_out(p, label, found) for label in HELD_OUT}
    held = {label: whole.hold_out(p, label, found, times, bursts.request_s) for label in HELD_OUT}
    errors = {label: abs(tpot / p["tpot"] - 1) for label, (_, tpot) in held.items()}
    interval = coefficients.bootstrap(p, found)
    text = coefficients.text(coefficients.document(p, found, errors, interval, bursts))
    if write:
        COEFFICIENTS.write_text(text)
    calibration.load.cache_clear()
    return {COEFFICIENTS: text, REPORT: report.text(everything, p, found, bursts, steps, held)}


def equal(one: str, other: str) -> bool:
    """Whether two texts say the same, numbers to within 2 % or one in the last digit shown."""
    number = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
    if re.split(number, one) != re.split(number, other):
        return False
    pairs = zip(re.findall(number, one), re.findall(number, other), strict=True)
    return all(abs(float(a) - float(b)) <= max(SAME * abs(float(a)), _digit(a)) for a, b in pairs)


def _digit(number: str) -> float:
    return float(10 ** -len(number.partition(".")[2])) * 1.01 if "." in number and "e" not in number else 0.0


if __name__ == "__main__":
    sys.exit(main())
