"""Conditions of a GPUNode: when a reason began, and until when what it waits for is waited for."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from tangram.api.gpu_node import NOT_REPORTED, GPUNodeCondition
from tangram.api.llm_deployment.status import MAX_SHORT_TEXT, MAX_TEXT
from tangram.partition.status.times import api_time, parse_api_time

ConditionName = Literal["Ready", "Applied"]


@dataclass(frozen=True, slots=True)
class NodeConditionState:
    """A condition of a GPUNode, without times."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str
    waits_for: str | None = None
    wait_s: float = 0.0  # how long that is waited for


def named(conditions: Iterable[GPUNodeCondition], name: ConditionName) -> GPUNodeCondition | None:
    """Return one of the conditions; None where no backend has written it."""
    written = (condition for condition in conditions if condition.reason != NOT_REPORTED)
    return next((condition for condition in written if condition.type == name), None)


def condition(
    name: ConditionName,
    state: NodeConditionState,
    former: GPUNodeCondition | None,
    generation: int,
    now: datetime,
) -> GPUNodeCondition:
    """Return the condition. Its times stay as they were as long as what they date does."""
    current = api_time(now)
    waits_for = _waits_for(state)
    same_reason = former is not None and former.reason == state.reason
    deadline = None
    if waits_for is not None:
        deadline = api_time(_deadline(former, state, now) or now + timedelta(seconds=state.wait_s))
    return GPUNodeCondition(
        type=name,
        status=state.status,
        observed_generation=generation,
        last_transition_time=(
            former.last_transition_time if former is not None and former.status == state.status else current
        ),
        reason=state.reason,
        message=state.message[:MAX_TEXT],
        since=former.since if former is not None and same_reason else current,
        waits_for=waits_for,
        deadline=deadline,
    )


def is_over(former: GPUNodeCondition | None, state: NodeConditionState, now: datetime) -> bool:
    """Whether what `state` waits for was waited for until the deadline that the former condition has."""
    deadline = _deadline(former, state, now)
    return deadline is not None and deadline <= now


def _deadline(former: GPUNodeCondition | None, state: NodeConditionState, now: datetime) -> datetime | None:
    """Return the deadline of a wait that has begun; None: it begins now. One further away than any wait was
    written by another clock.
    """
    if former is None or (former.reason, former.waits_for) != (state.reason, _waits_for(state)):
        return None
    deadline = parse_api_time(former.deadline)
    return deadline if deadline and deadline <= now + timedelta(seconds=state.wait_s) else None


def _waits_for(state: NodeConditionState) -> str | None:
    return state.waits_for[:MAX_SHORT_TEXT] if state.waits_for else None
