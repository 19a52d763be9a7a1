"""Explore the states of a scenario, each once, from its undisturbed run outwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tangram.plan.repartition import next_step
from tests.support.repartition_model.fleet import Scenario
from tests.support.repartition_model.layouts import LawBroken
from tests.support.repartition_model.model import Model
from tests.support.repartition_model.operator import Decide

FIRST = -1  # what comes before the first state


@dataclass
class Exploration:
    """What was explored, and what was found."""

    states: int = 0
    steps: int = 0
    ends: int = 0
    depth: int = 0
    broken: list[str] = field(default_factory=list)


@dataclass
class Explorer:
    """Explores a scenario from its undisturbed run outwards, each state once."""

    model: Model
    most_broken: int = 1
    result: Exploration = field(default_factory=Exploration)
    _before: dict[int, int] = field(default_factory=dict)  # the state from which each was reached
    _ending: set[int] = field(default_factory=set)  # states from which an end is reached

    def explore(self, depth: int, spent: Callable[[], bool] = lambda: False) -> Exploration:
        """Visit every state within `depth` steps of the undisturbed run, until `spent`."""
        frontier = self._undisturbed()
        for level in range(depth + 1):
            following: list[int] = []
            for count, state in enumerate(frontier):
                self._visit(state, following if level < depth else None)
                if len(self.result.broken) >= self.most_broken or (count % 256 == 0 and spent()):
                    return self.result
            self.result.depth = level
            frontier = following
        return self.result

    def _undisturbed(self) -> list[int]:
        before, state = FIRST, self.model.initial()
        frontier: list[int] = []
        while True:
            self._before[state] = before
            frontier.append(state)
            try:
                step = self.model.fair_step(state)
            except LawBroken:  # it is recorded when the state is visited
                return frontier
            if step is None or step[1] in self._before:
                return frontier
            before, state = state, step[1]

    def _visit(self, state: int, following: list[int] | None) -> None:
        """Check that a state can end, and add those that follow from it."""
        self.result.states += 1
        names: list[str] = []
        try:
            self._reach_end(state, names)
            names = []
            if following is None:
                return
            steps = self.model.steps(state)
        except LawBroken as error:
            self._record(state, error, names)
            return
        self.result.steps += len(steps)
        before = self._before
        for _, after in steps:
            if after not in before and before.keys().isdisjoint(self.model.more_may_happen(after)):
                before[after] = state
                following.append(after)

    def _reach_end(self, state: int, names: list[str]) -> None:
        """Go on without disturbance until nothing is left to be done; raise where that never is."""
        path: dict[int, None] = {}
        ending = self._ending
        while state not in ending and ending.isdisjoint(self.model.more_may_happen(state)):
            if state in path:
                raise LawBroken("it goes round in circles")
            path[state] = None
            step = self.model.fair_step(state)
            if step is None:
                self.model.check_end(state)
                self.result.ends += 1
                break
            names.append(step[0])
            state = step[1]
        self._ending.update(path)

    def _record(self, state: int, error: LawBroken, names: list[str]) -> None:
        trace, at = list[str](), state
        while (before := self._before[at]) != FIRST:
            steps = [*self.model.steps(before), self.model.fair_step(before) or ("", FIRST)]
            trace.append(next(name for name, after in steps if after == at))
            at = before
        trace.reverse()
        if names:
            trace += ["-- then, undisturbed --", *names]
        steps_text = "\n  ".join(trace)
        self.result.broken.append(f"{self.model.scenario.name}: {error}:\n  {steps_text}")


def explore(
    scenario: Scenario,
    depth: int,
    decide: Decide = next_step,
    most_broken: int = 1,
    spent: Callable[[], bool] = lambda: False,
) -> Exploration:
    """Explore every state within `depth` steps of the undisturbed run; `decide`: the step function."""
    return Explorer(Model(scenario, decide), most_broken).explore(depth, spent)


def undisturbed(scenario: Scenario, decide: Decide = next_step) -> list[str]:
    """Return the names of the steps when nothing goes wrong."""
    model, names = Model(scenario, decide), list[str]()
    state, seen = model.initial(), set[int]()
    while state not in seen and (step := model.fair_step(state)) is not None:
        seen.add(state)
        names.append(step[0])
        state = step[1]
    return names
