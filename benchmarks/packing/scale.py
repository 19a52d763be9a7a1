"""Large fleets: seconds, memory and the gap of the dollars. Every case in a process of its own, for its peak memory.

`python -m benchmarks.packing.scale CASE` runs one.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.packing import greedy
from benchmarks.packing.report import Outcome, Table
from benchmarks.packing.workloads import LARGE, SMALL, TINY, Nodes, demands, draw, fleet
from tangram.packing import GPUState, Instance, Packing, Problem
from tangram.packing.solve import Limits, solve

SKUS = ("A100-80GB-SXM", "H100-80GB-SXM", "H200-141GB-SXM")
PARTS = (0.4, 0.4, 0.2)  # of the nodes
NODE = 8
PATIENCE_S = 900  # for one case, demands and both plans
CHANGED = 0.1  # share of the deployments whose traffic changes before the second plan
MORE = 1.3  # times the traffic of every deployment, which is more than the fleet carries
GUARD_S = 0.5  # wall-clock guard of the plan that has next to no time
GAP = 0.01  # of the dollars, that plans are meant to stay within


@dataclass(frozen=True, slots=True)
class Case:
    """One fleet."""

    gpus: int
    deployments: int
    spend: tuple[float, float]  # USD/h of one deployment on its cheapest shape, log-uniform between
    limit_s: float  # seconds of CPU that each plan is meant to stay within


CASES = {
    "100": Case(100, 20, (5.0, 20.0), 5.0),
    "1000": Case(1_000, 200, (6.0, 24.0), 5.0),
    "10000": Case(10_000, 500, (22.0, 88.0), 60.0),
}


def prepare(case: Case, seed: int) -> tuple[Problem, list[Any]]:
    kinds = [Nodes(sku, round(case.gpus / NODE * part), NODE) for sku, part in zip(SKUS, PARTS, strict=True)]
    rng = random.Random(f"scale {case.gpus} {seed}")
    models = TINY[:1] * 60 + TINY * 20 + SMALL + LARGE  # mostly models that live on small slices
    low, high = case.spend
    return Problem(fleet(kinds), ()), draw(rng, models, SKUS, case.deployments, {"low": low, "high": high})


def after(problem: Problem, packing: Packing) -> tuple[GPUState, ...]:
    """The fleet once a packing has been carried out."""
    layouts = {layout.id: layout.instances for layout in packing.layouts}
    gpus = []
    for state in problem.gpus:
        instances = tuple(
            Instance(p.profile, p.start, p.owner, gang=p.gang) for p in layouts[state.id] if p.owner
        )
        cut = bool(instances) and instances[0].profile != "gpu"
        gpus.append(
            replace(
                state, instances=instances, mig_enabled=cut, convertible=state.convertible and not instances
            )
        )
    return tuple(gpus)


def one(name: str, seed: int) -> dict[str, Any]:
    """Plan one fleet four times: empty, after a change, and twice with more traffic than it carries; and in a hurry."""
    case = CASES[name]
    empty, deployments = prepare(case, seed)
    limits = Limits()
    plans: dict[str, dict[str, Any]] = {}
    plans["fresh"], packing = _solve(empty, deployments, limits)
    running = replace(empty, gpus=after(empty, packing))
    rng = random.Random(f"change {seed}")
    changed = set(rng.sample(range(len(deployments)), max(1, round(CHANGED * len(deployments)))))
    later = [_times(d, rng.uniform(0.7, 1.4)) if n in changed else d for n, d in enumerate(deployments)]
    plans["replan"], packing = _solve(running, later, limits)
    moved = {move.owner for move in packing.moves}
    plans["replan"]["strangers_moved"] = len(moved - {deployments[n].wanted.id for n in changed})
    crowd = [_times(d, MORE) for d in deployments]
    plans["short"], _ = _solve(empty, crowd, limits)
    plans["short, running"], _ = _solve(running, crowd, limits)
    plans["hurry"], _ = _solve(empty, deployments, Limits(wall_s=GUARD_S))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start = time.perf_counter()
    base = greedy.plan(empty, deployments)
    return {
        "plans": plans,
        "peak_rss_mib": peak,
        "greedy": {
            "cost_per_hour": base.cost_per_hour,
            "unserved": len(base.unserved),
            "seconds": time.perf_counter() - start,
        },
    }


def _times(each: Any, factor: float) -> Any:
    """The same deployment with more or less traffic."""
    return replace(each, wanted=replace(each.wanted, rps=each.wanted.rps * factor))


def _solve(now: Problem, deployments: list[Any], limits: Limits) -> tuple[dict[str, Any], Packing]:
    start = time.perf_counter()
    problem = replace(now, demands=demands(deployments, now))
    prepared = time.perf_counter() - start
    start, cpu = time.perf_counter(), time.process_time()
    packing = solve(problem, limits)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    placed = [i for layout in packing.layouts for i in layout.instances if i.owner is not None]
    dollars = next(s for s in packing.stages if s.name == "dollars")
    unmet = [s for s in packing.stages if s.name.startswith("unmet")]
    return {
        "prepare_s": prepared,
        "solve_s": seconds,
        "cpu_s": cpu,
        "status": packing.status,
        "gap": packing.gap,
        "dollar_stage_gap": 1 - dollars.bound / dollars.value if dollars.value else 0.0,
        "unmet_share": sum(s.value for s in unmet) / len(deployments),
        "unmet_bound": sum(s.bound for s in unmet) / len(deployments),
        "cost_per_hour": packing.cost_per_hour,
        "bundles": sum(len(d.bundles) for d in problem.demands),
        "slices": sum(i.profile != "gpu" for i in placed),
        "gpus_in_use": packing.gpus_in_use,
        "moves": len(packing.moves),
        "unmet": len(packing.unmet),
    }, packing


def _judged(name: str, found: dict[str, Any]) -> tuple[str, ...]:
    """What should be true of a case and is not."""
    failed = []
    for label, plan in found["plans"].items():
        if label == "hurry":
            if plan["unmet_share"] > 0.02:
                failed.append(f"{label}: {plan['unmet_share']:.1%} of the demand is not served")
            continue
        if plan["dollar_stage_gap"] > GAP:
            failed.append(f"{label}: gap {plan['dollar_stage_gap']:.2%} of the dollars")
        if plan["cpu_s"] > CASES[name].limit_s:
            failed.append(f"{label}: {plan['solve_s']:.1f} s ({plan['cpu_s']:.1f} of CPU)")
        if plan["unmet_share"] - plan["unmet_bound"] > 0.002:
            failed.append(
                f"{label}: {plan['unmet_share'] - plan['unmet_bound']:.2%} of the demand more unmet than must be, perhaps"
            )
    if not found["greedy"]["unserved"]:
        worse = found["plans"]["fresh"]["cost_per_hour"] / found["greedy"]["cost_per_hour"] - 1
        if worse > 1e-5:
            failed.append(f"fresh: {worse:.1%} dearer than the cheapest shapes, largest first")
    return tuple(failed)


def _row(name: str, seed: int, label: str, found: dict[str, Any]) -> tuple[str, ...]:
    plan = found["plans"][label]
    over = (
        f"{found['greedy']['cost_per_hour'] / plan['cost_per_hour'] - 1:+.1%}"
        if plan["cost_per_hour"]
        else "-"
    )
    return (
        f"{CASES[name].gpus:,} / {CASES[name].deployments}, seed {seed}, {label}",
        f"{plan['slices']:,}",
        f"{plan['gpus_in_use']:,}",
        f"{100 * plan['unmet_share']:.2f} %"
        + (f" ({100 * plan['unmet_bound']:.2f})" if plan["unmet"] else ""),
        f"{100 * plan['dollar_stage_gap']:.2f} %",
        f"{plan['solve_s']:.1f} ({plan['cpu_s']:.1f})",
        f"{plan['prepare_s']:.1f}",
        f"{plan['moves']} ({plan['strangers_moved']})" if label == "replan" else "-",
        over if label == "fresh" and not found["greedy"]["unserved"] else "-",
        f"{found['peak_rss_mib']:.0f}",
    )


def run(*, quick: bool) -> Outcome:
    names = ("100",) if quick else ("100", "1000", "10000")
    rows, figures, failed = [], {}, []
    for name in names:
        for seed in range(1) if quick or name == "10000" else range(3):
            command = [sys.executable, "-m", "benchmarks.packing.scale", name, str(seed)]
            try:
                done = subprocess.run(
                    command, check=True, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S
                )
            except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
                failed.append(f"{name} GPUs, seed {seed}: {type(error).__name__}")
                continue
            found = figures[f"{name} {seed}"] = json.loads(done.stdout)
            for label in found["plans"]:
                rows.append(_row(name, seed, label, found))
                print(" | ".join(rows[-1]), flush=True)
            failed += [f"{name} GPUs, seed {seed}, {each}" for each in _judged(name, found)]
    head = ("GPUs / deployments", "slices", "GPUs in use", "unmet (at least)", "gap of the dollars")
    table = Table(
        "Whole fleets in one plan",
        (*head, "solve s (CPU)", "demands s", "moves (of strangers)", "greedy over it", "peak MiB"),
        tuple(rows),
        (
            "Nodes of 8: A100 40 %, H100 40 %, H200 20 %; real models, mostly small; every GPU may be cut. `fresh`: the fleet is "
            f"empty. `replan`: that plan runs, and {CHANGED:.0%} of the deployments have 0.7..1.4 times their traffic; strangers "
            f"are the others. `short`: {MORE} times the traffic of all, more than the fleet carries, planned on the empty and on "
            "the running fleet; `at least` is the proved bound of what must be left unserved. `hurry`: fresh, with a wall-clock "
            f"guard of {GUARD_S} s on the solver. `demands`: shapes to bundles, sizing itself not included. Peak memory is of "
            "the whole process, all plans. Meant: 5 s of CPU (60 s for 10,000 GPUs), a gap of 1 %, in a hurry at most 2 % of the "
            "demand unmet. Wall-clock seconds are those of a machine that others use as well.",
        ),
    )
    seeds = "0..2 (10,000 GPUs: 0)"
    return Outcome(
        "scale", "How large, how fast, how far from the best.", seeds, (table,), figures, tuple(failed)
    )


if __name__ == "__main__":
    print(json.dumps(one(sys.argv[1], int(sys.argv[2]))))
