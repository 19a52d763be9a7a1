"""Another simulator beside ours: NVIDIA's AISimulate, which replays traces for Dynamo, on the same scenarios.

    python -m benchmarks.aisimulate                   beside what AISimulate gave when it was recorded
    python -m benchmarks.aisimulate --python PATH     beside what it gives now; PATH: a Python that has it
    python -m benchmarks.aisimulate --python PATH --record     and record that

AISimulate (Apache-2.0) is in the package of Dynamo's runtime and stays out of this project's environment:

    python3 -m venv aisimulate && aisimulate/bin/pip install ai-dynamo-runtime==1.6.1

Both have the same requests, step times, KV blocks, slots, tokens per step, chunked prefill, round-robin routing, orders
of replicas and start time. What is compared is all the rest: queues, batches, blocks, preemptions, prefix caches,
starts and drains.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.aisimulate.ours import simulated
from benchmarks.aisimulate.peer import replayed, version_of
from benchmarks.aisimulate.scenarios import Outcome, scenarios

RECORDED = Path(__file__).with_name("recorded.json")
TITLE = "| AISimulate / simulated | attainment, % | TTFT P50, ms | P90 | P99 | TPOT P50, ms | P90 | P99 | replica-hours |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", help="an interpreter that has AISimulate: replay anew")
    parser.add_argument("--record", action="store_true", help="keep what AISimulate gives")
    args = parser.parse_args()
    if args.record and not args.python:
        parser.error("--record needs --python")
    peers = {one.name: replayed(one, args.python) for one in scenarios()} if args.python else recorded()
    if args.record:
        write(peers, version_of(args.python))
    print(report(peers))
    return 0


def recorded() -> dict[str, Outcome]:
    """Return what AISimulate gave for each scenario."""
    outcomes = json.loads(RECORDED.read_text())["outcomes"]
    return {name: Outcome(**figures) for name, figures in outcomes.items()}


def write(peers: dict[str, Outcome], version: str) -> None:
    """Record what AISimulate gave."""
    document = {
        "simulator": "AISimulate (NVIDIA), in ai-dynamo-runtime",
        "version": version,
        "licence": "Apache-2.0",
        "outcomes": {name: asdict(outcome) for name, outcome in peers.items()},
    }
    RECORDED.write_text(json.dumps(document, indent=1) + "\n")


def report(peers: dict[str, Outcome]) -> str:
    """Return both beside each other, as Markdown."""
    lines = [TITLE, "| --- |" + " ---: |" * (TITLE.count("|") - 2)]
    for scenario in scenarios():
        peer, own = peers[scenario.name], simulated(scenario)
        cells = [
            _cell(100 * peer.attained, 100 * own.attained, "{:.1f}"),
            *(_cell(1e3 * a, 1e3 * b, "{:,.0f}") for a, b in zip(peer.ttft_s, own.ttft_s, strict=True)),
            *(_cell(1e3 * a, 1e3 * b, "{:.1f}") for a, b in zip(peer.tpot_s, own.tpot_s, strict=True)),
            _cell(peer.replica_hours, own.replica_hours, "{:.3f}"),
        ]
        lines.append(f"| {scenario.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(peer: float, own: float, style: str) -> str:
    return f"{style.format(peer)} / {style.format(own)}"


if __name__ == "__main__":
    sys.exit(main())
