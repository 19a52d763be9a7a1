"""Conditions of a GPUNode: when a reason began, and until when what it waits for is waited for."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from tangram.api.gpu_node import GPUNodeCondition
from tangram.api.llm_deployment.status import MAX_SHORT_TEXT, MAX_TEXT
from tangram.partition.status.times import api_time

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
    """Return one of the conditions; None where it is absent."""
    return next((condition for condition in conditions if condition.type == name), None)


def condition(
    name: ConditionName,
    state: NodeConditionState,
    former: GPUNodeCondition | None,
    generation: int,
    now: datetime,
) -> GPUNodeCondition:
    """Return the condition. Its times stay as they were as long as what they date does."""
    current = api_time(now)
    waits_for = state.waits_for[:MAX_SHORT_TEXT] if state.waits_for else None
    same_reason = former is not None and former.reason == state.reason
    deadline = None
    if waits_for is not None:
        deadline = api_time(now + timedelta(seconds=state.wait_s))
        if former is not None and same_reason and former.waits_for == waits_for:
            deadline = former.deadline or deadline
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
