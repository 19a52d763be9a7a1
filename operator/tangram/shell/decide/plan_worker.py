"""Run `plan()` in a process of its own, so that a solver that hangs or dies does not stop the operator."""

from collections.abc import Callable

from tangram.fleet import FleetSnapshot, ParsedIntent, Plan
from tangram.shell.decide.worker import START_S, Worker

PlanFunction = Callable[[FleetSnapshot, tuple[ParsedIntent, ...], float], Plan]


def load_planner() -> PlanFunction:
    """Return the planner. The imports are here, so that only the worker process loads them."""
    from tangram.packing import solve  # noqa: F401, PLC0415 - loaded before the first deadline runs
    from tangram.plan import plan  # noqa: PLC0415

    function: PlanFunction = plan
    return function


class PlanWorker(Worker):
    """The worker process that plans every round. Where it fails, the last plan stays in force."""

    def __init__(
        self, deadline_s: float, planner: Callable[[], PlanFunction] = load_planner, start_s: float = START_S
    ) -> None:
        super().__init__("plan", deadline_s, planner, start_s=start_s)

    async def plan(self, snapshot: FleetSnapshot, intents: tuple[ParsedIntent, ...], now: float) -> Plan:
        """Return the plan. Raises WorkerFailed."""
        plan = await self.call(snapshot, intents, now)
        assert isinstance(plan, Plan)  # noqa: S101 - our own process, our own type
        return plan
