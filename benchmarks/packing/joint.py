"""One joint plan against the cheapest shape for each model, with the real catalog, sizing and prices."""

from __future__ import annotations

import json
import random
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.packing import greedy
from benchmarks.packing.report import FORMER, Outcome, Table
from benchmarks.packing.stats import half_width, percent
from benchmarks.packing.workloads import LARGE, SMALL, Nodes, demands, draw, fleet
from tangram.packing import Problem
from tangram.packing.solve import SolveLimits, solve

MIXED = (
    Nodes("A100-80GB-SXM", 4, 8),
    Nodes("H100-80GB-SXM", 4, 8),
    Nodes("H200-141GB-SXM", 2, 8),
    Nodes("A30", 4, 4),
    Nodes("L40S", 4, 4),
    Nodes("L4", 4, 4),
)
ONE_SKU = (Nodes("H100-80GB-SXM", 24, 8),)
SIZES = (5, 10, 20)
ROUNDING = 1e-5  # the planner counts prices in units of 1e-5 USD
GAP = 0.002  # at which the dollars are good enough
SPEND = {"low": 0.2, "high": 4.0}  # USD per hour of one model on its cheapest shape


@dataclass(frozen=True, slots=True)
class Trial:
    """One instance."""

    greedy: float
    marginal: float
    joint: float
    bound: float
    seconds: float
    served: bool  # both served everybody

    @property
    def saved(self) -> float:
        """Share of the joint plan's cost that the cheapest shapes cost on top."""
        return _clean(self.greedy / self.joint - 1)

    @property
    def saved_marginal(self) -> float:
        """The same of the cheapest additions."""
        return _clean(self.marginal / self.joint - 1)


def _clean(share: float) -> float:
    return 0.0 if abs(share) < ROUNDING else share


def trial(kinds: tuple[Nodes, ...], count: int, seed: int) -> Trial:
    rng = random.Random(f"joint {kinds[0].sku} {len(kinds)} {count} {seed}")
    deployments = draw(rng, SMALL + LARGE, tuple(k.sku for k in kinds), count, SPEND)
    empty = Problem(fleet(kinds), ())
    found, better = greedy.plan(empty, deployments), greedy.plan(empty, deployments, marginal=True)
    problem = Problem(empty.gpus, demands(deployments, empty))
    start = time.perf_counter()
    packed = solve(problem, SolveLimits(deterministic_s=4.0, gap=GAP))
    seconds = time.perf_counter() - start
    served = not packed.unmet and not found.unserved and not better.unserved
    return Trial(
        found.cost_per_hour, better.cost_per_hour, packed.cost_per_hour, packed.bound, seconds, served
    )


FLEETS = {"six SKUs": MIXED, "one SKU": ONE_SKU}
SEEDS = range(12)


def answers() -> dict[str, list[dict[str, Any]]]:
    """What this version of the planner answers, to compare later ones with."""
    return {
        f"{name} {count}": [asdict(trial(kinds, count, seed)) for seed in SEEDS]
        for name, kinds in FLEETS.items()
        for count in SIZES
    }


def run(*, quick: bool) -> Outcome:
    seeds = SEEDS[:2] if quick else SEEDS
    former = json.loads(FORMER.read_text())["joint"]
    rows, figures, failed = [], {}, []
    for name, kinds in list(FLEETS.items())[: 1 if quick else None]:
        for count in SIZES[: 1 if quick else 3]:
            trials = [trial(kinds, count, seed) for seed in seeds]
            served = [t for t in trials if t.served]
            saved, marginal = [t.saved for t in served], [t.saved_marginal for t in served]
            failed += [
                f"{name}, {count} models: greedy is {-s:.2%} cheaper" for s in saved + marginal if s < 0
            ]
            failed += [f"{name}, {count} models: somebody was not served"] * (len(trials) - len(served))
            gaps = [1 - t.bound / t.joint for t in served]
            then = [
                _clean(old["joint"] / t.joint - 1)
                for old, t in zip(former[f"{name} {count}"], trials, strict=False)
                if old["served"] and t.served
            ]
            figures[f"{name} {count}"] = {
                "saved": saved,
                "saved_marginal": marginal,
                "gaps": gaps,
                "former": then,
                "seconds": [t.seconds for t in trials],
            }
            rows.append(
                (
                    f"{name}, {count} models",
                    str(len(served)),
                    f"{statistics.fmean(t.joint for t in served):.1f}",
                    f"{percent(saved)}",
                    f"{100 * statistics.fmean(saved):.1f} ± {100 * half_width(saved):.1f} %",
                    f"{percent(marginal)}",
                    f"{100 * statistics.fmean(marginal):.1f} ± {100 * half_width(marginal):.1f} %",
                    f"{100 * max(gaps):.2f} %",
                    f"{percent(then)}",
                    f"{statistics.median(t.seconds for t in trials):.1f}",
                )
            )
            print(" ".join(rows[-1]), flush=True)
    table = Table(
        "What greedy pays over the joint plan (GPUs in use at list prices)",
        (
            "fleet",
            "instances",
            "joint USD/h",
            "cheapest shape over joint",
            "mean, 95 %",
            "cheapest addition over joint",
            "mean, 95 %",
            "largest gap",
            "former menu over joint",
            "median seconds",
        ),
        tuple(rows),
        (
            "Greedy takes each model's cheapest shape (price by dominant share), then places the largest replicas first, best "
            "fit; where there is no room, the next cheapest shape. "
            "Cheapest addition is the stronger baseline: largest model first, the shape that adds least to the cost of the GPUs "
            "in use, best fit. An instance is a random set of the models of workloads.py "
            f"with traffic worth {SPEND['low']}..{SPEND['high']} USD/h on the cheapest shape. Both may cut every GPU that MIG "
            "can cut, or leave it whole. Prices are the catalog's defaults. The former menu is "
            "the planner that chose one of at most 140 bundles for each model (data/former_menu.json).",
        ),
    )
    question = (
        "What is lost when shape and place are chosen one after the other. Both planners read the same shapes, rates and "
        "prices, so errors of the speed model concern both alike."
    )
    return Outcome(
        "joint", question, f"{seeds.start}..{seeds.stop - 1} of each row", (table,), figures, tuple(failed)
    )
