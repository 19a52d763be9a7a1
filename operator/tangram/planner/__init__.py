"""`plan(snapshot, intents, now) -> Plan` and the status that follows from it. Pure and deterministic."""

from tangram.planner.events import transitions
from tangram.planner.plan import plan
from tangram.planner.status import status

__all__ = ["plan", "status", "transitions"]
