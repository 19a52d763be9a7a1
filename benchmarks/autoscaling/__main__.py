"""Scaling laws at equal attainment, in simulations: published ones, the operator's, and an oracle.

    python -m benchmarks.autoscaling [--scenario NAME,…] [--laws NAME,…] [--seeds N] [--hours H] [--processes N] [--out DIR]
    python -m benchmarks.autoscaling --as-asked [--drawn SEED]
    python -m benchmarks.autoscaling --disturbances
    python -m benchmarks.autoscaling --quick

Runs are kept in DIR/runs.jsonl and are not repeated while the code that decides them is the same: a command that was
interrupted, or ended by `--hours`, goes on where it was. DIR/report.md and DIR/report.json hold the comparison, and
DIR/as_asked.md the operator's law at the percentile that it is asked for on kinds of traffic, beside fixed replicas and an
HPA, and DIR/disturbances.md the days on which something breaks.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from benchmarks.autoscaling import as_asked, compared_laws, disturbances, report, runs, scenarios
from benchmarks.autoscaling.compare import collected
from benchmarks.autoscaling.runs import Record
from benchmarks.autoscaling.traffic_kinds import KINDS, drawn_kinds

QUICK_LAWS = ("tangram", "static", "hpa-running")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--scenario", type=_names(scenarios.BY_NAME), help="default: all but those of clients"
    )
    parser.add_argument("--laws", type=_names(compared_laws.BY_NAME), help="default: all")
    parser.add_argument("--seeds", type=int, help="at most so many (default: 10 of an hour, 3 of a day)")
    parser.add_argument("--hours", type=float, help="start no run after so many hours")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("build/autoscaling"))
    parser.add_argument("--no-oracle", action="store_true")
    parser.add_argument("--report-only", action="store_true", help="of the runs on file")
    parser.add_argument("--quick", action="store_true", help="ten minutes of one trace, three laws, one seed")
    parser.add_argument("--disturbances", action="store_true", help="days on which something breaks")
    parser.add_argument(
        "--as-asked", action="store_true", help="our law as asked, on kinds of traffic or --scenario"
    )
    parser.add_argument(
        "--drawn", type=int, metavar="SEED", help="with --as-asked: kinds that are drawn by a seed"
    )
    args = parser.parse_args(arguments)
    if args.as_asked:
        return _as_asked(args)
    if args.disturbances:
        return _disturbances(args.laws, args.out)
    chosen = [scenarios.BY_NAME[name] for name in args.scenario or scenarios.DEFAULT]
    names = args.laws or tuple(law.name for law in compared_laws.LAWS)
    if args.quick:
        chosen, names = [scenarios.QUICK], QUICK_LAWS
    start = time.monotonic()
    done = runs.sweep(
        chosen,
        names,
        args.out / "runs.jsonl",
        seeds=args.seeds,
        with_oracle=not args.no_oracle,
        hours=0.0 if args.report_only else args.hours,
        processes=args.processes,
        report=_print_run,
    )
    results = collected(done)
    text = report.markdown(results)
    (args.out / "report.md").write_text(text)
    (args.out / "report.json").write_text(json.dumps(report.as_json(results), indent=1) + "\n")
    print(text)
    print(f"{len(done)} runs, {len(results.failed)} failed; {time.monotonic() - start:.0f} s")
    return int(bool(results.failed))


def _as_asked(args: argparse.Namespace) -> int:
    kinds = KINDS if args.drawn is None else drawn_kinds(args.drawn)
    chosen = [scenarios.of_kind(name) for name in kinds]
    if args.scenario:
        chosen = [scenarios.BY_NAME[name] for name in args.scenario]
    done = as_asked.measured(
        chosen,
        args.out / "runs.jsonl",
        seeds=args.seeds or 1,
        processes=args.processes,
        report=_print_run,
    )
    text = as_asked.markdown(done)
    (args.out / "as_asked.md").write_text(text)
    print(text)
    return int(any("error" in record for record in done))


def _disturbances(names: tuple[str, ...] | None, out: Path) -> int:
    known = disturbances.KNOBS
    figures = disturbances.run_all(
        [name for name in names or known if name in known], report=lambda text: print(text, file=sys.stderr)
    )
    text = disturbances.markdown(figures)
    out.mkdir(parents=True, exist_ok=True)
    (out / "disturbances.md").write_text(text)
    (out / "disturbances.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(text)
    return 0


def _names(known: dict[str, object]):  # noqa: ANN202
    def parsed(text: str) -> tuple[str, ...]:
        names = tuple(name for name in text.split(",") if name)
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
        return names

    return parsed


def _print_run(record: Record) -> None:
    what = f"{record['scenario']} {record['law']} {record['knob']:g} seed {record['seed']}"
    if "error" in record:
        outcome = "failed: " + record["error"].strip().splitlines()[-1]
    elif "oracle" in record:
        outcome = ", ".join(
            f"{a}: {found['usd']:.2f}" if found else f"{a}: -" for a, found in record["oracle"].items()
        )
    else:
        outcome = f"{1 - record['miss']:.3%} for {record['usd']:.2f} USD"
    print(f"{what}: {outcome} ({record['seconds']:.0f} s)", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
