"""How long the operator's plan takes on one core: 200 LLMDeployments, no two alike, on 50 nodes of 4 SKUs.

    python -m benchmarks.plan_time [--deployments 200] [--nodes 50] [--runs 5] [--limit 2.0] [--json FILE]

Models are those of the catalog that the bundled engine's inspection can describe and one GPU can hold. Lengths,
objectives and traffic are drawn for each LLMDeployment with a fixed seed. Every second node has slices. Each run is a
process of its own, as the operator's plan worker is, held to one core. Seconds are those of the processor, so that
others on the machine matter little:

    solver's import  what the process does before it plans
    first            the first plan of the process: nothing runs yet, nothing was ever asked
    again            the same once more
    all running      what was decided has been carried out
    steady           the same once more: what a quiet fleet costs each round
    one more         an LLMDeployment that is like no other
    a review         the warnings of `kubectl apply` for such an LLMDeployment, in a process that has answered before
    one grows        the scaling law wants more replicas of one
    being cut        like `one more`, while a GPU of each node of two SKUs is cut into two slices
    next step        the step function of these cuts: a plan for each GPU, holds, wanted layouts

Exit status 1 if the median of any is above the limit, or that of `one more` is above --limit-one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.sizing_time import machine
from tangram.admission import Review, ReviewedFleet, placement_warnings
from tangram.catalog import Architecture, known_model, known_models
from tangram.fleet import (
    CheckpointFacts,
    FactsKey,
    FleetSnapshot,
    Intent,
    LayoutChange,
    LayoutChanges,
    MIGLayout,
    MIGSlice,
    Node,
    NodePartition,
    Objective,
    PartitionedGPU,
    PartitionView,
    PoolPolicy,
    Traffic,
)
from tangram.fleet.lengths import around
from tangram.plan import plan
from tangram.plan.repartition import (
    FleetState,
    PlanRecord,
    PlanState,
    RepartitionLimits,
    RepartitionNode,
    next_step,
)
from tests.support.fleet import IMAGE, NOW, Cluster, intent

SEED = 7
CASES = (
    "solver's import",
    "first",
    "again",
    "all running",
    "steady",
    "one more",
    "a review",
    "one grows",
    "being cut",
    "next step",
)
LARGEST = 40e9  # bytes of weights: what fits a GPU of 48 GB
KINDS = (  # SKU, label, what a node offers whole, what it offers where it is cut
    ("H100-80GB-SXM", "NVIDIA-H100-80GB-HBM3", {"gpu": 8},
     {"gpu": 4, "mig-1g.10gb": 7, "mig-3g.40gb": 4, "mig-2g.20gb": 3, "mig-1g.20gb": 1}),
    ("A100-80GB-SXM", "NVIDIA-A100-SXM4-80GB", {"gpu": 8},
     {"gpu": 4, "mig-1g.10gb": 8, "mig-3g.40gb": 3, "mig-4g.40gb": 1, "mig-2g.20gb": 3}),
    ("A30", "NVIDIA-A30", {"gpu": 4}, {"gpu": 2, "mig-1g.6gb": 4, "mig-2g.12gb": 2}),
    ("L40S", "NVIDIA-L40S", {"gpu": 4}, {"gpu": 4}),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--deployments", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--limit", type=float, default=2.0, help="seconds of any case")
    parser.add_argument("--limit-one", type=float, default=0.25, help="seconds of `one more`")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.once:
        print(json.dumps(once(args.deployments, args.nodes)))
        return 0
    _run(args)  # compiles what is not compiled yet
    runs = [_run(args) for _ in range(args.runs)]
    found = {
        name: {
            "median_s": statistics.median(run[name] for run in runs),
            "slowest_s": max(run[name] for run in runs),
        }
        for name in CASES
    }
    rss = max(run["rss_mib"] for run in runs)
    print(
        f"{args.deployments} LLMDeployments, {args.nodes} nodes, one core, {args.runs} runs: {runs[0]['told']}"
    )
    print(f"{'case':15}  median s  slowest s")
    for name, case in found.items():
        print(f"{name:15}  {case['median_s']:8.3f}  {case['slowest_s']:9.3f}")
    print(f"memory of the process, at most: {rss:.0f} MiB")
    if args.json:
        result = {
            "cases": found,
            "deployments": args.deployments,
            "nodes": args.nodes,
            "runs": args.runs,
            "rss_mib": rss,
            "machine": machine(),
        }
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    slow = [name for name, case in found.items() if case["median_s"] > args.limit]
    if found["one more"]["median_s"] > args.limit_one:
        slow.append("one more")
    print(
        f"too slow: {', '.join(slow)}"
        if slow
        else f"all below {args.limit:g} s, one more {args.limit_one:g} s"
    )
    return bool(slow)


def _run(args: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.plan_time", "--once"]
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command += ["--deployments", str(args.deployments), "--nodes", str(args.nodes)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=compiled)
    run: dict[str, Any] = json.loads(done.stdout)
    return run


def once(deployments: int, nodes: int) -> dict[str, Any]:
    """Take the seconds of each case in this process, and what was decided."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    start = time.process_time()
    import tangram.packing.solve  # noqa: PLC0415, F401 - the solver's libraries, once per process

    loading = time.process_time() - start
    all_demands, facts = wanted(deployments + 1)
    some, newest = tuple(all_demands[:-1]), all_demands[-1]
    seen = FleetSnapshot(nodes=tuple(fleet(nodes)), facts=facts, engine_image=IMAGE)
    seconds: dict[str, Any] = {"solver's import": loading}

    def timed(name: str, snapshot: FleetSnapshot, intents: tuple[Intent, ...]) -> Any:
        start = time.process_time()
        found = plan(snapshot, intents, NOW)
        seconds[name] = time.process_time() - start
        return found

    first = timed("first", seen, some)
    timed("again", seen, some)
    cluster = Cluster(seen, some)
    cluster.perform(first)
    cluster.settle()
    timed("all running", cluster.observed, some)
    timed("steady", cluster.observed, some)
    timed("one more", cluster.observed, (*some, newest))
    review, reviewed = review_of(newest), ReviewedFleet(cluster.observed, some, NOW)
    placement_warnings(review, reviewed)
    start = time.process_time()
    placement_warnings(review, reviewed)
    seconds["a review"] = time.process_time() - start
    running = next(w for w in cluster.observed.workloads if w.available)
    more = ((running.owner_uid, running.replicas + 2),)
    timed("one grows", replace(cluster.observed, desired=more), some)
    world = cut_world(cluster.observed)
    start = time.process_time()
    step = next_step(world)
    seconds["next step"] = time.process_time() - start
    view = PartitionView(coming=step.coming, going=step.going, targets=step.targets)
    timed("being cut", replace(cluster.observed, partition=view), (*some, newest))
    served = sum(decision.placed > 0 for decision in first.decisions)
    shapes = len({decision.shape for decision in first.decisions})
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {**seconds, "rss_mib": rss, "told": f"{served} placed, on {shapes} different shapes"}


def wanted(count: int) -> tuple[list[Intent], tuple[tuple[FactsKey, CheckpointFacts], ...]]:
    """Return so many LLMDeployments, no two alike, and what was inspected."""
    rng = random.Random(SEED)
    models = {name: found for name in known_models() if (found := facts_of(known_model(name))) is not None}
    names = sorted(models)
    found = []
    for number in range(count):
        name = names[number % len(names)]
        prompt, answer = rng.randint(200, 3000), rng.randint(50, 600)
        found.append(
            intent(
                f"llm-{number:04}",
                uri=f"image:///m/{name}",
                created_at=NOW - 10_000 + number,
                max_model_len=min(models[name].max_position_embeddings, 8192),
                ttft=Objective(90, rng.randint(300, 2000)),
                tpot=Objective(90, rng.randint(25, 100)),
                max_replicas=8,
                traffic=Traffic(round(rng.uniform(0.2, 6.0), 2), around(prompt), around(answer)),
            )
        )
    return found, tuple((FactsKey("ns", f"image:///m/{name}", IMAGE), models[name]) for name in names)


def review_of(newest: Intent) -> Review:
    """Return the review of an LLMDeployment that asks for what `newest` does, but for less time per token."""
    objectives = {"ttft": {"milliseconds": 500}, "tpot": {"milliseconds": 2}}
    spec = {"model": {"uri": newest.model_uri}, "objectives": objectives}
    body = {"metadata": {"namespace": "ns", "name": "reviewed"}, "spec": spec}
    return Review("CREATE", "llmdeployments", "ns", "reviewed", body)


def cut_world(observed: FleetSnapshot) -> FleetState:
    """Return a world in which the first GPU of each node of two SKUs is cut into two slices."""
    nodes, plans = [], []
    for node in observed.nodes:
        gpus = [
            PartitionedGPU(f"{node.name}/index-{i}", MIGLayout(), node.sku) for i in range(node.gpus or 0)
        ]
        nodes.append(
            RepartitionNode(node.name, NodePartition(node.name, "nvml", "", True, True, tuple(gpus)))
        )
        if node.sku in ("H100-80GB-SXM", "A100-80GB-SXM"):
            after = MIGLayout(True, (MIGSlice(0, "3g.40gb"), MIGSlice(4, "3g.40gb")))
            change = LayoutChange(node.name, gpus[0].id, MIGLayout(), after)
            of = LayoutChanges((change,), pool="pool")
            plans.append(PlanRecord(of.name, of, True, state=PlanState.EXECUTING, since=NOW))
    limits = RepartitionLimits(nodes=len(nodes))
    return FleetState(NOW, tuple(nodes), tuple(plans), {"pool": PoolPolicy.FULL}, limits)


def facts_of(model: Architecture | None) -> CheckpointFacts | None:
    """Return what an inspection would say, None where it has no words for the model or it is too large."""
    if model is None or len(model.groups) != 1 or model.dtype != "bf16" or model.quantization:
        return None
    group, size = model.groups[0], 2 * model.parameters
    attention = group.attention
    if attention is None:
        return None
    plain = attention.latent is None and attention.window is None and not group.experts and group.norms == 2
    if not plain or size > LARGEST:
        return None
    return CheckpointFacts(
        architecture=model.name,
        digest=f"sha256:{model.name}",
        dtype=model.dtype,
        layers=model.layers,
        hidden_size=model.hidden_size,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        vocab_size=model.vocab_size,
        max_position_embeddings=model.max_position_embeddings,
        parameters=model.parameters,
        weight_bytes=size,
        embedding_bytes=2 * model.vocab_size * model.hidden_size,
        tied_embeddings=model.tied_embeddings,
        attention_bias=attention.bias,
        qk_norm=attention.qk_norm,
    )


def fleet(nodes: int) -> Iterator[Node]:
    """Yield nodes of four SKUs in turn, every second one of each cut."""
    for number in range(nodes):
        sku, label, whole, cut = KINDS[number % len(KINDS)]
        offer = cut if number // len(KINDS) % 2 else whole
        resources = tuple(sorted((f"nvidia.com/{name}", count) for name, count in offer.items()))
        yield Node(f"node-{number:03}", sku, label, True, resources, f"zone-{number % 3}", whole["gpu"])


if __name__ == "__main__":
    sys.exit(main())
