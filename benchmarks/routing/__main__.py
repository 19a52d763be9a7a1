"""Routing policies on simulated engines with prefix caches, on traffics that tell them apart.

    python -m benchmarks.routing [--seeds N] [--trace FILE] [--json FILE]

Ours against round robin, least load, prefix hash with bounded loads, and published scorer sums; then the processor
time of one decision. `--trace` adds a file of `mooncake` form: JSON lines with `prefix_block_ids_512`, gzipped. Fails
where ours is worse than least load beyond noise, or has less than twice round robin's tokens/s on shared prefixes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.routing.fleet import Served, engines_of, serve
from benchmarks.routing.policies import POLICIES, SeveralPickers
from benchmarks.routing.speed import decision_times
from benchmarks.routing.traffics import TRAFFICS, Traffic, published_trace

OURS, BASELINE, BLIND = "tangram", "least load", "round robin"
# Ours may be worse than least load by this much in a mean over seeds: it is the noise of whole runs.
NOISE = 0.03
MOST_PICK_MS = 0.3
TRACE_SECONDS, TRACE_SPEED = 240.0, 2.5


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


def run(traffic: Traffic, policy: str, seed: int) -> Served:
    """Serve one traffic by one policy on idle engines."""
    engines = engines_of(traffic.kinds)
    pickers = [POLICIES[policy](engines, seed + number) for number in range(traffic.pickers)]
    return serve(engines, SeveralPickers(pickers), traffic.requests(seed))


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


def markdown(rows: Sequence[RoutingRow]) -> str:
    """Return a table: a traffic's first column names it once."""
    lines = [
        "| traffic | policy | mean TTFT | P90 TTFT | P90 TPOT | output tokens/s | prompt computed |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    shown = ""
    for row in rows:
        name, shown = ("" if row.traffic == shown else row.traffic), row.traffic
        policy = f"**{row.policy}**" if row.policy == OURS else row.policy
        lines.append(
            f"| {name} | {policy} | {row.mean_ttft_s:.3g} s | {row.ttft_p90_s:.3g} s "
            f"| {row.tpot_p90_s * 1e3:.0f} ms | {row.output_tokens_per_s:,.0f} | {row.computed_share:.0%} |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trace", type=Path, help="of mooncake form")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    traffics = list(TRAFFICS)
    if args.trace:
        traffics.append(published_trace(args.trace, TRACE_SECONDS, TRACE_SPEED))
    rows = [compared(traffic, policy, range(args.seeds)) for traffic in traffics for policy in POLICIES]
    times, found = decision_times(), shortfalls(rows)
    print(markdown(rows))
    print(
        f"\n100 replicas, a prompt of 100,000 tokens: {times.hash_ms:.2f} ms to hash it, "
        f"{times.pick_ms:.2f} ms to pick, {times.start_ms:.2f} ms to note what was sent"
    )
    if times.pick_ms > MOST_PICK_MS:
        found.append(f"a pick takes {times.pick_ms:.2f} ms, more than {MOST_PICK_MS} ms")
    for line in found:
        print(line, file=sys.stderr)
    if args.json:
        result = {"rows": [asdict(row) for row in rows], "times": asdict(times), "shortfalls": found}
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
