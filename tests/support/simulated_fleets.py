"""Nodes, intents and scaling laws for tests of the simulator."""

from collections.abc import Callable, Sequence
from typing import Any

from tangram.capacity.load.traffic import open_traffic
from tangram.fleet import Intent, Node, Objective
from tangram.simulator.controllers import ControllerView
from tangram.simulator.run import SimulatedLLMDeployment
from tangram.simulator.traffic.trace import Trace
from tests.support.fleet import FACTS_8B, intent, node

H100 = "H100-80GB-SXM"


class Schedule:
    """Desired replicas by time, whatever the metrics are: (from when on, replicas), sorted."""

    def __init__(self, steps: Sequence[tuple[float, int]], interval_s: float = 15.0) -> None:
        self.steps, self.interval_s = steps, interval_s
        self.views: list[ControllerView] = []

    def decide(self, view: ControllerView) -> int:
        self.views.append(view)
        return next(replicas for since, replicas in reversed(self.steps) if view.now >= since)


class Law:
    """A scaling law that is a function."""

    def __init__(self, desired: Callable[[ControllerView], int], interval_s: float = 15.0) -> None:
        self.desired, self.interval_s = desired, interval_s

    def decide(self, view: ControllerView) -> int:
        return self.desired(view)


def h100_nodes(*gpus: int) -> tuple[Node, ...]:
    return tuple(node(f"n{place}", H100, gpu=count) for place, count in enumerate(gpus))


def served_intent(name: str = "chat", **changes: Any) -> Intent:
    defaults = {
        "ttft": Objective(95, 1500),
        "tpot": Objective(95, 40),
        "min_replicas": 1,
        "max_replicas": 16,
        "max_running_requests": 32,
        "max_model_len": 8192,
    }
    return intent(name, "image:///m/8b", **(defaults | changes))


def poisson_trace(count: int, rate: float, seed: int = 1, input_tokens: int = 700) -> Trace:
    return Trace(tuple(open_traffic(count, rate, input_tokens, 150, 1.0, seed)))


def served(
    trace: Trace, law: Any, name: str = "chat", intent_changes: dict[str, Any] | None = None, **changes: Any
) -> SimulatedLLMDeployment:
    return SimulatedLLMDeployment(
        served_intent(name, **(intent_changes or {})), FACTS_8B, trace, law, **changes
    )
