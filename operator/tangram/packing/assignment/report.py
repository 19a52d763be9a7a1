"""Packings from solutions: each stage with its bound, and the gap of the dollars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tangram.packing.assignment.account import account
from tangram.packing.assignment.assign import assign
from tangram.packing.assignment.counts import SolutionCounts, counts_of, nothing_changes
from tangram.packing.assignment.sites import shapes_at
from tangram.packing.model.gpu_classes import GPUClasses, PreparedFleet
from tangram.packing.problem.prepared import MONEY, MixColumn, units
from tangram.packing.problem.result import DOLLARS, Packing, Stage, unmet_stage
from tangram.packing.search.settled import chosen_columns
from tangram.packing.search.stages import Run

_ROUNDING = 1e-4  # of shares that are shown
_EQUAL = 1e-9  # of shares: less than one part of UNMET


@dataclass(frozen=True, slots=True)
class Report:
    """Packings of one problem from the solutions of its stages."""

    fleet: PreparedFleet
    first: Run  # which chose the mixes, and has the bound of the dollars

    def packing(self, run: Run) -> Packing:
        """Return the packing behind the last solution of `run`."""
        chosen = chosen_columns(self.fleet, self.first)
        result, share = self._write(run.model.classes, chosen, counts_of(run, chosen))
        dollars = next(stage for stage in self.first.stages if stage.is_dollars)
        left = _as_laid_out(result, self.first.stages)
        missed = any(left[s.name].value > s.value + _ROUNDING for s in self.first.stages if s.name in left)
        bound = 0.0 if missed else max(0.0, min(dollars.bound, result.objective))
        # The solver counts whole hundred-thousandths of a dollar: smaller differences are rounding.
        blur = (len(result.layouts) + len(result.moves) + 1) / MONEY
        proved = dollars.proved and not missed and result.objective - bound <= blur
        paid = Stage(DOLLARS, result.objective, result.objective if proved else bound, proved)
        later = () if run is self.first else (s for s in run.stages if not s.is_dollars)
        stages = tuple(paid if s.is_dollars else left.get(s.name, s) for s in (*self.first.stages, *later))
        if share is not None:
            stages = tuple(_without_some(stage, share) for stage in stages)
        return replace(
            result,
            status="OPTIMAL" if all(s.proved for s in stages) and share is None else "FEASIBLE",
            bound=paid.bound,
            gap=(paid.value - paid.bound) / paid.value if paid.value > 0 else 0.0,
            stages=stages,
        )

    def nothing_changes(self) -> Packing:
        """Return the fleet as it is: the fallback when time is over before the first solution."""
        nothing = Run(self.first.model, self.first.time)
        chosen = chosen_columns(self.fleet, nothing)
        grouped = self.first.model.classes
        packing, _ = self._write(grouped, chosen, nothing_changes(grouped, chosen))
        unmet = _unmet(packing)
        priorities = sorted({demand.priority for demand in self.fleet.demands}, reverse=True)
        shares = ((unmet_stage(p), unmet.get(p, 0.0)) for p in priorities)
        stages = [Stage(name, share, 0.0, share == 0.0) for name, share in shares]
        stages.append(Stage(DOLLARS, packing.objective, 0.0, packing.objective == 0.0))
        gap = 1.0 if packing.objective > 0 or packing.unmet else 0.0
        return replace(packing, gap=gap, stages=tuple(stages))

    def _write(
        self, grouped: GPUClasses, chosen: Mapping[str, MixColumn], counts: SolutionCounts
    ) -> tuple[Packing, float | None]:
        """Return the packing without its stages; and what its replicas take up of the GPUs, in USD per hour.

        None: as much as in the solution, every replica of which has its place.
        """
        assignment = assign(self.fleet, grouped, counts)
        packing = account(self.fleet, chosen, assignment)
        mixed = [demand.id for demand in self.fleet.demands if demand.limits is not None]
        placed = {name: shapes_at(assignment.sites.get(name, ())) for name in mixed}
        if not assignment.short and all(dict(chosen[name].parts) == placed[name] for name in mixed):
            return packing, None
        hourly = self.fleet.prices.required_replica_hour
        sites = (site for sites in assignment.sites.values() for site in sites)
        return packing, sum(units(hourly(*site.shape)) for site in sites) / MONEY


def _without_some(stage: Stage, share: float) -> Stage:
    """Return a stage where replicas have no place: what follows the dollars is not that of the solution."""
    if stage.is_dollars or stage.is_unmet:
        return stage
    value = share if stage.name == "share" else stage.value
    return Stage(stage.name, value, 0.0, proved=False)


def _unmet(packing: Packing) -> dict[int, float]:
    """Return the sum of the shares that stay unmet, by priority, of those that have any."""
    unmet: dict[int, float] = {}
    for item in packing.unmet:
        unmet[item.priority] = unmet.get(item.priority, 0.0) + item.share
    return unmet


def _as_laid_out(packing: Packing, stages: Sequence[Stage]) -> dict[str, Stage]:
    """Return the stages of which a packing leaves another part unmet than the solution that it lays out.

    More, where the model relaxes spread, which a plan may not: what is known of later stages then holds for
    the solution alone. Less, where idle GPUs had room for more: a bound above that is false and left out.
    """
    left = {stage.name: 0.0 for stage in stages if stage.is_unmet}
    left |= {unmet_stage(priority): share for priority, share in _unmet(packing).items()}
    stated, missed = dict[str, Stage](), False
    for stage in (stage for stage in stages if stage.name in left):
        value = left[stage.name]
        differs = abs(value - stage.value) > _ROUNDING
        if differs or missed:
            holds = stage.bound <= value + _ROUNDING and not missed
            bound = min(stage.bound, value) if holds else 0.0
            stated[stage.name] = Stage(stage.name, value, bound, proved=value - bound <= _EQUAL)
        missed |= differs and value > stage.value
    return stated
