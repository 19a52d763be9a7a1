"""The steps of a transition: attempts under one policy after the other, until one arrives."""

from dataclasses import dataclass, field, replace

from tangram.catalog import InputError
from tangram.packing.problem.result import Packing
from tangram.packing.problem.statement import Problem
from tangram.packing.transition.attempt import Policy, TransitionAttempt, attempt_of
from tangram.packing.transition.disruption import Budgets, budgets_of
from tangram.packing.transition.end_states import NewNode, end_states
from tangram.packing.transition.fleet_state import Effort
from tangram.packing.transition.steps import Pace, Step

# Growth at once where there is room for all; else after the moves; else with restarts that come back at once.
_BY_GOALS = (
    Policy(by_goals=True),
    Policy(patient=True, by_goals=True),
    Policy(patient=True, returning=True, by_goals=True),
)
_BY_BLOCKERS = tuple(replace(policy, by_goals=False) for policy in _BY_GOALS)
# Drains by goals need fewer restarts (2, not 5, on 400 full GPUs under mig-manager).
POLICIES = _BY_GOALS + _BY_BLOCKERS


@dataclass(frozen=True, slots=True)
class Scenario:
    """A transition that may be tried under other circumstances."""

    problem: Problem
    packing: Packing
    pace: Pace
    budgets: Budgets | None = None  # None: those of `pace`
    new_nodes: tuple[NewNode, ...] | None = None  # None: those by which the packing grows the problem
    effort: Effort = field(default_factory=Effort)
    policies: tuple[Policy, ...] = POLICIES  # in the order in which they are tried

    def best_attempt(self) -> TransitionAttempt:
        """Return the first attempt that arrives, else the first of all."""
        first: TransitionAttempt | None = None
        for policy in self.policies:
            attempt = self._attempt(policy, self.effort)
            if attempt.has_arrived:
                return attempt
            first = first or attempt
            if self.effort.over:
                break
        assert first is not None  # noqa: S101 - there are policies
        return first

    def safe_steps(self, attempt: TransitionAttempt, effort: Effort) -> tuple[Step, ...]:
        """Return the steps of `attempt`, or as many as leave none down that has to come back."""
        if attempt.has_arrived:
            return tuple(attempt.recorder.steps)
        safe = self._attempt(replace(self.policies[0], restarts=False), effort)
        further = attempt if attempt.safe_prefix[0] > safe.safe_prefix[0] else safe
        return tuple(further.recorder.steps[: further.safe_prefix[1]])

    def rank(self, attempt: TransitionAttempt) -> int:
        """Return which of the policies arrived; one more than there are: none."""
        return self.policies.index(attempt.policy) if attempt.has_arrived else len(self.policies)

    def works(self) -> bool:
        """Whether an attempt arrives before the effort is over."""
        return not self.effort.over and self.best_attempt().has_arrived

    def _attempt(self, policy: Policy, effort: Effort) -> TransitionAttempt:
        ends = end_states(self.problem, self.packing, self.new_nodes)
        return attempt_of(self.problem, ends, self.budgets or budgets_of(ends, self.pace), policy, effort)


def check_pace(pace: Pace) -> None:
    """Raise `InputError` for a pace at which nothing could move."""
    for name, least in (("per_demand", pace.per_demand), ("per_node", pace.per_node)):
        if least < 1:
            raise InputError(f"pace.{name}", f"must be at least 1, is {least}")
    for demand, n in pace.min_available:
        if n < 0:
            raise InputError(f"pace.min_available.{demand}", f"must be zero or more, is {n}")
