"""Few columns of each demand and few targets of each class of GPUs: those near the master's solution."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tangram.packing.column_generation.master import FINE, Bounded
from tangram.packing.model import cp_model
from tangram.packing.model.gpu_classes import GPUClasses, PreparedFleet, StateClass
from tangram.packing.model.variables import Model
from tangram.packing.problem.prepared import MixColumn, PreparedDemand, column_of
from tangram.packing.search.hints import as_it_is
from tangram.packing.search.search_tuning import SearchTuning


@dataclass(frozen=True, slots=True)
class Shortlist:
    """What a model of a fleet is left with near one solution of the master."""

    fleet: PreparedFleet
    bounded: Bounded
    tuning: SearchTuning

    def targets(self, model: Model, guess: Mapping[int, int], nearest: int | None = None) -> GPUClasses:
        """Leave each class the targets that the master uses, some near them, and those of a `guess`.

        `nearest`: how many near them; as the tuning has it if None. The targets that change nothing stay.
        """
        most = self.tuning.class_targets if nearest is None else nearest
        near_targets = list[set[int]]()
        for group, variables in zip(model.classes.existing, model.counts, strict=True):
            near = self._near_targets(group, variables, most)
            near |= {n for n, variable in enumerate(variables) if guess.get(variable.index)}
            near_targets.append(near | {as_it_is(group)})
        return model.classes.restricted(near_targets)

    def columns(
        self,
        chosen: Mapping[str, MixColumn],
        free: Collection[str] = (),
        whole_columns: int | None = None,
    ) -> tuple[PreparedDemand, ...]:
        """Leave all demands but the `free` ones few columns: the master's, the nearest, the `chosen` one.

        `whole_columns`: how many of a demand that the master serves by one; as the tuning has it if None.
        """
        few = self.tuning.whole_columns if whole_columns is None else whole_columns
        most = {demand.id: few for demand in self.fleet.demands}
        most |= dict.fromkeys(self.bounded.fractional_demands, self.tuning.fractional_columns)
        return tuple(
            demand
            if demand.limits is None or demand.id in free
            else self._with_columns(demand, chosen, most[demand.id])
            for demand in self.fleet.demands
        )

    def columns_around(
        self, chosen: Mapping[str, MixColumn], around: Collection[str]
    ) -> tuple[PreparedDemand, ...]:
        """Leave the demands `around` few columns, and all others the chosen one."""
        few = list[PreparedDemand]()
        for demand in self.fleet.demands:
            if demand.limits is None:
                few.append(demand)
            elif demand.id in around:
                few.append(self._with_columns(demand, chosen, self.tuning.fractional_columns))
            else:
                few.append(replace(demand, columns=(chosen[demand.id],), limits=None))
        return tuple(few)

    def furthest(self, chosen: Mapping[str, MixColumn]) -> list[str]:
        """Return the demands, those first whose chosen column is the furthest from the master's."""
        distance = dict[str, int]()
        for demand, costs in self.bounded.costs.items():
            distance[demand] = costs.get(chosen[demand].parts, max(costs.values()))
        return sorted(distance, key=lambda demand: (-distance[demand], demand))

    def _near_targets(self, group: StateClass, variables: Sequence[cp_model.IntVar], most: int) -> set[int]:
        """Return the targets that the master uses, and at most so many that cost little more."""
        bounded, indices = self.bounded, [variable.index for variable in variables]
        costs = [(index not in bounded.used, bounded.priced[index]) for index in indices]
        order = sorted(range(len(costs)), key=lambda n: (costs[n], n))
        highest = self.tuning.near_price * FINE * group.kind.price * self.fleet.problem.horizon_h
        nearest = {n for n in order[:most] if costs[n][1] <= highest}
        return nearest | {n for n, index in enumerate(indices) if index in bounded.used}

    def _with_columns(
        self, demand: PreparedDemand, chosen: Mapping[str, MixColumn], most: int
    ) -> PreparedDemand:
        costs, weights = self.bounded.costs[demand.id], self.bounded.weights.get(demand.id, {})
        order = sorted(costs, key=lambda counts: (counts not in weights, costs[counts], counts))
        always = {(), tuple(sorted(demand.running.items()))}
        near = dict.fromkeys([*order[:most], *(counts for counts in costs if counts in always)])
        columns = [column_of(demand, self.fleet.prices, dict(counts)) for counts in near]
        columns += [chosen[demand.id]] if demand.id in chosen else []
        return replace(demand, columns=tuple(dict.fromkeys(columns)), limits=None)
