"""The operator's law as it is asked for a percentile, beside the cheapest fixed replicas and an HPA.

The fixed number is the least that attains the percentile in hindsight, and the HPA has the most frugal of its knobs
that does, interpolated: neither is had beforehand. Seeds are means.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.autoscaling import runs
from benchmarks.autoscaling.compare import Results, SweptRun, collected, usd_at
from benchmarks.autoscaling.compared_laws import FIXED, OURS
from benchmarks.autoscaling.report import table
from benchmarks.autoscaling.runs import Case, Record
from benchmarks.autoscaling.scenarios import Scenario

HPA = "hpa-running"
PERCENTILES = (0.95, 0.99)


def measured(
    chosen: Sequence[Scenario], file: Path, *, seeds: int, processes: int, report: Callable[[Record], None]
) -> list[Record]:
    """Return the runs of the three laws: ours as asked, of the others the knobs around each percentile."""
    asked = [
        Case(scenario, OURS, round(1 - percentile, 2), seed)
        for seed in range(seeds)
        for scenario in chosen
        for percentile in PERCENTILES
    ]
    done = runs.perform(asked, file, processes=processes, report=report)
    return done + runs.sweep(
        chosen, (FIXED, HPA), file, seeds=seeds, with_oracle=False, processes=processes, report=report
    )


def markdown(records: Sequence[Record]) -> str:
    """Return the table: attainment in per cent, and cost over that of the fixed replicas."""
    results = collected(r for r in records if r["law"] != OURS)
    heads = ["asked", "fixed in hindsight", "tangram", "", "HPA, its best knob", "HPA at 0.7", ""]
    rows = []
    for scenario in dict.fromkeys(record["scenario"] for record in records):
        for percentile in PERCENTILES:
            ours = _swept(records, scenario, OURS, round(1 - percentile, 2))
            usual = _swept(records, scenario, HPA, 0.7)
            fixed, hpa = (_usd(results, scenario, law, percentile) for law in (FIXED, HPA))
            price = f"{fixed:.2f} USD" if fixed else "-"
            tuned = _over(hpa, fixed)
            rows.append(
                [f"{scenario}, {percentile:.0%}", price, *_shown(ours, fixed), tuned, *_shown(usual, fixed)]
            )
    return table(heads, rows)


def _swept(records: Sequence[Record], scenario: str, law: str, knob: float) -> list[SweptRun]:
    wanted = (scenario, law, knob)
    found = {r["seed"]: r for r in records if (r["scenario"], r["law"], r["knob"]) == wanted and "usd" in r}
    return [SweptRun(knob, record["usd"], record["miss"], record["requests"]) for record in found.values()]


def _usd(results: Results, scenario: str, law: str, percentile: float) -> float | None:
    """Return the mean cost at a percentile; None where a seed does not reach it."""
    by_seed = results.runs.get((scenario, law), {})
    costs = [usd_at(swept, percentile, is_stepped=law == FIXED) for swept in by_seed.values()]
    return statistics.fmean(costs) if costs and None not in costs else None


def _shown(swept: Sequence[SweptRun], fixed: float | None) -> tuple[str, str]:
    if not swept:
        return "-", "-"
    share = 1 - statistics.fmean(run.miss for run in swept)
    return f"{share:.1%}", _over(statistics.fmean(run.usd for run in swept), fixed)


def _over(usd: float | None, fixed: float | None) -> str:
    return "-" if usd is None or fixed is None else f"{usd / fixed - 1:+.0%}"
