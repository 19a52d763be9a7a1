"""Days on which something breaks: what the operator's law and others do then, beside the same day undisturbed.

Replicas are those of scenario `conv` (Qwen3-32B on an H100); requests are generated with its lengths. Knobs
were set by hand and are not equally strict: compare a law with its own undisturbed row, not with another law.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from benchmarks.autoscaling import compared_laws
from benchmarks.autoscaling.collector_pause import paused_collector
from benchmarks.autoscaling.prepared_scenario import GPUS_PER_NODE, PreparedScenario, prepared
from benchmarks.autoscaling.report import table
from benchmarks.autoscaling.scenarios import BY_NAME, H100
from tangram.fleet import Node
from tangram.simulator.cluster.faults import (
    InjectedFaults,
    NodeFailure,
    PodQuota,
    PrometheusOutage,
    SlowPulls,
)
from tangram.simulator.cluster.start_times import Delay
from tangram.simulator.result.run_result import DAY_S, DeploymentResult
from tangram.simulator.run import SimulationSettings, run
from tangram.simulator.traffic.synthetic_traffic import RatePoint, TrafficDescription, generated

KNOBS = {
    compared_laws.OURS: 0.01,
    "tangram-reactive": 0.0,
    "hpa-running": 0.25,
    "keda": 0.1,
    "wva-v1-hpa": 0.8,
    "dynamo-load": 0.5,
    "llm-d-slo": 0.55,
}
HOUR_S = 3600.0
GROWTH = ((0.0, 4.0), (1200.0, 4.0), (4800.0, 12.0), (7200.0, 12.0), (9000.0, 4.0), (10_800.0, 4.0))
BURST = ((0.0, 3.0), (1800.0, 3.0), (1830.0, 9.0), (2700.0, 9.0), (2730.0, 3.0), (5400.0, 3.0))
CONSTANT = ((0.0, 4.0), (DAY_S, 4.0))
SETTLED_S = HOUR_S  # changes of the desired replicas under a constant load count from here on
PULL = Delay(60.0, 0.3)

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One day, or part of one."""

    name: str
    rates: Points
    faults: InjectedFaults = field(default_factory=InjectedFaults)
    nodes: tuple[int, ...] = (GPUS_PER_NODE,) * 4  # GPUs of each
    models: int = 1  # LLMDeployments with this traffic each
    has_pulls: bool = False  # nodes have no image at first


DISTURBANCES = (
    Disturbance("growth", GROWTH),
    Disturbance(
        "growth, metrics away for 10 minutes",
        GROWTH,
        InjectedFaults(outages=(PrometheusOutage(3000.0, 3600.0),)),
    ),
    Disturbance(
        "growth, quota of 6 pods for an hour",
        GROWTH,
        InjectedFaults(pod_quotas=(PodQuota("serving", 6, 2400.0, 6000.0),)),
    ),
    Disturbance("growth, images pulled", GROWTH, nodes=(2,) * 16, has_pulls=True),
    Disturbance(
        "growth, pulls ten times slower",
        GROWTH,
        InjectedFaults(slow_pulls=(SlowPulls(0.0, 10_800.0, 10.0),)),
        nodes=(2,) * 16,
        has_pulls=True,
    ),
    Disturbance(
        "growth, a node of 4 GPUs lost",
        GROWTH,
        InjectedFaults(node_failures=(NodeFailure("node-0", 6000.0),)),
        nodes=(4,) * 8,
    ),
    Disturbance("burst, one model on 12 GPUs", BURST, nodes=(4,) * 3),
    Disturbance("burst, two models on 12 GPUs", BURST, nodes=(4,) * 3, models=2),
    Disturbance("constant load for a day", CONSTANT),
)


def run_all(
    names: Iterable[str] = KNOBS,
    disturbances: Iterable[Disturbance] = DISTURBANCES,
    report: Callable[[str], None] = lambda _: None,
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the figures by disturbance and law."""
    names = tuple(names)
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for disturbance in disturbances:
        figures[disturbance.name] = {}
        for name in names:
            figures[disturbance.name][name] = one(disturbance, name)
            report(f"{disturbance.name}: {name}")
    return figures


def one(disturbance: Disturbance, name: str, seed: int = 1) -> dict[str, float]:
    """Run one law through one disturbance; figures of several LLMDeployments are summed, or the worst."""
    deployments = []
    for place in range(disturbance.models):
        scenario = _served(disturbance, place, seed)
        law = compared_laws.BY_NAME[name].controller(scenario, KNOBS[name])
        deployments.append(scenario.deployment(law))
    settings = SimulationSettings(_nodes(disturbance), seed=seed, faults=disturbance.faults)
    with paused_collector():
        result = run(tuple(deployments), settings)
    parts = result.deployments
    return {
        "attainment": min(part.attainment.share for part in parts),
        "usd": result.usd,
        "most_replicas": max(count.ordered for part in parts for count in part.counts),
        "recovery_s": max(part.longest_recovery_s for part in parts),
        "blind_actions": sum(part.blind_actions for part in parts),
        "blind_scale_downs": sum(part.blind_scale_downs for part in parts),
        "starts": sum(part.use.starts for part in parts),
        "pending_s": sum(part.use.pending_s for part in parts),
        "reversals_per_day": max(part.reversals_per_day for part in parts),
        "settled_changes": sum(_changes_since(part, SETTLED_S) for part in parts),
    }


def markdown(figures: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return a table for each disturbance."""
    heads = [
        "law",
        "attainment",
        "USD",
        "most replicas",
        "longest recovery (min)",
        "changed blindly (down)",
        "starts",
        "pods pending (min)",
        "reversals a day",
        f"changes after {SETTLED_S / 60:.0f} min",
    ]
    parts = ["# Scaling laws on days on which something breaks"]
    for name, by_law in figures.items():
        rows = [
            [
                law,
                f"{did['attainment']:.2%}",
                f"{did['usd']:.2f}",
                f"{did['most_replicas']:.0f}",
                f"{did['recovery_s'] / 60:.0f}",
                f"{did['blind_actions']:.0f} ({did['blind_scale_downs']:.0f})",
                f"{did['starts']:.0f}",
                f"{did['pending_s'] / 60:.0f}",
                f"{did['reversals_per_day']:.0f}",
                f"{did['settled_changes']:.0f}",
            ]
            for law, did in by_law.items()
        ]
        parts += [f"## {name}", table(heads, rows)]
    return "\n\n".join(parts) + "\n"


def _served(disturbance: Disturbance, place: int, seed: int) -> PreparedScenario:
    base = prepared(BY_NAME["conv"], 0)
    name = f"model-{place}"
    intent = replace(base.intent, uid=f"uid-{name}", name=name, served_name=name)
    description = TrafficDescription(
        tuple(RatePoint(*point) for point in disturbance.rates), base.known.prompts, base.known.answers
    )
    times = replace(base.start_times, image_pull=PULL) if disturbance.has_pulls else base.start_times
    return replace(
        base,
        intent=intent,
        known=replace(base.known, intent=intent),
        trace=generated(description, seed + place),
        start_times=times,
    )


def _nodes(disturbance: Disturbance) -> tuple[Node, ...]:
    return tuple(
        Node(f"node-{place}", H100, H100, True, (("nvidia.com/gpu", gpus),), gpus=gpus)
        for place, gpus in enumerate(disturbance.nodes)
    )


def _changes_since(result: DeploymentResult, since_s: float) -> int:
    return sum(
        after.desired != before.desired for before, after in pairwise(result.counts) if after.at >= since_s
    )
