"""Policies side by side: what each has of a traffic, and where ours falls short of its promises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.routing.fleet import Served, engines_of, serve
from benchmarks.routing.policies import POLICIES, SeveralPickers
from benchmarks.routing.traffics import Traffic, at_load

OURS, BASELINE, BLIND = "tangram", "least load", "round robin"
# Ours may be worse than least load by this much in a mean over seeds: it is the noise of whole runs.
NOISE = 0.03
OVERLOADED = 0.95  # of the most tokens/s that a policy has of a traffic
LOADS = (0.3, 0.6, 0.9, 1.2, 1.6, 2.5)  # as multiples of a traffic's own


@dataclass(frozen=True)
class RoutingRow:
    """One policy on one traffic, means over seeds."""

    traffic: str
    policy: str
    mean_ttft_s: float
    ttft_p90_s: float
    tpot_p90_s: float
    output_tokens_per_s: float
    computed_share: float


def compared(traffic: Traffic, policy: str, seeds: Iterable[int]) -> RoutingRow:
    """Run one policy on one traffic."""
    runs = [run(traffic, policy, seed) for seed in seeds]
    return RoutingRow(
        traffic.name,
        policy,
        fmean(served.mean_ttft_s for served in runs),
        fmean(served.ttft_quantile_s(0.9) for served in runs),
        fmean(sorted(served.tpot_s)[int(0.9 * (len(served.tpot_s) - 1))] for served in runs),
        fmean(served.output_tokens_per_s for served in runs),
        fmean(served.computed_share for served in runs),
    )


def run(traffic: Traffic, policy: str, seed: int, load: float = 1.0) -> Served:
    """Serve one traffic, at a multiple of its load, by one policy on idle engines."""
    engines = engines_of(traffic.kinds)
    pickers = [POLICIES[policy](engines, seed + number) for number in range(traffic.pickers)]
    return serve(engines, SeveralPickers(pickers), at_load(traffic.requests(seed), load))


def over_least_load(traffic: Traffic, load: float, seeds: Iterable[int]) -> float:
    """Return the mean TTFT of ours over that of least load."""
    ours, least = 0.0, 0.0
    for seed in seeds:
        ours += run(traffic, OURS, seed, load).mean_ttft_s
        least += run(traffic, BASELINE, seed, load).mean_ttft_s
    return ours / least


def shortfalls(rows: Sequence[RoutingRow]) -> list[str]:
    """Return where ours is worse than what it promises."""
    by_name = {(row.traffic, row.policy): row for row in rows}
    found = []
    for traffic in dict.fromkeys(row.traffic for row in rows):
        ours, least, blind = (by_name[traffic, policy] for policy in (OURS, BASELINE, BLIND))
        if ours.mean_ttft_s > least.mean_ttft_s * (1 + NOISE):
            found.append(f"{traffic}: TTFT {ours.mean_ttft_s:.3f} s, least load {least.mean_ttft_s:.3f} s")
        if ours.output_tokens_per_s < least.output_tokens_per_s * (1 - NOISE):
            found.append(f"{traffic}: fewer tokens/s than least load")
        if traffic == "shared prefixes" and ours.output_tokens_per_s < 2 * blind.output_tokens_per_s:
            found.append(f"{traffic}: less than twice the tokens/s of round robin")
    return found


def ttft_table(rows: Sequence[RoutingRow]) -> str:
    """Return a table with a row per traffic and a column per policy: mean and P90 of TTFT."""
    return _table(rows, lambda row: f"{_duration(row.mean_ttft_s)}, {_duration(row.ttft_p90_s)}")


def tokens_table(rows: Sequence[RoutingRow]) -> str:
    """Return the same of tokens/s, and of prompt tokens computed, for traffics that overload a policy."""
    most = {row.traffic: max(r.output_tokens_per_s for r in rows if r.traffic == row.traffic) for row in rows}
    over = {row.traffic for row in rows if row.output_tokens_per_s < OVERLOADED * most[row.traffic]}
    return _table(
        [row for row in rows if row.traffic in over],
        lambda row: f"{row.output_tokens_per_s:,.0f} ({row.computed_share:.0%})",
    )


def _table(rows: Sequence[RoutingRow], cell: Callable[[RoutingRow], str]) -> str:
    traffics, policies = (
        dict.fromkeys(row.traffic for row in rows),
        dict.fromkeys(row.policy for row in rows),
    )
    cells = {(row.traffic, row.policy): cell(row) for row in rows}
    lines = [f"| traffic | {' | '.join(policies)} |", "| --- |" + " ---: |" * len(policies)]
    lines += [
        f"| {traffic} | {' | '.join(cells[traffic, policy] for policy in policies)} |" for traffic in traffics
    ]
    return "\n".join(lines)


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"


def load_table(ratios: Mapping[str, Sequence[float]]) -> str:
    """Return a table with a column per load."""
    lines = [
        "| traffic | " + " | ".join(f"load {load:g}" for load in LOADS) + " |",
        "| --- |" + " ---: |" * len(LOADS),
    ]
    lines += [
        f"| {name} | " + " | ".join(f"{value:.2f}" for value in row) + " |" for name, row in ratios.items()
    ]
    return "\n".join(lines)
