"""Run `recommend()` in a process of its own: planning the whole fleet takes up to a minute.

The loop starts the process when the fleet has changed, with a lower CPU priority than the operator, and ends
it when it is idle, which frees the memory of the solver.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tangram.fleet import Advice, FleetSnapshot, LayoutChanges, ParsedIntent, PoolUse
from tangram.kube.kinds import Object
from tangram.shell.decide.worker import START_S, Worker

NICENESS = 5  # the reconcile loop and its planner come first
SOLVE_SHARE = 0.85  # of the deadline: the rest is for work that does not check the clock


@dataclass(frozen=True, slots=True)
class RecommendationResult:
    """What the operator recommends for one state of the fleet: a FleetPlan, and advice per LLMDeployment."""

    name: str  # of the FleetPlan: the hash of its inputs
    spec: Object  # of the FleetPlan
    figures: Object  # of the FleetPlan's status, beside its state
    better: bool  # than the fleet as it is
    advice: tuple[tuple[str, Advice], ...]  # by UID of the LLMDeployment
    pools: tuple[tuple[str, PoolUse], ...] = ()  # by name of the GPUPool
    changes: tuple[LayoutChanges, ...] = ()  # of MIG layouts
    planned: frozenset[str] = frozenset()  # UIDs of the LLMDeployments that it is about

    @property
    def empty(self) -> bool:
        """Whether no LLMDeployment was planned: then there is no FleetPlan to write."""
        return not self.spec["totalDeployments"]

    @property
    def state(self) -> str:
        """State of the FleetPlan until a newer one supersedes it."""
        return "Recommended" if self.better else "InForce"


RecommendFunction = Callable[
    [FleetSnapshot, tuple[ParsedIntent, ...], float, str], RecommendationResult | None
]
"""Takes snapshot, LLMDeployments, deadline in seconds and the last hash; returns None if it is unchanged."""


def load_recommender() -> RecommendFunction:
    """Return the recommender. The imports are here, so that only the worker process loads them."""
    from tangram.plan.fleet_input.observed.pool_use import pool_use  # noqa: PLC0415
    from tangram.plan.fleet_input.observed.snapshot_input import snapshot_input  # noqa: PLC0415
    from tangram.plan.inputs_hash import inputs_hash  # noqa: PLC0415
    from tangram.plan.place.best.pack import PlanTimeLimit  # noqa: PLC0415
    from tangram.plan.recommend import recommend  # noqa: PLC0415
    from tangram.plan.result.fleet_plan_spec import fleet_plan_spec, status_figures  # noqa: PLC0415

    def result(
        snapshot: FleetSnapshot, intents: tuple[ParsedIntent, ...], deadline_s: float, last_hash: str
    ) -> RecommendationResult | None:
        fleet_input = snapshot_input(snapshot, intents)
        if inputs_hash(fleet_input) == last_hash:
            return None
        began = time.monotonic()
        limit = PlanTimeLimit(deadline_s * SOLVE_SHARE, time.monotonic)
        recommendation = recommend(snapshot, intents, limit)
        return RecommendationResult(
            name=recommendation.inputs_hash,
            spec=fleet_plan_spec(recommendation.document, inputs_hash=recommendation.inputs_hash),
            figures=status_figures(
                recommendation.document,
                current_cost_per_hour=recommendation.current_cost_per_hour,
                solve_s=time.monotonic() - began,
            ),
            better=recommendation.better,
            advice=recommendation.advice,
            pools=pool_use(fleet_input, snapshot),
            changes=recommendation.changes,
            planned=recommendation.planned,
        )

    return result


class RecommendationWorker(Worker):
    """The worker process that plans the whole fleet."""

    def __init__(
        self,
        deadline_s: float,
        recommender: Callable[[], RecommendFunction] = load_recommender,
        start_s: float = START_S,
    ) -> None:
        super().__init__("recommendation", deadline_s, recommender, start_s=start_s, niceness=NICENESS)

    async def recommend(
        self, snapshot: FleetSnapshot, intents: tuple[ParsedIntent, ...], last_hash: str
    ) -> RecommendationResult | None:
        """Return the recommendation; None if the hash of the inputs is `last_hash`. Raises WorkerFailed."""
        result: Any = await self.call(snapshot, intents, self.deadline_s, last_hash)
        assert result is None or isinstance(result, RecommendationResult)  # noqa: S101 - our own process
        return result
