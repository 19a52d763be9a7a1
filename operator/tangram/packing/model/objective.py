"""The objective of packing: stages, minimised one after the other. Each keeps the values of those before it.

With the symbols of docs/packing.md, T the horizon in hours, and G the number of all GPUs:

    unmet[P]    sum of u[d] over the demands d of priority P; the highest P is the first stage
                of equal values: the fewest running replicas of P that stop though they are wanted
    dollars     T * sum of p[k] * x[k, c] over the GPUs in use, of new nodes too, + moves + starts
    share       sum of a[s] * p[s] * n[d, s] over demands and shapes
                of equal values: the fewest replicas
    disruption  (1 + G) * moves + GPUs that are re-cut: one move outweighs all re-cuts
    stranded    compute of cut GPUs that no demand can use
    headroom    reserved slices that are missing

The cost of a move in the dollars is the hysteresis: no replica moves to save less. The builders of the model
add the terms. The search decides how much time a stage gets, and how far from its bound it may end.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from tangram.packing.model import cp_model
from tangram.packing.model.terms import Terms
from tangram.packing.problem.mix import UNMET
from tangram.packing.problem.prepared import MONEY, MixColumn
from tangram.packing.problem.result import DOLLARS, unmet_stage


@dataclass(frozen=True, slots=True)
class StageObjective:
    """The terms that one stage minimises, and the terms that only decide between solutions of equal value."""

    name: str
    terms: Terms
    ties: Terms = field(default_factory=Terms)
    scale: int = 1  # whole numbers of the solver in one unit of the stage

    @property
    def weight(self) -> int:
        """Units of the combination in one of the terms: more than the ties ever have."""
        return self.ties.most + 1

    @property
    def combined(self) -> Terms:
        """Terms and ties as one expression."""
        combined = Terms()
        combined.extend(self.terms, self.weight)
        combined.extend(self.ties)
        return combined

    def least(self, bound: float) -> int:
        """Return what the terms have at least where the combination has at least `bound`."""
        return math.ceil((bound - self.ties.most) / self.weight - 1e-9)

    def rounded_up(self, bound: int) -> int:
        """Return the lowest value from `bound` on that whole numbers of variables can give the terms."""
        unit, constant = math.gcd(*self.terms.factors), self.terms.constant
        return -(-(bound - constant) // unit) * unit + constant if unit else max(bound, constant)


@dataclass(slots=True)
class PackingObjective:
    """The sums that the stages minimise, of one model."""

    horizon_h: float
    gpus: int  # in the fleet, and in the nodes by which it may grow
    unmet: dict[int, Terms] = field(default_factory=dict)  # by priority
    stopped: dict[int, Terms] = field(
        default_factory=dict
    )  # by priority: replicas that run, are wanted and stop
    dollars: Terms = field(default_factory=Terms)
    share: Terms = field(default_factory=Terms)
    moves: Terms = field(default_factory=Terms)
    recut: Terms = field(default_factory=Terms)
    stranded: Terms = field(default_factory=Terms)
    headroom: Terms = field(default_factory=Terms)

    def add_gpus_in_use(self, variable: cp_model.IntVar, gpus: int, gpu_hour: int) -> None:
        """Pay for `gpus` times `variable` over the horizon. `gpu_hour`: in units of `MONEY`."""
        self.dollars.add(variable, round(gpus * gpu_hour * self.horizon_h))

    def add_column(self, chosen: cp_model.IntVar, column: MixColumn, priority: int) -> None:
        """Add what a mix leaves unmet, its share of GPUs, its moves and its starts where it is chosen."""
        self.unmet[priority].add(chosen, column.unmet)
        self.share.add(chosen, column.price)
        self.dollars.add(chosen, column.cost)

    def stopped_of(self, priority: int) -> Terms:
        """Return the replicas of a priority that run, are wanted and stop, to add to."""
        return self.stopped.setdefault(priority, Terms())

    def mix_stage(self, priority: int | None) -> StageObjective:
        """Return the stage of a priority's unmet demand; of None, the stage of the dollars."""
        if priority is None:
            return StageObjective(DOLLARS, self.dollars, scale=MONEY)
        stopped = self.stopped.get(priority, Terms())
        return StageObjective(unmet_stage(priority), self.unmet[priority], stopped, UNMET)

    def share_stage(self, replicas: Iterable[Terms]) -> StageObjective:
        """Return the stage of the share: of equal shares, few large replicas rather than many small ones."""
        fewest = Terms()
        for terms in replicas:
            fewest.extend(terms)
        return StageObjective("share", self.share, fewest, MONEY)

    @property
    def disruption_stage(self) -> StageObjective:
        """The stage of moves and re-cuts."""
        disruption = Terms()
        disruption.extend(self.moves, 1 + self.gpus)
        disruption.extend(self.recut)
        return StageObjective("disruption", disruption)

    @property
    def stranded_stage(self) -> StageObjective:
        """The stage of stranded compute."""
        return StageObjective("stranded", self.stranded)

    @property
    def headroom_stage(self) -> StageObjective:
        """The stage of missing headroom."""
        return StageObjective("headroom", self.headroom)
