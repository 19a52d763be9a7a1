"""`plan()` in a process of its own: a solver that hangs or dies takes nothing else with it."""

from collections.abc import Callable

from tangram.fleet import FleetSnapshot, ParsedIntent, Plan
from tangram.shell.decide.worker import START_S, Worker

PlanFunction = Callable[[FleetSnapshot, tuple[ParsedIntent, ...], float], Plan]


def the_planner() -> PlanFunction:
    """Return the planner (imported here, so that only the worker pays for it)."""
    from tangram.packing import solve  # noqa: F401, PLC0415 - loaded before there is a deadline
    from tangram.planner import plan  # noqa: PLC0415

    function: PlanFunction = plan
    return function


class PlanWorker(Worker):
    """The worker that plans every round. Without an answer the last plan stands."""

    def __init__(
        self, deadline_s: float, planner: Callable[[], PlanFunction] = the_planner, start_s: float = START_S
    ) -> None:
        super().__init__("plan", deadline_s, planner, start_s=start_s)

    async def plan(self, snapshot: FleetSnapshot, intents: tuple[ParsedIntent, ...], now: float) -> Plan:
        """Return the plan. Raises WorkerFailed."""
        answer = await self.ask(snapshot, intents, now)
        assert isinstance(answer, Plan)  # noqa: S101 - our own process, our own type
        return answer
