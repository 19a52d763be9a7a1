"""The plan on the slices that exist: read the fleet, place replicas, decide what is done."""

from dataclasses import replace

from tangram.eligibility.isolation import Faulted, isolated
from tangram.fleet import FleetSnapshot, ParsedIntent, Plan
from tangram.plan.planning_round import observe_round, place_round
from tangram.plan.round_decisions import decided_plan


def plan(snapshot: FleetSnapshot, intents: tuple[ParsedIntent, ...], now: float) -> Plan:
    """Return the plan for the fleet as observed in `snapshot` at `now` (epoch seconds).

    Level-triggered: the actions are the whole desired set, and the shell writes the differences. What no
    action names stays as it is: there is no action for what is paused, refused, infeasible, or waits for its
    checkpoint. Equal inputs, in any order, give equal plans. An LLMDeployment for which a step raises is left
    as it is, and the others get the plan that they would get beside a paused one.
    """
    unique = _oldest_per_uid(intents)
    uids = (intent.uid for intent in unique)
    result, faults = isolated(lambda faulted: _plan(snapshot, unique, now, faulted), uids, snapshot.faults)
    return replace(result, faults=faults)


def _oldest_per_uid(intents: tuple[ParsedIntent, ...]) -> tuple[ParsedIntent, ...]:
    """Return the oldest LLMDeployment of each uid. Kubernetes never has two; a document may."""
    oldest: dict[str, ParsedIntent] = {}
    for intent in sorted(intents, key=lambda i: (i.created_at, i.namespace, i.name)):
        oldest.setdefault(intent.uid, intent)
    return tuple(oldest.values())


def _plan(snapshot: FleetSnapshot, intents: tuple[ParsedIntent, ...], now: float, faulted: Faulted) -> Plan:
    """Plan once. Raises `StepsFailed` for LLMDeployments that are not `faulted` yet and whose steps raise."""
    observation = observe_round(snapshot, intents, now, faulted)
    placement = place_round(observation)
    return decided_plan(observation, placement)
