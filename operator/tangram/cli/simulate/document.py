"""A simulation as JSON and YAML show it, and the series that its plots are drawn from. Times in seconds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tangram.capacity.load.latency import Percentiles
from tangram.cli.simulate.simulation import SimulationOutcome, StaticComparison
from tangram.fleet import Shape
from tangram.simulator.control.control_loop import ReplicaCount, ShapeReplicas
from tangram.simulator.result.attainment import Attainment, AttainmentWindow
from tangram.simulator.result.run_result import DeploymentResult, RunResult


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    """Replicas that exist, over a run."""

    least: int
    mean: float
    most: int


def replica_figures(
    counts: Sequence[ReplicaCount], end_s: float, shape: Shape | None = None
) -> ReplicaFigures:
    """Return the fewest, the mean over time and the most replicas that were ordered: of one shape, or all."""
    ends = [count.at for count in counts[1:]] + [end_s]
    ordered = [count.ordered if shape is None else count.on(shape).ordered for count in counts]
    times = [max(0.0, end - count.at) for count, end in zip(counts, ends, strict=True)]
    held = sum(replicas * seconds for replicas, seconds in zip(ordered, times, strict=True))
    return ReplicaFigures(min(ordered), held / end_s if end_s else float(ordered[-1]), max(ordered))


def worst_window(attainment: Attainment, share: str) -> AttainmentWindow | None:
    """Return the window with requests in which the fewest met an objective; `share`: a property of it."""
    busy = [window for window in attainment.windows if window.requests]
    return min(busy, key=lambda window: float(getattr(window, share)), default=None)


def simulation_document(outcome: SimulationOutcome, notes: Sequence[str]) -> dict[str, Any]:
    """Return everything that was simulated."""
    return {
        "law": str(outcome.terms.law),
        "seconds": round(outcome.results[0].duration_s, 3),
        "shapes": {name: _hardware(shape) for name, shape in outcome.shapes.items()},
        "seeds": [
            {"seed": seed} | _run(result, loads)
            for seed, result, loads in zip(outcome.terms.seeds, outcome.results, outcome.loads, strict=True)
        ],
        "compared": [_compared(static) for static in outcome.compared],
        "notes": list(notes),
    }


def _run(result: RunResult, loads: Any) -> dict[str, Any]:
    return {
        "usd": _round(result.usd),
        "planning_faults": list(result.planning_faults),
        "deployments": [
            _deployment(deployment, result.duration_s, load)
            for deployment, load in zip(result.deployments, loads.values(), strict=True)
        ],
    }


def _deployment(deployment: DeploymentResult, end_s: float, load: Sequence[int]) -> dict[str, Any]:
    attainment, use = deployment.attainment, deployment.use
    replicas = replica_figures(deployment.counts, end_s)
    return {
        "name": deployment.name,
        "requests": attainment.requests,
        "attainment": {
            name: {
                "share": _round(getattr(attainment.whole, share)),
                "worst_window": _worst(attainment, share),
            }
            for name, share in SHARES
        },
        "verdicts": dict(attainment.verdicts),
        "ttft_ms": _milliseconds(attainment.ttft_s),
        "tpot_ms": _milliseconds(attainment.tpot_s),
        "usd": _round(use.usd),
        "gpu_hours": _round(use.gpu_hours),
        "waste_gpu_hours": {
            "starting": _round(use.starting_gpu_hours),
            "draining": _round(use.draining_gpu_hours),
            "idle": _round(use.idle_gpu_hours),
        },
        "replicas": _figures(replicas),
        "starts": use.starts,
        "shapes": [
            {
                "shape": _hardware(shape),
                "precision": shape.precision,
                "usd": _round(part.usd),
                "gpu_hours": _round(part.gpu_hours),
                "replicas": _figures(replica_figures(deployment.counts, end_s, shape)),
                "starts": part.starts,
            }
            for shape, part in deployment.shape_uses
        ],
        "pending_seconds": _round(use.pending_s),
        "reversals_per_day": _round(deployment.reversals_per_day),
        "longest_recovery_seconds": _round(deployment.longest_recovery_s),
        "violated": [
            {"from": period.begin_s, "to": period.end_s, "missed": period.missed}
            for period in deployment.violated
        ],
        "windows": [
            {
                "from": window.begin_s,
                "requests": count,
                "attainment": _round(window.attainment),
                "usd": _round(usd),
            }
            for window, count, usd in zip(attainment.windows, load, deployment.usd, strict=True)
        ],
        "replica_changes": [
            {
                "at": count.at,
                "desired": count.desired,
                "ordered": count.ordered,
                "ready": count.ready,
                "shapes": [_shape_replicas(replicas) for replicas in count.shapes],
            }
            for count in deployment.counts
        ],
    }


SHARES = (("joint", "attainment"), ("ttft", "ttft_attainment"), ("tpot", "tpot_attainment"))
"""Attainment of both objectives and of each, with the property that has it."""


def _figures(replicas: ReplicaFigures) -> dict[str, float]:
    return {"min": replicas.least, "mean": _round(replicas.mean), "max": replicas.most}


def _shape_replicas(replicas: ShapeReplicas) -> dict[str, Any]:
    return {
        "shape": _hardware(replicas.shape),
        "precision": replicas.shape.precision,
        "ordered": replicas.ordered,
        "ready": replicas.ready,
    }


def _hardware(shape: Shape) -> str:
    return f"{shape.sku}:{shape.profile} x{shape.tensor_parallel}"


def _worst(attainment: Attainment, share: str) -> dict[str, float] | None:
    window = worst_window(attainment, share)
    return None if window is None else {"from": window.begin_s, "share": _round(getattr(window, share))}


def _compared(static: StaticComparison) -> dict[str, Any]:
    return {
        "sized_for": static.title,
        "usd": _round(static.result.usd),
        "deployments": [
            {
                "name": deployment.name,
                "replicas": replicas,
                "attainment": _round(deployment.attainment.share),
                "usd": _round(deployment.use.usd),
            }
            for deployment, replicas in zip(static.result.deployments, static.replicas.values(), strict=True)
        ],
    }


def _milliseconds(latency: Percentiles) -> dict[str, float]:
    return {name: _round(1e3 * getattr(latency, name)) for name in ("mean", "p50", "p90", "p95", "p99")}


def _round(value: float) -> float:
    """Return six significant digits: more than any simulation has, and shares near 1 stay apart."""
    return float(f"{value:.6g}")
