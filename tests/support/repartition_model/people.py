"""What people, and what they run, may change from outside. One change each; for the nodes see `node`."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.repartition_model.fleet import (
    ABSENT,
    EXECUTING,
    POLICIES,
    OwnerState,
    PlanObject,
    Settings,
)
from tests.support.repartition_model.node import put
from tests.support.repartition_model.parts import TAMPER


def change_plans(plans: tuple[PlanObject, ...]) -> Iterator[tuple[str, tuple[PlanObject, ...], int]]:
    """Yield what people may do to FleetPlans, and what the next recommendation may be."""
    for index, plan in enumerate(plans):
        if not plan.is_live:
            continue
        if plan.state:
            for verdict in {0, 1} - {plan.approved}:
                other = plan._replace(approved=verdict)
                yield f"plan {index}: approved={verdict}", put(plans, index, other), 0
            gone = PlanObject(ABSENT, recommended=False)
            # What it has written is cut even so; the agent may still be at it when the hold ends.
            uses = TAMPER if plan.state == EXECUTING else 0
            yield f"plan {index} is deleted", put(plans, index, gone), uses
        if plan.recommended:
            other = plan._replace(recommended=False)
            yield f"plan {index} is not recommended", put(plans, index, other), 0


def change_settings(settings: Settings, policies: int) -> Iterator[tuple[str, Settings]]:
    """Yield another policy, of the first `policies`, and a full stop or its end."""
    for policy in range(policies):
        if policy != settings.policy:
            yield f"policy {POLICIES[policy]}", settings._replace(policy=policy)
    yield "full stop", settings._replace(stopped=not settings.stopped)


def change_desired(owners: tuple[OwnerState, ...]) -> Iterator[tuple[str, tuple[OwnerState, ...]]]:
    """Yield other numbers of desired replicas: by the load, or by a person."""
    for owner, item in enumerate(owners):
        for desired in sorted({max(1, item.desired - 1), item.desired + 1} - {item.desired}):
            other = item._replace(desired=desired)
            yield f"{desired} replicas of {owner} are desired", put(owners, owner, other)
