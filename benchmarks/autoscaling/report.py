"""The comparison as Markdown and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.autoscaling import compare
from benchmarks.autoscaling.compare import AtDefault, AtEqualAttainment, Mean, OnOtherTraces, Results
from benchmarks.autoscaling.compared_laws import BY_NAME, OURS, PEAK_SIZED
from benchmarks.autoscaling.runs import ATTAINMENTS

Rows = Sequence[Sequence[str]]
BEHAVIOUR_AT = 0.99
# llm-d's scaling by a saturation percentile: 95.8 % for 26 % less than a pool sized for the peak (24 H100s, Qwen3-32B).
PUBLIC_BAR = 0.958


def markdown(results: Results) -> str:
    """Return the report."""
    parts = ["# Scaling laws at equal attainment"]
    for attainment in ATTAINMENTS:
        parts += [
            f"## {attainment:.1%} of the requests within both objectives",
            "Cost in USD, and in brackets over the oracle's. `-`: no value of the knob that was run reaches it; k/n: it does in k of n seeds.",
            table(
                ["law", *results.scenarios, "geometric mean over oracle", "mean capture"],
                _cost_rows(results, attainment),
            ),
        ]
        if OURS in results.laws:
            parts += [
                f"Cost over `{OURS}`'s, paired by seed, with the 95 % interval of the mean:",
                table(["law", *results.scenarios, "geometric mean"], _difference_rows(results, attainment)),
            ]
        if len(results.scenarios) > 1:
            parts += [
                "The knob chosen on the other scenarios (the most frugal whose mean of misses there is low enough; `!`: none is, the best one is taken): attainment here, cost over the oracle's.",
                table(["law", *results.scenarios, "worst attainment"], _other_rows(results, attainment)),
            ]
    parts += [
        f"## As published: with the default of the knob, attainment, and cost over the oracle's at {BEHAVIOUR_AT:.0%}",
        table(["law", "default", *results.scenarios], _default_rows(results)),
        f"## At {PUBLIC_BAR:.1%}, cost over that of a pool sized for the busiest minute (`{PEAK_SIZED}`), paired by seed",
        table(["law", *results.scenarios], _peak_rows(results)),
        f"## What the laws do beside, at the most frugal knob that reaches {BEHAVIOUR_AT:.0%}",
        *(
            part
            for scenario in results.scenarios
            for part in (f"### {scenario}", _behaviour_table(results, scenario))
        ),
    ]
    if results.failed:
        parts += [
            "## Runs that failed",
            *(
                f"- {r['scenario']} {r['law']} {r['knob']:g} seed {r['seed']}: `{_last_line(r)}`"
                for r in results.failed
            ),
        ]
    return "\n\n".join(parts) + "\n"


def as_json(results: Results) -> dict[str, Any]:
    """Return the figures behind the report."""
    return {
        scenario: {
            law: {
                "at_equal_attainment": {
                    str(a): asdict(compare.at_equal_attainment(results, scenario, law, a))
                    for a in ATTAINMENTS
                },
                "on_other_traces": {
                    str(a): asdict(other) if other else None
                    for a in ATTAINMENTS
                    for other in (compare.on_other_traces(results, scenario, law, a),)
                },
                "by_knob": {
                    f"{knob:g}": compare.behaviour(results, scenario, law, knob)
                    for knob in BY_NAME[law].knobs
                    if (scenario, law, knob) in results.records
                },
            }
            for law in results.laws
        }
        for scenario in results.scenarios
    }


def _cost_rows(results: Results, attainment: float) -> Rows:
    rows = []
    for law in results.laws:
        at = [compare.at_equal_attainment(results, name, law, attainment) for name in results.scenarios]
        captures = [each.capture.value for each in at if each.capture]
        rows.append(
            [
                law,
                *map(_cost, at),
                _over_all(at, lambda each: each.regret),
                f"{sum(captures) / len(captures):.2f} ({len(captures)})" if captures else "",
            ]
        )
    return [
        *rows,
        [
            "best fixed replicas",
            *(_hindsight(results, name, attainment, "static_usd") for name in results.scenarios),
            "",
            "",
        ],
        ["oracle", *(_hindsight(results, name, attainment, "usd") for name in results.scenarios), "", ""],
    ]


def _hindsight(results: Results, scenario: str, attainment: float, figure: str) -> str:
    """Return the mean over seeds of a cost that is known after the run."""
    found = [by.get(str(attainment)) for by in results.oracles.get(scenario, {}).values()]
    usd = [each[figure] for each in found if each and each[figure] is not None]
    return f"{sum(usd) / len(usd):.2f}" if usd else "-"


def _difference_rows(results: Results, attainment: float) -> Rows:
    rows = []
    for law in results.laws:
        if law != OURS:
            at = [compare.at_equal_attainment(results, name, law, attainment) for name in results.scenarios]
            rows.append(
                [law, *(_percent(each.over_ours) for each in at), _over_all(at, lambda each: each.over_ours)]
            )
    return rows


def _other_rows(results: Results, attainment: float) -> Rows:
    rows = []
    for law in results.laws:
        at = [compare.on_other_traces(results, name, law, attainment) for name in results.scenarios]
        worst = min((1 - each.miss.value for each in at if each), default=math.nan)
        rows.append([law, *map(_chosen, at), f"{worst:.2%}"])
    return rows


def _default_rows(results: Results) -> Rows:
    rows = []
    for law in results.laws:
        default = BY_NAME[law].default
        if default is not None:
            at = [compare.at_default(results, name, law, BEHAVIOUR_AT) for name in results.scenarios]
            rows.append([law, f"{default:.3g}", *(_as_published(each) for each in at)])
    return rows


def _peak_rows(results: Results) -> Rows:
    return [
        [
            law,
            *(
                _percent(compare.over_peak_sized(results, name, law, PUBLIC_BAR))
                for name in results.scenarios
            ),
        ]
        for law in results.laws
    ]


def _as_published(at: AtDefault | None) -> str:
    if at is None:
        return ""
    return f"{1 - at.miss.value:.2%}" + (f" {at.over_oracle.value:+.0%}" if at.over_oracle else "")


def _behaviour_table(results: Results, scenario: str) -> str:
    rows = []
    for law in results.laws:
        knob = compare.most_frugal_knob(results, scenario, law, BEHAVIOUR_AT)
        if knob is None:
            continue
        did = compare.behaviour(results, scenario, law, knob)
        rows.append(
            [
                law,
                f"{knob:.3g}",
                f"{1 - did['miss']:.2%}",
                f"{did['windows_99']:.0%}",
                f"{did['usd']:.2f}",
                f"{did['mean_replicas']:.1f}",
                f"{did['most_replicas']:.0f}",
                f"{did['starts']:.0f}",
                f"{did['changes_per_day']:.0f}",
                f"{did['reversals_per_day']:.0f}",
                f"{did['recovery_s'] / 60:.0f}",
                f"{did['idle_gpu_hours']:.1f}",
            ]
        )
    heads = [
        "law",
        "knob",
        "attainment",
        "windows at 99 %",
        "USD",
        "mean replicas",
        "most",
        "starts",
        "changes a day",
        "reversals a day",
        "longest recovery (min)",
        "idle GPU-hours",
    ]
    return table(heads, rows)


def _cost(at: AtEqualAttainment) -> str:
    if at.usd is None:
        return "-"
    text = f"{at.usd.value:.2f}"
    if at.regret:
        text += f" ({at.regret.value:+.0%})"
    return text if at.reached == at.seeds else f"{text} {at.reached}/{at.seeds}"


def _chosen(other: OnOtherTraces | None) -> str:
    if other is None:
        return ""
    text = f"{1 - other.miss.value:.2%}{'' if other.reaches else '!'}"
    return f"{text} {other.over_oracle.value:+.0%}" if other.over_oracle else text


def _percent(mean: Mean | None) -> str:
    if mean is None:
        return "-"
    text = f"{mean.value:+.1%}"
    return text if math.isnan(mean.half_width) else f"{text} ± {mean.half_width:.1%}"


def _over_all(at: Sequence[AtEqualAttainment], part: Callable[[AtEqualAttainment], Mean | None]) -> str:
    """Return the geometric mean over scenarios, and in how many there is one where that is not all."""
    ratios = [1 + mean.value for each in at if (mean := part(each))]
    mean = compare.geometric_mean(ratios)
    if mean is None:
        return "-"
    return f"{mean - 1:+.1%}" + ("" if len(ratios) == len(at) else f" ({len(ratios)})")


def table(heads: Sequence[str], rows: Rows) -> str:
    """Return a table in Markdown; all columns but the first are numbers."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _last_line(record: dict[str, Any]) -> str:
    return str(record["error"]).strip().splitlines()[-1]
