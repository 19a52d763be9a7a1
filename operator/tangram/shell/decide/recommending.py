"""`recommend()` in a process of its own: the whole fleet, with re-cutting and moves, takes up to a minute.

The process is started when there is something to think about, runs below everything else, and is ended when
it has been idle: what the solver held is free again.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tangram.fleet import Advice, FleetSnapshot, ParsedIntent, PoolUse
from tangram.shell.decide.worker import START_S, Worker
from tangram.shell.objects.kinds import Object

Everyone = tuple[ParsedIntent, ...]

NICENESS = 5  # the loop and its planner come first
THINKING_SHARE = 0.85  # of the deadline: the rest is for what does not look at the clock


@dataclass(frozen=True, slots=True)
class Advised:
    """What is recommended for one state of the fleet."""

    inputs_hash: str
    spec: Object  # of the FleetPlan
    figures: Object  # of its status, beside its state
    better: bool  # than the fleet as it is
    advice: tuple[tuple[str, Advice], ...]  # by uid of the LLMDeployment
    pools: tuple[tuple[str, PoolUse], ...] = ()  # by name

    @property
    def empty(self) -> bool:
        """Whether no LLMDeployment was planned: there is nothing that a FleetPlan could say."""
        return not self.spec["totalDeployments"]

    @property
    def name(self) -> str:
        """Name of the FleetPlan."""
        return self.inputs_hash

    @property
    def state(self) -> str:
        """State of the FleetPlan while nothing newer is recommended."""
        return "Recommended" if self.better else "InForce"


AdviseFunction = Callable[[FleetSnapshot, Everyone, float, str], Advised | None]


def the_adviser() -> AdviseFunction:
    """Return the function that thinks (imported here, so that only the worker pays for it)."""
    from tangram.recommendation.observed.snapshot_input import snapshot_input  # noqa: PLC0415
    from tangram.recommendation.problem.pack import PlanTimeLimit  # noqa: PLC0415
    from tangram.recommendation.recommend import inputs_hash, recommend  # noqa: PLC0415
    from tangram.recommendation.result.fleet_plan_spec import fleet_plan_spec, status_figures  # noqa: PLC0415
    from tangram.shell.decide.pool_use import pool_use  # noqa: PLC0415

    def advise(snapshot: FleetSnapshot, intents: Everyone, deadline_s: float, known: str) -> Advised | None:
        given = snapshot_input(snapshot, intents)
        if inputs_hash(given) == known:
            return None
        began = time.monotonic()
        found = recommend(snapshot, intents, PlanTimeLimit(deadline_s * THINKING_SHARE, time.monotonic))
        plan = found.document
        return Advised(
            inputs_hash=found.inputs_hash,
            spec=fleet_plan_spec(plan, inputs_hash=found.inputs_hash),
            figures=status_figures(
                plan,
                current_cost_per_hour=found.current_cost_per_hour,
                solve_s=time.monotonic() - began,
            ),
            better=found.better,
            advice=found.advice,
            pools=pool_use(given, snapshot),
        )

    return advise


class AdviceWorker(Worker):
    """The worker that thinks about the whole fleet."""

    def __init__(
        self,
        deadline_s: float,
        adviser: Callable[[], AdviseFunction] = the_adviser,
        start_s: float = START_S,
    ) -> None:
        super().__init__("advice", deadline_s, adviser, start_s=start_s, niceness=NICENESS)

    async def advise(self, snapshot: FleetSnapshot, intents: Everyone, known: str) -> Advised | None:
        """Return what is recommended; None when the inputs' hash is the `known` one. Raises WorkerFailed."""
        answer: Any = await self.ask(snapshot, intents, self.deadline_s, known)
        assert answer is None or isinstance(answer, Advised)  # noqa: S101 - our own process, our own type
        return answer
