"""The benchmarks of the operator, `tangram size` and the engine, one after the other: `make bench`.

    python -m benchmarks [NAME …] [--out DIR]

Each writes DIR/NAME.json beside what it prints. They run in processes of their own, so that none warms another up.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

NAMES = (
    "operator_loop",
    "plan_time",
    "metrics_reading",
    "engine_vs_transformers",
    "outside_client",
    "sizing_time",
    "recommend_time",
    "engine.host",
    "engine.api",
    "engine.grammar_cost",
    "gateway",
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; none: all")
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    args = parser.parse_args()
    if unknown := set(args.names) - set(NAMES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    args.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in args.names or NAMES:
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(args.out / f"{name}.json")]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    print(f"results in {args.out}" if not failed else f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
