"""The same requests on a real cluster and simulated: attainment and replicas beside each other.

    python -m benchmarks.paced_cluster --out FILE     replay on a cluster of its own, write what was measured, compare
    python -m benchmarks.paced_cluster FILE...        compare what was measured before with what was simulated then
    python -m benchmarks.paced_cluster --again FILE   the same, simulated under the law of today

A real control plane, kubelet, Prometheus and operator on this machine, and the engine with its tiny model, whose steps
last as long as those of a slow GPU (`e2e.paced_engine`). The first minutes of a recorded trace, slowed
and with shorter lengths, are replayed through the Service, which draws a replica for each request. `tangram.simulator`
runs the same requests under the same law, settings and measured start times. Nothing is fitted to what was measured
but the start times.
"""

import argparse
import gzip
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.paced_cluster.recording import PERCENTILES, Recording, read
from benchmarks.paced_cluster.simulation import simulated
from benchmarks.paced_cluster.slow_gpu import Load, Pace, requests_of
from e2e.demo import install
from tangram.simulator.traffic.trace_lines import parse_trace

TRACE = install.ROOT / "operator/tangram/simulator/traces/azure2023_conv.csv.gz"
MEASURED = install.ROOT / "benchmarks/paced_cluster/measured"
SEEDS = range(10)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, help="replay anew, and write what was measured to this file")
    parser.add_argument("--again", action="store_true", help="simulate anew")
    parser.add_argument("--minutes", type=float, default=Load().minutes, help="of the replay")
    parser.add_argument("--slower", type=float, default=Load().slower, help="by which arrivals are spread")
    args = parser.parse_args()
    files = args.file or ([] if args.out else sorted(MEASURED.glob("*.json")))
    recordings = [read(file) for file in files]
    if args.out:
        recordings.append(replayed(args.out, Load(minutes=args.minutes, slower=args.slower)))
    if args.again:
        recordings = [with_simulations(one) for one in recordings]
    print("\n\n".join(map(report, recordings)))
    return 0


def with_simulations(recording: Recording) -> Recording:
    """Return the recording beside its simulations under the law of today."""
    return replace(recording, simulations=tuple(simulated(recording, seed) for seed in SEEDS))


def replayed(file: Path, load: Load) -> Recording:
    """Replay on a cluster of its own, and write what was measured."""
    from benchmarks.paced_cluster import on_cluster  # noqa: PLC0415  (to compare needs no cluster)

    pace = Pace()
    with gzip.open(TRACE, "rt") as lines:
        requests = requests_of(parse_trace(lines, TRACE.name), load)
    with on_cluster.cluster(pace) as stage:
        recording = on_cluster.recorded(stage, "paced", pace, requests, 60 * load.minutes + on_cluster.TAIL_S)
    file.parent.mkdir(parents=True, exist_ok=True)
    recording = with_simulations(recording)
    recording.write(file)
    return recording


def report(recording: Recording) -> str:
    """Return both beside each other, as Markdown: simulated is the mean over seeds, and the least to the most."""
    real, steps, simulations = recording.outcome, recording.steps, recording.simulations
    minutes = int(recording.duration_s // 60)
    lines = [
        f"{recording.title}: {len(recording.answers)} requests, {steps.steps} steps, "
        f"{100 * steps.late / max(1, steps.steps):.2f} % late, all steps {100 * (steps.real_s / steps.paced_s - 1):.1f} %"
        " longer than paced.",
        "",
        f"| | cluster | simulated | least to most of {len(simulations)} seeds |",
        "| --- | ---: | ---: | ---: |",
        _row("attainment, %", 100 * real.attainment, [100 * one.attainment for one in simulations], "{:.1f}"),
    ]
    for name, field, unit in (("TTFT", "ttft_s", 1e3), ("TPOT", "tpot_s", 1e3)):
        for place, percentile in enumerate(PERCENTILES):
            values = [unit * getattr(one, field)[place] for one in simulations]
            lines.append(
                _row(f"{name} P{percentile}, ms", unit * getattr(real, field)[place], values, "{:.0f}")
            )
    means = [statistics.fmean(one.ready.by_minute(minutes)) for one in simulations]
    lines.append(
        _row("ready replicas, mean", statistics.fmean(real.ready.by_minute(minutes)), means, "{:.2f}")
    )
    by_minute = [one.ready.by_minute(minutes) for one in simulations]
    titles = " | ".join(str(minute + 1) for minute in range(minutes))
    lines += ["", f"| ready replicas by minute | {titles} |", "| --- " + "| ---: " * minutes + "|"]
    lines.append(_cells("cluster", (f"{count:.1f}" for count in real.ready.by_minute(minutes))))
    columns = list(zip(*by_minute, strict=True))
    lines.append(_cells("simulated", (f"{statistics.fmean(counts):.1f}" for counts in columns)))
    lines.append(_cells("least to most", (f"{min(counts):.1f} to {max(counts):.1f}" for counts in columns)))
    return "\n".join(lines)


def _cells(name: str, cells: Iterable[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def _row(name: str, real: float, simulations: Sequence[float], style: str) -> str:
    mean, least, most = (style.format(f(simulations)) for f in (statistics.fmean, min, max))
    return f"| {name} | {style.format(real)} | {mean} | {least} to {most} |"


if __name__ == "__main__":
    sys.exit(main())
