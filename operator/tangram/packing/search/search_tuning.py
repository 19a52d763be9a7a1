"""The settings of the search for mixes, and the measurement that chose each.

Rows are those of the table `scale` in benchmarks/packing/RESULTS.md (`python -m benchmarks.packing scale`),
with the figures of the chosen values. What other values gave is stated here. A setting that no measurement
has chosen is "not measured": its value is a judgement.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToleratedGap:
    """How far from its bound the value of a stage may be."""

    dollars: float  # of the value
    unmet: float  # of all demand


@dataclass(frozen=True, slots=True)
class SearchTuning:
    """Sizes of models, shares of the time that is left, and gaps, for small fleets and for large ones."""

    # Variables up to which the model of all mixes is solved. With 800, the rows `100 / 20` of fresh and short
    # took three times as long and ended as near to their bounds.
    small_model_variables: int = 500

    # Deterministic seconds for all stages where no limit is given: a base and a part for each variable.
    base_s: float = 4.0  # not measured
    requests_base_s: float = 12.0  # of requests alone, whose model is proved: not measured
    variable_s: float = 0.0005  # not measured
    # Wall-clock seconds per variable that a model gets whatever the guard says. With 0.0001 on a busy
    # machine, some models ended without a solution (no row: rows `hurry` are of an idle machine).
    variable_wall_s: float = 0.0004
    most_guaranteed_wall_s: float = 0.3  # not measured

    # Price-and-branch: shares of the time that is left.
    few_columns_share: float = 0.3  # not measured
    free_demands_share: float = 0.3  # not measured
    all_mixes_share: float = 0.5  # not measured
    # Fractional demands with all mixes beside few columns of the others. With 8, the same time found worse
    # (no row named).
    free_demands: int = 4

    # Neighbourhood search: shares of the time that is left, demands, rounds.
    first_incumbent_share: float = 0.1  # with 0.03 the unmet demand was higher, no row named
    neighbourhood_share: float = 0.07  # not measured
    neighbourhood_demands: int = 30  # with 15 the dollars were 0.1 % higher, rows `1,000 / 200`
    most_neighbourhood_demands: int = 120  # after rounds without improvement: not measured
    most_neighbourhoods: int = 12  # six suffice in nearly all rows
    improvement: float = 0.0001  # of the value, below which more demands may change: not measured

    # Gaps above which a large fleet is searched on, with few columns of all demands, and with all targets.
    close: ToleratedGap = ToleratedGap(dollars=0.002, unmet=0.0005)  # chosen as the precision of a plan
    few_columns_above: ToleratedGap = ToleratedGap(dollars=0.004, unmet=0.002)  # not measured
    # Of 272 fleets of few GPUs a class (of the tests, no row), 60 left more demand unmet than necessary
    # without a search of all targets, and 2 with it.
    all_targets_above: ToleratedGap = ToleratedGap(dollars=0.02, unmet=0.01)
    all_mixes_variables: int = 5000  # up to which that search has all mixes: not measured

    unproved: float = 0.1  # of the close unmet demand, which the master may leave unproved: not measured
    # Times the close unmet demand at which the master of the dollars is solved for a stage of unmet demand.
    # With 1, a third more replicas moved, rows `1,000 / 200` of short, running.
    look_ahead: float = 3.0

    # Columns and targets near the master's solution.
    class_targets: int = 6  # leaves 1,350 of 6,161 targets, rows `1,000 / 200` of scattered
    # The same once mixes are settled. With 3, the row `10,000 / 500` of scattered took 11 s instead of 2 s
    # and was no better.
    settled_class_targets: int = 1
    near_price: float = 0.05  # of a GPU's price, by which near targets may cost more: not measured
    fractional_columns: int = 16  # of a fractional demand; with 8, rows `100 / 20` had twice the gap
    whole_columns: int = 1  # of the other demands; with 3 and 8 searches were longer and worse, no row named


TUNING = SearchTuning()
