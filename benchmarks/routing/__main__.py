"""Routing policies on simulated engines with prefix caches, on traffics that tell them apart.

    python -m benchmarks.routing [--seeds N] [--json FILE]

Ours against round robin, least load, prefix hash with bounded loads, and published scorer sums; ours over least load
from a third to more than twice the load; a tenant beside a hostile one; and the processor time of one decision.
Fails where ours is worse than least load beyond noise, has less than twice round robin's tokens/s on shared prefixes,
or where the honest tenant keeps less than 95 % of what it has alone. Two minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.routing.comparison import (
    LOADS,
    NOISE,
    compared,
    load_table,
    over_least_load,
    shortfalls,
    tokens_table,
    ttft_table,
)
from benchmarks.routing.policies import POLICIES
from benchmarks.routing.speed import decision_times
from benchmarks.routing.tenants import ATTACKS, attacked
from benchmarks.routing.tenants import markdown as tenant_table
from benchmarks.routing.traffics import TRAFFICS

TENANT_SECONDS = 60.0
MOST_PICK_MS = 0.3


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    rows = [compared(traffic, policy, range(args.seeds)) for traffic in TRAFFICS for policy in POLICIES]
    times, found = decision_times(), shortfalls(rows)
    ratios = {t.name: [over_least_load(t, load, range(args.seeds)) for load in LOADS] for t in TRAFFICS}
    for name, values in ratios.items():
        found += [f"{name}: TTFT {value:.2f} of least load's" for value in values if value > 1 + NOISE]
    tenants = [attacked(attack, TENANT_SECONDS) for attack in ATTACKS]
    found += [f"{row.attack}: {row.attacked:.1%}" for row in tenants if row.attacked < 0.95 * row.alone]
    print(f"Mean and P90 of TTFT:\n\n{ttft_table(rows)}")
    print(f"\nOutput tokens/s, and the share of prompt tokens computed:\n\n{tokens_table(rows)}")
    print(f"\nMean TTFT of ours over that of least load, by load:\n\n{load_table(ratios)}")
    print(f"\nObjectives of a tenant beside a hostile one:\n\n{tenant_table(tenants)}")
    print(
        f"\n100 replicas, a prompt of 100,000 tokens: {times.hash_ms:.2f} ms to hash it, "
        f"{times.pick_ms:.2f} ms to pick, {times.start_ms:.2f} ms to note what was sent"
    )
    if times.pick_ms > MOST_PICK_MS:
        found.append(f"a pick takes {times.pick_ms:.2f} ms, more than {MOST_PICK_MS} ms")
    for line in found:
        print(line, file=sys.stderr)
    if args.json:
        result = {
            "rows": [asdict(row) for row in rows],
            "over_least_load": ratios,
            "tenants": [asdict(row) for row in tenants],
            "times": asdict(times),
            "shortfalls": found,
        }
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
