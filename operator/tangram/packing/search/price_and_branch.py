"""Price-and-branch, the search of a small fleet: the restricted master problem, solved in whole numbers.

Its columns are those that pricing generated. Where they leave a gap to the bound, more columns are added.
"""

from tangram.packing.column_generation.master import Bounded
from tangram.packing.search.shortlist import Shortlist
from tangram.packing.search.stage_solver import Incumbent, StageGoal, StageSolver


def price_and_branch(
    solver: StageSolver, goal: StageGoal, bounded: Bounded, incumbent: Incumbent | None
) -> Incumbent | None:
    """Return the best among few columns, then with all mixes of a few demands, then with all mixes."""
    tuning, classes, demands = solver.tuning, solver.all_mixes.classes, solver.fleet.demands
    shortlist = Shortlist(solver.fleet, bounded, tuning)
    chosen = solver.columns_of(solver.best)
    fractional = bounded.fractional_demands[: tuning.free_demands]
    if not _is_proved(goal, incumbent):
        few = shortlist.columns(chosen)
        incumbent = solver.solve(goal, few, classes, tuning.few_columns_share, incumbent) or incumbent
    if not _is_proved(goal, incumbent):
        few = shortlist.columns(chosen, fractional)
        share = tuning.free_demands_share if fractional else tuning.few_columns_share
        incumbent = solver.solve(goal, few, classes, share, incumbent) or incumbent
    if not _is_proved(goal, incumbent):
        incumbent = solver.solve(goal, demands, classes, tuning.all_mixes_share, incumbent) or incumbent
    return incumbent


def _is_proved(goal: StageGoal, incumbent: Incumbent | None) -> bool:
    return incumbent is not None and incumbent.value <= goal.bound
