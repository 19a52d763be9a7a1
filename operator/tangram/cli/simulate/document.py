"""The document of a simulation, of which its tables and the page of its plot have rows. Times in seconds."""

from collections.abc import Sequence
from typing import Any

from tangram.capacity.load.latency import Percentiles
from tangram.cli.simulate.simulation import SimulationOutcome, StaticComparison
from tangram.fleet import Shape
from tangram.simulator.control.control_loop import ReplicaCount, ShapeReplicas
from tangram.simulator.result.attainment import Attainment
from tangram.simulator.result.run_result import DeploymentResult, RunResult


def simulation_document(outcome: SimulationOutcome, notes: Sequence[str]) -> dict[str, Any]:
    """Return everything that was simulated."""
    return {
        "law": str(outcome.terms.law),
        "seconds": outcome.results[0].duration_s,
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
        "usd": result.usd,
        "planning_faults": list(result.planning_faults),
        "deployments": [
            _deployment(deployment, result.duration_s, load)
            for deployment, load in zip(result.deployments, loads.values(), strict=True)
        ],
    }


def _deployment(deployment: DeploymentResult, end_s: float, load: Sequence[int]) -> dict[str, Any]:
    attainment, use = deployment.attainment, deployment.use
    return {
        "name": deployment.name,
        "requests": attainment.requests,
        "attainment": {
            "joint": _share(attainment, "attainment"),
            "ttft": _share(attainment, "ttft_attainment"),
            "tpot": _share(attainment, "tpot_attainment"),
        },
        "verdicts": dict(attainment.verdicts),
        "ttft_ms": _milliseconds(attainment.ttft_s),
        "tpot_ms": _milliseconds(attainment.tpot_s),
        "usd": use.usd,
        "gpu_hours": use.gpu_hours,
        "waste_gpu_hours": {
            "starting": use.starting_gpu_hours,
            "draining": use.draining_gpu_hours,
            "idle": use.idle_gpu_hours,
        },
        "replicas": _replicas(deployment.counts, end_s),
        "starts": use.starts,
        "shapes": [
            {
                "shape": _hardware(shape),
                "precision": shape.precision,
                "usd": part.usd,
                "gpu_hours": part.gpu_hours,
                "replicas": _replicas(deployment.counts, end_s, shape),
                "starts": part.starts,
            }
            for shape, part in deployment.shape_uses
        ],
        "pending_seconds": use.pending_s,
        "reversals_per_day": deployment.reversals_per_day,
        "longest_recovery_seconds": deployment.longest_recovery_s,
        "violated": [
            {"from": period.begin_s, "to": period.end_s, "missed": period.missed}
            for period in deployment.violated
        ],
        "windows": [
            {"from": window.begin_s, "requests": count, "attainment": window.attainment, "usd": usd}
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


def _share(attainment: Attainment, objective: str) -> dict[str, Any]:
    """Return the share of requests that met an objective, and the window with requests in which the fewest
    did; `objective`: a property of a window.
    """
    busy = [window for window in attainment.windows if window.requests]
    worst = min(busy, key=lambda window: float(getattr(window, objective)), default=None)
    return {
        "share": getattr(attainment.whole, objective),
        "worst_window": worst and {"from": worst.begin_s, "share": getattr(worst, objective)},
    }


def _replicas(counts: Sequence[ReplicaCount], end_s: float, shape: Shape | None = None) -> dict[str, float]:
    """Return the fewest, the mean over time and the most replicas that were ordered: of one shape, or all."""
    ends = [count.at for count in counts[1:]] + [end_s]
    ordered = [count.ordered if shape is None else count.on(shape).ordered for count in counts]
    times = [max(0.0, end - count.at) for count, end in zip(counts, ends, strict=True)]
    held = sum(replicas * seconds for replicas, seconds in zip(ordered, times, strict=True))
    return {
        "min": min(ordered),
        "mean": held / end_s if end_s else float(ordered[-1]),
        "max": max(ordered),
    }


def _shape_replicas(replicas: ShapeReplicas) -> dict[str, Any]:
    return {
        "shape": _hardware(replicas.shape),
        "precision": replicas.shape.precision,
        "ordered": replicas.ordered,
        "ready": replicas.ready,
    }


def _hardware(shape: Shape) -> str:
    return f"{shape.sku}:{shape.profile} x{shape.gpus}"


def _compared(static: StaticComparison) -> dict[str, Any]:
    return {
        "sized_for": static.title,
        "usd": static.result.usd,
        "deployments": [
            {
                "name": deployment.name,
                "replicas": replicas,
                "attainment": deployment.attainment.share,
                "usd": deployment.use.usd,
            }
            for deployment, replicas in zip(static.result.deployments, static.replicas.values(), strict=True)
        ],
    }


def _milliseconds(latency: Percentiles) -> dict[str, float]:
    return {name: 1e3 * getattr(latency, name) for name in ("mean", "p50", "p90", "p95", "p99")}
