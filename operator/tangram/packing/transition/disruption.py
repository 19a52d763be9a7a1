"""Disruption budgets of a transition: how far each demand is, and what may still be unavailable or surge."""

import math
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass

from tangram.packing.transition.end_states import EndStates, ReplicaPlacement
from tangram.packing.transition.steps import Pace

Cost = tuple[int, int, int, ReplicaPlacement]  # restarts, detours, drains, goal


@dataclass(frozen=True, slots=True)
class UnblockingMove:
    """How to free a wanted place: each blocking replica makes a detour or is drained. Smaller is better."""

    restarts: int
    detours: int
    drains: int
    goal: ReplicaPlacement
    moves: tuple[tuple[ReplicaPlacement, ReplicaPlacement | None, bool], ...]  # (blocker, spare, restart)

    @property
    def cost(self) -> Cost:
        """What is compared."""
        return self.restarts, self.detours, self.drains, self.goal


@dataclass(frozen=True, slots=True, order=True)
class DisruptionBudget:
    """Disruption budget of one demand in one transition, in replicas: fixed when the transition begins."""

    demand: str
    min_available: int  # available replicas never fall below it
    desired: int  # of before and after, the fewer: only restarts fall below it
    max_replicas: int  # available, starting and terminating ones together never exceed it
    running: int = 0  # when the transition begins
    leaving: int = 0  # those of them that do not stay where they are
    arriving: int = 0  # places on which replicas start


@dataclass(frozen=True, slots=True)
class Budgets:
    """Disruption budgets of a transition."""

    demands: tuple[DisruptionBudget, ...]  # sorted
    per_node: int  # replicas that start at once on one node

    def of(self, demand: str) -> DisruptionBudget:
        """Return the budget of one demand."""
        return self.demands[bisect_left(self.demands, demand, key=lambda budget: budget.demand)]


def budgets_of(ends: EndStates, pace: Pace) -> Budgets:
    """Return the budgets of a transition that begins with `ends.now`."""
    declared = dict(pace.min_available)
    now, at_end, leaving, arriving = (
        Counter(replica.owner for replica in replicas)
        for replicas in (ends.now, ends.wanted, ends.now - ends.kept, ends.wanted - ends.kept)
    )
    budgets = []
    for owner in sorted(now | at_end):
        desired = min(now[owner], at_end[owner])
        least = min(declared.get(owner, desired), desired)
        most = max(now[owner], at_end[owner]) + pace.per_demand
        counts = now[owner], leaving[owner], arriving[owner]
        budgets.append(DisruptionBudget(owner, least, desired, most, *counts))
    return Budgets(tuple(budgets), pace.per_node)


@dataclass(slots=True)
class DemandProgress:
    """How far one demand is on its way: replicas now and to come, within its disruption budget."""

    budget: DisruptionBudget
    replicas: int  # now
    to_come: int  # places on which none serves yet

    @property
    def missing(self) -> int:
        """How many replicas are down that come back."""
        return max(0, self.budget.desired - self.replicas)

    @property
    def may_surge(self) -> bool:
        """Whether one more replica may start."""
        return self.replicas < self.budget.max_replicas

    @property
    def may_drain(self) -> bool:
        """Whether one more replica can go without loss: in proportion to those that have been replaced."""
        arrived = self.budget.arriving - self.to_come
        drained = self.budget.running + arrived - self.replicas
        due = self.budget.leaving
        if self.budget.arriving:
            due = math.floor(due * arrived / self.budget.arriving)
        return drained < due and self.replicas > self.budget.desired
