"""Whether a FleetPlan of changes still takes consent."""

from collections.abc import Mapping
from typing import Any

from tangram.plan.repartition.fleet_state import PlanState

_WAITS = (None, PlanState.RECOMMENDED)


def closed_to_consent(name: str, status: Mapping[str, Any]) -> str:
    """Return why a plan does not wait for consent any more, with what to do; empty: it does."""
    state = status.get("state")
    if state in _WAITS:
        return ""
    reason = f" ({status['message']})" if status.get("message") else ""
    undo = f"; {proposed_again(name)}" if state == PlanState.REJECTED else ""
    return f"{name} is {state}{reason}: it does not wait for consent any more{undo}"


def has_ended(status: Mapping[str, Any]) -> bool:
    """Whether a plan is never carried out any more, whatever its spec says."""
    state = status.get("state")
    return state in list(PlanState) and PlanState(state).is_final


def proposed_again(name: str) -> str:
    """Return how a plan that was rejected is proposed once more."""
    return f"to have it proposed again: kubectl delete fleetplan {name}"
