"""How long a recommendation for the whole fleet takes, up to 10,000 GPUs as an operator would see them.

    python -m benchmarks.recommend_time [--quick] [--limit 51] [--json FILE] [--save DIR]

Nodes of four SKUs, a third of them partly cut, in pools of every policy and in none; LLMDeployments of which
no two are alike; pods of strangers on one unit in thirty; some LLMDeployments whose checkpoint nobody knows
any more, which keep what they have. Questions about each fleet:

    settled   everything wanted runs, on the cheapest slices that were free when it came
    free      the same, without any GPUPool: everything may be cut and moved
    new       a tenth as many LLMDeployments come on top of that, and nothing runs of them yet

Each question is answered in a process of its own on two cores at most, under the limit that the operator gives
it (85 % of its deadline of 60 s), as its advice worker answers it: unpickling, hash, recommendation, FleetPlan.
Seconds are wall and, in brackets, CPU. `pickle` is what the operator's own process pays for handing it over.

Exit status 1 where a question took longer than it may (10 s for 1,000 GPUs, 60 s for 10,000), or where the plan
is worse than what runs: dearer, or with less of it served.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.plan_time import KINDS, facts_of
from benchmarks.sizing_time import machine
from tangram.capacity.memory.from_facts import architecture_from_facts
from tangram.capacity.sizing import ServingShape
from tangram.catalog import InputError, gpu, known_model, known_models
from tangram.eligibility.shapes.bundled_engine import on_bundled_engine
from tangram.eligibility.shapes.serving_requirements import requirements_of
from tangram.fleet import (
    Claim,
    FactsKey,
    FleetSnapshot,
    Intent,
    Node,
    Objective,
    Pool,
    PoolPolicy,
    Shape,
    Traffic,
)
from tangram.fleet.lengths import around
from tangram.plan.offers.fleet_shapes import fleet_shapes, replicas
from tests.support.fleet import IMAGE, NOW, intent, workload

SEED = 7
LIMIT_S = 51.0  # what the operator leaves a recommendation of its deadline of 60 s
PER_ROUND = sum(whole["gpu"] for _, _, whole, _ in KINDS)
POOLS = ("full", "recommend", "idle", "ignore", "")  # by node, in turn
POLICIES = {
    "full": PoolPolicy.FULL,
    "recommend": PoolPolicy.RECOMMEND,
    "idle": PoolPolicy.IDLE_ONLY,
    "ignore": PoolPolicy.IGNORE,
}
STRANGERS = 1 / 30  # of all units
FORGOTTEN = 0.02  # of the LLMDeployments
FULL = 0.85  # of the GPUs, when the last LLMDeployment has come


@dataclass(frozen=True, slots=True)
class Case:
    """One fleet."""

    gpus: int
    deployments: int
    most_s: float  # that a recommendation may take


CASES = {
    "100": Case(100, 20, 10.0),
    "1000": Case(1_000, 200, 10.0),
    "10000": Case(10_000, 500, 60.0),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="without 10,000 GPUs")
    parser.add_argument("--cases", nargs="*", choices=sorted(CASES), help="instead of all")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for a recommendation")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--save", type=Path, help="keep the fleets here, as pickles")
    parser.add_argument("--ask", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ask:
        print(json.dumps(ask(args.ask, args.limit)))
        return 0
    names = args.cases or [name for name in CASES if not (args.quick and name == "10000")]
    found, failed = {}, []
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.save or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            for question, asked in questions(CASES[name]).items():
                file = folder / f"{name}-{question}.pickle"
                file.write_bytes(pickle.dumps(asked, pickle.HIGHEST_PROTOCOL))
                one = found[f"{name} {question}"] = _ask(file, args.limit)
                _show(CASES[name], question, one)
                failed += [f"{name} {question}: {each}" for each in _judged(CASES[name], one)]
    if args.json:
        result = {"questions": found, "limit_s": args.limit, "machine": machine()}
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    print("\n".join(failed) if failed else "all in time, and no plan worse than what runs")
    return bool(failed)


def _ask(file: Path, limit_s: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.recommend_time", "--ask", str(file), "--limit", str(limit_s)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _show(case: Case, question: str, one: dict[str, Any]) -> None:
    served = f"{one['unmet']} go short ({one['unmet_share']:.1f}), {one['told']} told why, {one['moves']} moves, {one['steps']} steps"
    print(
        f"{case.gpus:,} GPUs, {case.deployments} LLMDeployments, {question}: {one['wall_s']:.1f} s "
        f"({one['cpu_s']:.1f}), {one['rss_mib']:.0f} MiB, {one['status']}, gap {one['gap']:.2%}, "
        f"{one['cost']:.2f} $/h of {one['current']:.2f}, {served}"
    )
    parts = one["parts"].items()
    print("   " + ", ".join(f"{part} {wall:.2f} ({cpu:.2f})" for part, (wall, cpu) in parts), flush=True)


def _judged(case: Case, one: dict[str, Any]) -> Iterator[str]:
    if one["wall_s"] > case.most_s:
        yield f"{one['wall_s']:.1f} s, may take {case.most_s:g} s"
    if one["worse"]:
        yield "it serves less than what runs"
    if one["cost"] > one["current"] * (1 + 1e-6) and not one["unserved"]:
        yield "it costs more than what runs, and nobody is waiting"


@dataclass(slots=True)
class Times:
    """Wall and CPU seconds by part."""

    parts: dict[str, tuple[float, float]] = field(default_factory=dict)

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same function, its time added up under a name."""

        def run(*args: Any, **kwargs: Any) -> Any:
            wall, cpu = time.perf_counter(), time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                before = self.parts.get(name, (0.0, 0.0))
                self.parts[name] = (
                    before[0] + time.perf_counter() - wall,
                    before[1] + time.process_time() - cpu,
                )

        return run


def ask(file: Path, limit_s: float) -> dict[str, Any]:
    """Answer one question in this process, as the advice worker does."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    import tangram.packing.solve  # noqa: PLC0415, F401 - the worker has loaded it before there is a question
    from tangram.plan import recommend as module  # noqa: PLC0415
    from tangram.plan.place.best.pack import PlanTimeLimit  # noqa: PLC0415
    from tangram.plan.result.fleet_plan_spec import fleet_plan_spec  # noqa: PLC0415

    times = Times()
    snapshot, intents = pickle.loads(file.read_bytes())  # noqa: S301 - our own
    written = times.timed("pickle", pickle.dumps)((snapshot, intents))
    # The parts of recommend(), timed where it looks them up.
    names = {
        "observed": "snapshot_input",
        "hash": "inputs_hash",
        "sizing and demands": "fleet_problem",
        "solve": "pack",
        "document": "plan_document",
        "explanations": "unmet_explanations",
        "steps": "steps_document",
    }
    for part, name in names.items():
        setattr(module, name, times.timed(part, getattr(module, name)))
    wall, cpu = time.perf_counter(), time.process_time()
    snapshot, intents = times.timed("unpickle", pickle.loads)(written)
    found = times.timed("recommend", module.recommend)(
        snapshot, intents, PlanTimeLimit(limit_s, time.monotonic)
    )
    times.timed("FleetPlan", fleet_plan_spec)(found.document, inputs_hash=found.inputs_hash)
    document = found.document
    running = {each.owner_uid for each in snapshot.workloads}
    unmet, waiting = Counter[int](), Counter[int]()
    for each in document["unmet"]:
        unmet[each["priority"]] += each["share"]
    waiting.update(each.priority for each in intents if each.uid not in running)
    ranks = sorted({*unmet, *waiting}, reverse=True)
    return {
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "pickle_bytes": len(written),
        "parts": times.parts,
        "hash": found.inputs_hash,
        "status": document["status"],
        "gap": document["gap"],
        "cost": document["costPerHour"],
        "current": found.current_cost_per_hour,
        "unserved": len(intents) - len(running),
        "unmet": len(document["unmet"]),
        "unmet_share": sum(unmet.values()),
        # By priority, the highest first: more unserved than if nobody new were served at all.
        "worse": [round(unmet[rank], 6) for rank in ranks] > [float(waiting[rank]) for rank in ranks],
        "moves": len(document["moves"]),
        "steps": len(document["steps"]),
        "missing": document.get("stepsMissing", {}).get("text", ""),
        "advice": len(found.advice),
        "told": sum("relaxations" in each for each in document["deployments"]),
    }


def questions(case: Case) -> dict[str, tuple[FleetSnapshot, tuple[Intent, ...]]]:
    """Return the fleets that are planned, with their LLMDeployments."""
    models = {name: found for name in known_models() if (found := facts_of(known_model(name))) is not None}
    rng = random.Random(f"{SEED} {case.gpus}")
    nodes = tuple(_nodes(case.gpus))
    free = _Free(nodes)
    strangers = tuple(free.strangers(rng))
    prices = {kind[0]: _price(kind[0]) for kind in KINDS}
    budget = FULL * sum(prices[n.sku or ""] * (n.gpus or 0) for n in nodes) / case.deployments
    all_demands = [
        _intent(rng, number, sorted(models)) for number in range(case.deployments + case.deployments // 10)
    ]
    workloads, claims, asked = [], list(strangers), []
    for number, each in enumerate(all_demands):
        wish = budget * rng.uniform(0.4, 1.6)
        try:
            offers = _offers(each, models[each.model_uri.rsplit("/", 1)[1]], prices)
        except InputError:
            continue
        if not offers:
            continue
        best = min(offers, key=lambda offer: offer.price_per_hour / offer.rate)
        rate = float(f"{max(best.rate, best.rate * wish / best.price_per_hour):.3g}")
        traffic = replace(each.traffic, requests_per_second=rate)
        asked.append((number, replace(each, traffic=traffic)))
        if number >= case.deployments:
            continue
        wanted = replace(_wanted(each, models[each.model_uri.rsplit("/", 1)[1]]), rps=rate)
        for offer in sorted(offers, key=lambda o: (replicas(wanted, o) * o.price_per_hour, o.key)):
            count = replicas(wanted, offer)
            places = free.take(offer.shape, count) if count <= each.max_replicas else None
            if places is not None:
                workloads.append(workload(each, offer.shape, count))
                claims += [Claim(node, offer.shape.resource, 1, each.uid) for node in places]
                break
    forgotten = max(1, round(FORGOTTEN * case.deployments))
    lost = {w.owner_uid for w in rng.sample(workloads, forgotten)}
    asked = [
        (number, replace(each, model_uri="image:///m/forgotten") if each.uid in lost else each)
        for number, each in asked
    ]
    seen = FleetSnapshot(
        nodes=nodes,
        claims=tuple(claims),
        workloads=tuple(workloads),
        facts=tuple((FactsKey("ns", f"image:///m/{name}", IMAGE), models[name]) for name in sorted(models)),
        pools=tuple(
            Pool(name, (("pool", name),), policy=policy, disruption_budget=50 if name == "full" else None)
            for name, policy in sorted(POLICIES.items())
        ),
        desired=tuple(sorted((w.owner_uid, w.replicas) for w in workloads)),
        engine_image=IMAGE,
    )
    there = {w.owner_uid for w in workloads}
    settled = tuple(each for _, each in asked if each.uid in there)
    return {
        "settled": (seen, settled),
        "free": (replace(seen, pools=()), settled),
        "new": (seen, tuple(e for number, e in asked if e.uid in there or number >= case.deployments)),
    }


def _intent(rng: random.Random, number: int, names: list[str]) -> Intent:
    return intent(
        f"llm-{number:04}",
        uri=f"image:///m/{names[number % len(names)]}",
        created_at=NOW - 10_000 + number,
        max_model_len=4096,
        ttft=Objective(90, rng.randint(300, 2000)),
        tpot=Objective(90, rng.randint(25, 100)),
        max_replicas=1000,
        priority=rng.choice((0, 0, 0, 10)),
        traffic=Traffic(None, around(rng.randint(200, 2500)), around(rng.randint(50, 500))),
    )


def _wanted(each: Intent, facts: Any) -> Any:
    return on_bundled_engine(requirements_of(each, architecture_from_facts(facts)))


def _offers(each: Intent, facts: Any, prices: dict[str, float]) -> tuple[ServingShape, ...]:
    return fleet_shapes(_wanted(each, facts), frozenset(prices), prices).serving


def _price(sku: str) -> float:
    found = gpu(sku)
    assert found is not None  # the catalog has them
    assert found.price_per_hour is not None
    return found.price_per_hour


def _nodes(gpus: int) -> Iterator[Node]:
    """Yield nodes of four SKUs in turn, every third of each partly cut, until there are so many GPUs."""
    there, number = 0, 0
    while there < gpus:
        sku, label, whole, cut = KINDS[number % len(KINDS)]
        offer = cut if number // len(KINDS) % 3 == 2 else whole
        resources = tuple(sorted((f"nvidia.com/{name}", count) for name, count in offer.items()))
        pool = POOLS[number // len(KINDS) % len(POOLS)]
        labels = (("pool", pool),) if pool else ()
        yield Node(
            f"node-{number:04}",
            sku,
            label,
            usable=True,
            allocatable=resources,
            zone=f"zone-{number % 3}",
            gpus=whole["gpu"],
            labels=labels,
        )
        there, number = there + whole["gpu"], number + 1


class _Free:
    """What nobody holds yet, by SKU and resource: nodes, one entry for each unit."""

    def __init__(self, nodes: tuple[Node, ...]) -> None:
        self._units: dict[tuple[str, str], list[str]] = {}
        for node in reversed(nodes):
            for name, count in node.allocatable:
                self._units.setdefault((node.sku or "", name), []).extend([node.name] * count)

    def strangers(self, rng: random.Random) -> Iterator[Claim]:
        """Give some units to nobody that the operator knows."""
        for (_, name), units in sorted(self._units.items()):
            for _ in range(round(STRANGERS * len(units))):
                yield Claim(units.pop(rng.randrange(len(units))), name, 1, None)

    def take(self, shape: Shape, count: int) -> list[str] | None:
        """Return nodes for so many replicas; None: there is not enough."""
        units = self._units.get((shape.sku, shape.resource), [])
        if shape.gpus != 1 or not 0 < count <= len(units):
            return None
        return [units.pop() for _ in range(count)]


if __name__ == "__main__":
    sys.exit(main())
