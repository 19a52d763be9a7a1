"""Large neighbourhood search, for a large fleet: all GPUs and some demands may change in each round.

The demands that may change are those whose columns are the furthest from the master's. Source: Shaw 1998,
"Using constraint programming and local search methods to solve vehicle routing problems".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tangram.packing.column_generation.master import Bounded
from tangram.packing.model.gpu_classes import GPUClasses
from tangram.packing.problem.prepared import MixColumn, PreparedDemand
from tangram.packing.search.shortlist import Shortlist
from tangram.packing.search.stage_solver import Incumbent, StageGoal, StageSolver


@dataclass(slots=True)
class NeighbourhoodDemands:
    """Which demands may change in the next round: more of them after a round without improvement."""

    size: int
    most: int
    searched: set[str] = field(default_factory=set)

    def select(self, furthest: list[str]) -> list[str]:
        """Return the demands of a round, those that no round had before the others."""
        return sorted(furthest, key=self.searched.__contains__)[: self.size]

    def record(self, demands: list[str], *, improved: bool) -> None:
        """Record a round."""
        self.searched.update(demands[: self.size // 2])
        if improved:
            self.searched.clear()
        else:
            self.size *= 2


class NeighbourhoodSearch:
    """The search of one stage, near the solution of its master."""

    def __init__(self, solver: StageSolver, goal: StageGoal, bounded: Bounded) -> None:
        self._solver, self._goal, self._bounded = solver, goal, bounded
        self._tuning = solver.tuning
        self._shortlist = Shortlist(solver.fleet, bounded, solver.tuning)
        self._incumbent = solver.previous_incumbent(goal)
        guess = {} if self._incumbent is None else self._incumbent.run.carried(solver.all_mixes)
        self._near_classes = self._shortlist.targets(solver.all_mixes, guess)

    def run(self) -> Incumbent | None:
        """Return the best near one incumbent after the other, then of few columns, then with all targets.

        None: there was no time for a solution.
        """
        if self._incumbent is None:
            self._find_first_incumbent()
        self._search_neighbourhoods()
        self._search_few_columns()
        self._search_all_targets()
        return self._incumbent

    def _find_first_incumbent(self) -> None:
        few = self._shortlist.columns({})
        self._solve(few, self._near_classes, self._tuning.first_incumbent_share)
        if self._incumbent is None:  # spread leaves no room for these columns
            more = self._shortlist.columns({}, whole_columns=self._tuning.fractional_columns)
            self._solve(more, self._near_classes, self._tuning.few_columns_share)

    def _search_neighbourhoods(self) -> None:
        tuning = self._tuning
        most = min(tuning.most_neighbourhood_demands, 2 * len(self._bounded.costs))
        neighbourhood = NeighbourhoodDemands(tuning.neighbourhood_demands, most)
        for _ in range(tuning.most_neighbourhoods):
            incumbent = self._incumbent
            if incumbent is None or neighbourhood.size > neighbourhood.most:
                return
            if self._solver.is_within(tuning.close, self._goal, incumbent) or self._solver.time.late():
                return
            chosen = self._chosen()
            demands = neighbourhood.select(self._shortlist.furthest(chosen))
            columns = self._shortlist.columns_around(chosen, demands)
            self._solve(columns, self._near_classes, tuning.neighbourhood_share)
            gain = incumbent.value - (self._incumbent or incumbent).value
            neighbourhood.record(demands, improved=gain > tuning.improvement * incumbent.value)

    def _search_few_columns(self) -> None:
        fractional = self._bounded.fractional_demands[: self._tuning.free_demands]
        for free in ((), fractional):
            if not self._is_within_few_columns():
                few = self._shortlist.columns(self._chosen(), free)
                self._solve(few, self._near_classes, self._tuning.few_columns_share)

    def _search_all_targets(self) -> None:
        solver, tuning = self._solver, self._tuning
        if self._incumbent is not None and solver.is_within(
            tuning.all_targets_above, self._goal, self._incumbent
        ):
            return
        demands = solver.fleet.demands
        if solver.model_size > tuning.all_mixes_variables:
            demands = self._shortlist.columns(self._chosen())
        self._solve(demands, solver.all_mixes.classes, tuning.all_mixes_share)

    def _is_within_few_columns(self) -> bool:
        gap = self._tuning.few_columns_above
        return self._incumbent is not None and self._solver.is_within(gap, self._goal, self._incumbent)

    def _chosen(self) -> Mapping[str, MixColumn]:
        return self._solver.columns_of(None if self._incumbent is None else self._incumbent.run)

    def _solve(self, demands: tuple[PreparedDemand, ...], classes: GPUClasses, share: float) -> None:
        """Replace the incumbent by one that is as good or better, where there is one."""
        better = self._solver.solve(self._goal, demands, classes, share, self._incumbent)
        self._incumbent = better or self._incumbent
