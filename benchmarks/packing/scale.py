"""Large fleets: seconds, memory and both gaps. Every state in a process of its own, for its peak memory.

`python -m benchmarks.packing.scale CASE SEED STATE` plans one; the running fleets that states start from are kept
in data/, so that every version of the planner is asked the same. `keep-running` in place of CASE stores them again,
`former` stores what this version answers as the answers to compare with.
"""

from __future__ import annotations

import gzip
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.packing import greedy, joint
from benchmarks.packing.report import FORMER, HERE, Outcome, Table, machine
from benchmarks.packing.workloads import LARGE, SMALL, TINY, Nodes, demands, draw, fleet
from tangram.fleet import Spread
from tangram.packing import GPUState, Instance, Packing, Problem
from tangram.packing.solve import SolveLimits, solve

SKUS = ("A100-80GB-SXM", "H100-80GB-SXM", "H200-141GB-SXM")
PARTS = (0.4, 0.4, 0.2)  # of the nodes
NODE = 8
PATIENCE_S = 600  # for one state
CHANGED = 0.1  # share of the deployments whose traffic changes before the second plan
MORE = 1.3  # times the traffic of every deployment, which is more than the fleet carries
GONE = 0.3  # share of the replicas that went, one here and one there
CHURNED = (0.5, 1.2)  # times the traffic that deployments had, by then
APART = 0.5  # of the replicas of a deployment, most on one node
POOLS = ("east", "west")  # of every second node each
GUARD_S = 0.5  # wall-clock guard of the plan that has next to no time


@dataclass(frozen=True, slots=True)
class Case:
    """One fleet, and what plans of it are meant to stay within."""

    gpus: int
    deployments: int
    spend: tuple[float, float]  # USD/h of one deployment on its cheapest shape, log-uniform between
    limit_s: float  # seconds of CPU, demands included
    gap: float  # of the dollars
    points: float  # of the demand


CASES = {
    "100": Case(100, 20, (5.0, 20.0), 3.0, 0.01, 0.5),
    "1000": Case(1_000, 200, (6.0, 24.0), 5.0, 0.005, 0.5),
    "10000": Case(10_000, 500, (22.0, 88.0), 30.0, 0.005, 0.5),
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
    held = [
        [Instance(p.profile, p.start, p.owner, gang=p.gang) for p in layouts[state.id] if p.owner]
        for state in problem.gpus
    ]
    return _running(problem, held)


def _running(problem: Problem, held: list[list[Instance]]) -> tuple[GPUState, ...]:
    gpus = []
    for state, found in zip(problem.gpus, held, strict=True):
        instances = tuple(sorted(found, key=lambda each: each.start))
        cut = bool(instances) and instances[0].profile != "gpu"
        convertible = state.convertible and not instances
        gpus.append(replace(state, instances=instances, mig_enabled=cut, convertible=convertible))
    return tuple(gpus)


def running(name: str, seed: int, empty: Problem) -> Problem:
    """The fleet of a case with what runs on it: a plan of it when it was empty, as kept."""
    kept = json.loads(gzip.decompress(_kept(name, seed).read_bytes()))
    held = [
        [Instance(profile, start, f"d{owner:03}", gang=gang) for profile, start, owner, gang in each]
        for each in kept
    ]
    return replace(empty, gpus=_running(empty, held))


def _kept(name: str, seed: int) -> Path:
    return HERE / "data" / f"running_{name}_{seed}.json.gz"


def keep_running() -> None:
    """Store the running fleets again, of the plans that this version makes."""
    for name, seed in seeds():
        empty, deployments = prepare(CASES[name], seed)
        gpus = after(empty, solve(replace(empty, demands=demands(deployments, empty))))
        rows = [[(i.profile, i.start, int((i.owner or "")[1:]), i.gang) for i in g.instances] for g in gpus]
        _kept(name, seed).write_bytes(gzip.compress(json.dumps(rows).encode(), mtime=0))


def seeds() -> list[tuple[str, int]]:
    return [(name, seed) for name in CASES for seed in range(1 if name == "10000" else 3)]


@dataclass(frozen=True, slots=True)
class Asked:
    """A fleet and what is to run on it."""

    now: Problem
    deployments: list[Any]
    changed: frozenset[str] = frozenset()  # ids of those whose traffic has changed
    limits: SolveLimits = field(default_factory=SolveLimits)


def _fresh(_: str, __: int, empty: Problem, deployments: list[Any]) -> Asked:
    return Asked(empty, deployments)


def _replan(name: str, seed: int, empty: Problem, deployments: list[Any]) -> Asked:
    rng = random.Random(f"change {seed}")
    changed = set(rng.sample(range(len(deployments)), max(1, round(CHANGED * len(deployments)))))
    later = [_times(d, rng.uniform(0.7, 1.4)) if n in changed else d for n, d in enumerate(deployments)]
    return Asked(
        running(name, seed, empty), later, changed=frozenset(deployments[n].requirements.id for n in changed)
    )


def _short(_: str, __: int, empty: Problem, deployments: list[Any]) -> Asked:
    return Asked(empty, [_times(each, MORE) for each in deployments])


def _short_running(name: str, seed: int, empty: Problem, deployments: list[Any]) -> Asked:
    return Asked(running(name, seed, empty), [_times(each, MORE) for each in deployments])


def _scattered(name: str, seed: int, empty: Problem, deployments: list[Any]) -> Asked:
    rng, now = random.Random(f"scattered {seed}"), running(name, seed, empty)
    gone = {gang for gpu in now.gpus for i in gpu.instances if (gang := i.gang) and rng.random() < GONE}
    gpus = []
    for gpu in now.gpus:
        left = (i.gang in gone if i.gang else rng.random() < GONE for i in gpu.instances)
        slices = gpu.mig_enabled  # a slice stays when its replica has gone, a whole GPU is just free
        instances = tuple(
            replace(i, owner=None) if away else i
            for i, away in zip(gpu.instances, left, strict=True)
            if slices or not away
        )
        free = not any(i.owner for i in instances)
        gpus.append(replace(gpu, instances=instances, convertible=free))
    return Asked(
        replace(now, gpus=tuple(gpus)), [_times(each, rng.uniform(*CHURNED)) for each in deployments]
    )


def _spread(_: str, __: int, empty: Problem, deployments: list[Any]) -> Asked:
    nodes = {node: n for n, node in enumerate(sorted({gpu.node for gpu in empty.gpus}))}
    gpus = tuple(replace(gpu, pool=POOLS[nodes[gpu.node] % len(POOLS)]) for gpu in empty.gpus)
    pools = [(pool,) for pool in POOLS] + [()]  # a third of the deployments each
    apart = [
        replace(
            each,
            requirements=replace(
                each.requirements,
                intent=replace(each.requirements.intent, spread=Spread(node=APART)),
                pools=pools[n % len(pools)],
            ),
        )
        for n, each in enumerate(deployments)
    ]
    return Asked(replace(empty, gpus=gpus), apart)


def _hurry(_: str, __: int, empty: Problem, deployments: list[Any]) -> Asked:
    return Asked(empty, deployments, limits=SolveLimits(wall_s=GUARD_S))


STATES: dict[str, Callable[[str, int, Problem, list[Any]], Asked]] = {
    "fresh": _fresh,
    "replan": _replan,
    "short": _short,
    "short, running": _short_running,
    "scattered": _scattered,
    "spread": _spread,
    "hurry": _hurry,
}


def asked(name: str, seed: int, state: str) -> Asked:
    """What one state asks of the planner."""
    return STATES[state](name, seed, *prepare(CASES[name], seed))


def one(name: str, seed: int, state: str) -> dict[str, Any]:
    """Plan one state of one fleet."""
    question = asked(name, seed, state)
    found, packing = _solve(question)
    found["strangers_moved"] = len({move.owner for move in packing.moves} - question.changed)
    found["peak_rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if state == "fresh":
        base = greedy.plan(question.now, question.deployments)
        found["greedy"] = {"cost_per_hour": base.cost_per_hour, "unserved": len(base.unserved)}
    return found


def _times(each: Any, factor: float) -> Any:
    """The same deployment with more or less traffic."""
    return replace(each, requirements=replace(each.requirements, rps=each.requirements.rps * factor))


def _solve(question: Asked) -> tuple[dict[str, Any], Packing]:
    start = time.process_time()
    problem = replace(question.now, demands=demands(question.deployments, question.now))
    prepared = time.process_time() - start
    start, wall = time.process_time(), time.perf_counter()
    packing = solve(problem, question.limits)
    cpu, wall = time.process_time() - start, time.perf_counter() - wall
    placed = [i for layout in packing.layouts for i in layout.instances if i.owner is not None]
    unmet = [s for s in packing.stages if s.name.startswith("unmet")]
    dollars = next(s for s in packing.stages if s.name == "dollars")
    return {
        "demands_cpu_s": prepared,
        "solve_cpu_s": cpu,
        "solve_s": wall,
        "status": packing.status,
        "unmet_points": 100 * sum(s.value for s in unmet) / len(problem.demands),
        "unmet_points_bound": 100 * sum(s.bound for s in unmet) / len(problem.demands),
        "dollars": dollars.value,
        "dollars_bound": dollars.bound,
        "cost_per_hour": packing.cost_per_hour,
        "slices": sum(i.profile != "gpu" for i in placed),
        "gpus_in_use": packing.gpus_in_use,
        "moves": len(packing.moves),
        "stages": [(s.name, s.value, s.bound, s.proved) for s in packing.stages],
    }, packing


def _in_a_process(name: str, seed: int, state: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.packing.scale", name, str(seed), state]
    try:
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        return {"error": f"no plan in {PATIENCE_S} s" if "timed" in str(error) else "it failed"}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def keep_former() -> None:
    """Store this version's answers as those that later ones are compared with."""
    found = {
        f"{name} {seed} {state}": _in_a_process(name, seed, state)
        for name, seed in seeds()
        for state in STATES
    }
    revision = subprocess.run(["git", "rev-parse", "HEAD"], check=True, stdout=subprocess.PIPE, text=True)
    record = {
        "command": "python -m benchmarks.packing.scale former",
        "revision": revision.stdout.strip(),
        "machine": machine(),
        "answers": found,
        "joint": joint.answers(),
    }
    FORMER.write_text(json.dumps(record, indent=1) + "\n")


def _worst(case: Case, label: str, plan: dict[str, Any]) -> list[str]:
    """What should be true of one plan and is not."""
    if "error" in plan:
        return [plan["error"]]
    over, failed = plan["unmet_points"] - plan["unmet_points_bound"], []
    if label == "hurry":
        return [f"{plan['unmet_points']:.1f} points are not served"] if plan["unmet_points"] > 2 else []
    if _gap(plan) > case.gap:
        failed.append(f"gap {_gap(plan):.2%} of the dollars")
    if over > case.points:
        failed.append(f"perhaps {over:.2f} points more unmet than must be")
    if _cpu(plan) > case.limit_s:
        failed.append(f"{_cpu(plan):.1f} s of CPU")
    return failed


def _gap(plan: dict[str, Any]) -> float:
    return 1 - plan["dollars_bound"] / plan["dollars"] if plan["dollars"] else 0.0


def _cpu(plan: dict[str, Any]) -> float:
    seconds: float = plan["demands_cpu_s"] + plan["solve_cpu_s"]
    return seconds


def _unmet(plan: dict[str, Any]) -> str:
    return f"{plan['unmet_points']:.2f} ({plan['unmet_points_bound']:.2f})" if plan["unmet_points"] else "0"


def _row(case: Case, seed: str, label: str, plan: dict[str, Any], former: dict[str, Any]) -> tuple[str, ...]:
    name = f"{case.gpus:,} / {case.deployments}, seed {seed}, {label}"
    before = former.get("error", "-") if "dollars" not in former else ""
    then = (before,) * 3 if before else (_unmet(former), f"{former['dollars']:,.2f}", f"{_cpu(former):.1f}")
    if "error" in plan:
        return (name, plan["error"], *["-"] * 7, *then)
    worse = ""
    if not before and not former["unmet_points"] and not plan["unmet_points"]:
        worse = f" ({former['dollars'] / plan['dollars_bound'] - 1:+.2%} over the bound)"
    return (
        name,
        _unmet(plan),
        f"{plan['dollars']:,.2f} ({plan['dollars_bound']:,.2f})",
        f"{100 * _gap(plan):.2f} %",
        f"{_cpu(plan):.1f}",
        f"{plan['demands_cpu_s']:.1f}",
        f"{plan['gpus_in_use']:,}",
        f"{plan['moves']} ({plan['strangers_moved']})" if plan["moves"] else "0",
        f"{plan['peak_rss_mib']:.0f}",
        then[0],
        then[1] + worse,
        then[2],
    )


def run(*, quick: bool) -> Outcome:
    former = json.loads(FORMER.read_text())["answers"]
    rows, figures, failed = [], {}, []
    for name, seed in [("100", 0)] if quick else seeds():
        for state in STATES:
            key = f"{name} {seed} {state}"
            plan = figures[key] = _in_a_process(name, seed, state)
            rows.append(_row(CASES[name], str(seed), state, plan, former.get(key, {})))
            print(" | ".join(rows[-1]), flush=True)
            failed += [
                f"{name} GPUs, seed {seed}, {state}: {each}" for each in _worst(CASES[name], state, plan)
            ]
    head = ("GPUs / deployments", "points unmet (at least)", "USD (at least)", "gap of the dollars", "CPU-s")
    more = ("of it demands", "GPUs in use", "moves (of strangers)", "peak MiB")
    table = Table(
        "Whole fleets in one plan",
        (*head, *more, "former menu: points unmet", "former menu: USD", "former menu: CPU-s"),
        tuple(rows),
        (
            "Nodes of 8: A100 40 %, H100 40 %, H200 20 %; real models, mostly small; every GPU may be cut. A point is a "
            "hundredth of the sum of the deployments' unmet shares over their number. Dollars are those of the stage: GPUs in "
            "use over the horizon, and moves. `At least` is the proved bound, of any mix of shapes. `fresh`: the fleet is empty. "
            f"`replan`: a plan of it runs, and {CHANGED:.0%} of the deployments have 0.7..1.4 times their traffic; strangers are "
            f"the others. `short`: {MORE} times the traffic of all, more than the fleet carries, planned on the empty and on the "
            f"running fleet. `scattered`: of what runs, {GONE:.0%} of the replicas have gone, one here and one there, and every "
            f"deployment has {CHURNED[0]}..{CHURNED[1]} times its traffic. `spread`: "
            f"fresh, at most {APART:.0%} of the replicas of a deployment on one node; every second node is in one of two pools, "
            f"a third of the deployments may use one, a third the other, a third both. `hurry`: fresh, with a wall-clock guard of "
            f"{GUARD_S} s on the solver. Every state starts from the same fleet in every version (data/running_*); CPU seconds are "
            "those of demands and solver, sizing not included. `Former menu`: the planner that chose one of at most 140 bundles "
            "for each deployment (data/former_menu.json); what it called its bound held for those alone. Meant: both gaps "
            "within 0.5 % and 0.5 points in 5 s of CPU (10,000 GPUs: 30 s; 100 GPUs: 1 % in 3 s), in a hurry at most 2 points.",
        ),
    )
    question, drawn = "How large, how fast, how far from the best.", "0..2 (10,000 GPUs: 0)"
    return Outcome("scale", question, drawn, (table,), figures, tuple(failed))


if __name__ == "__main__":
    if sys.argv[1] == "keep-running":
        keep_running()
    elif sys.argv[1] == "former":
        keep_former()
    else:
        print(json.dumps(one(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
