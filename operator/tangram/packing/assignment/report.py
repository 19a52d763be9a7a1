"""Write a solution down: GPUs, choices, moves, and how far from the best it may be."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tangram.packing.assignment.account import account
from tangram.packing.assignment.assign import assign
from tangram.packing.assignment.settle import chosen_options, counts_of, nothing_changes
from tangram.packing.assignment.sites import Counts
from tangram.packing.model.classes import Fleet, GPUClasses
from tangram.packing.problem.prepared import MONEY, Option, PreparedDemand, Prices
from tangram.packing.problem.result import Packing, Stage
from tangram.packing.search.stages import Run


@dataclass(frozen=True, slots=True)
class Report:
    """What there is to write about one problem."""

    fleet: Fleet
    prices: Prices
    everyone: tuple[PreparedDemand, ...]
    first: Run  # which chose the bundles, and has the bound of the dollars

    def packing(self, run: Run) -> Packing:
        """Return the packing behind the last solution of `run`."""
        chosen, settled = chosen_options(self.everyone, self.first, self.prices)
        found, whole = self._write(run.model.classes, settled, chosen, counts_of(run, settled))
        dollars = next(stage for stage in self.first.stages if stage.name == "dollars")
        bound = max(0.0, min(dollars.bound, found.objective))
        # The solver counts whole hundred-thousandths of a dollar: below their sum nothing is told apart.
        blur = (len(found.layouts) + len(found.moves) + 1) / MONEY
        proved = dollars.proved and found.objective - bound <= blur
        paid = Stage("dollars", found.objective, found.objective if proved else bound, proved)
        later = () if run is self.first else (s for s in run.stages if s.name != "dollars")
        stages = tuple(paid if s.name == "dollars" else s for s in (*self.first.stages, *later))
        return replace(
            found,
            status="OPTIMAL" if all(s.proved for s in stages) and whole else "FEASIBLE",
            bound=paid.bound,
            gap=(paid.value - paid.bound) / paid.value if paid.value > 0 else 0.0,
            stages=stages,
        )

    def nothing_changes(self) -> Packing:
        """Return what there is to say when time ran out before anything was found."""
        nothing = Run(self.first.model, self.first.budget)
        chosen, settled = chosen_options(self.everyone, nothing, self.prices)
        grouped = self.first.model.classes
        found, _ = self._write(grouped, settled, chosen, nothing_changes(grouped, settled))
        unmet: dict[int, float] = {}
        for demand in self.everyone:
            unmet[demand.priority] = unmet.get(demand.priority, 0.0)
        for item in found.unmet:
            unmet[item.priority] += item.share
        stages = [Stage(f"unmet[{p}]", share, 0.0, share == 0.0) for p, share in sorted(unmet.items())[::-1]]
        stages.append(Stage("dollars", found.objective, 0.0, found.objective == 0.0))
        return replace(found, gap=1.0 if found.objective > 0 or found.unmet else 0.0, stages=tuple(stages))

    def _write(
        self,
        grouped: GPUClasses,
        settled: tuple[PreparedDemand, ...],
        chosen: Mapping[str, Option],
        counts: Counts,
    ) -> tuple[Packing, bool]:
        """Return the packing without its stages, and whether every replica found its place."""
        assignment = assign(self.fleet, settled, grouped, counts)
        bill = account(self.fleet, self.prices, self.everyone, chosen, assignment)
        grown = zip(grouped.grown, counts.grown, strict=True)
        packing = Packing(
            status="FALLBACK",
            objective=bill.objective,
            bound=0.0,
            gap=0.0,
            cost_per_hour=bill.cost_per_hour,
            idle_per_hour=bill.idle_per_hour,
            move_cost=bill.move_cost,
            stages=(),
            choices=bill.choices,
            layouts=assignment.layouts,
            moves=bill.moves,
            unmet=bill.unmet,
            grown=tuple((made.pool.name, nodes) for made, (nodes, _) in grown if nodes),
        )
        return packing, not assignment.short
