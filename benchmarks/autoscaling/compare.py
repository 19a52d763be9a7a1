"""Laws at equal attainment: cost from swept knobs, per seed, and its paired difference to the operator's law."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.autoscaling.compared_laws import BY_NAME, OURS, PEAK_SIZED
from benchmarks.autoscaling.knob_bisection import next_knob
from benchmarks.autoscaling.runs import ORACLE, Record
from benchmarks.packing.stats import half_width

LEAST_SAVING = (
    1.05  # what fixed replicas cost over the oracle, for a share of the difference to mean anything
)


@dataclass(frozen=True, slots=True)
class SweptRun:
    """One value of a knob with one seed."""

    knob: float
    usd: float
    miss: float  # share of the feasible requests
    requests: int

    @property
    def log_miss(self) -> float:
        """Logarithm of the misses; none at all counts as half a request."""
        return math.log(max(self.miss, 0.5 / max(1, self.requests)))


def usd_at(runs: Sequence[SweptRun], attainment: float, *, is_stepped: bool = False) -> float | None:
    """Return the least cost at which a law reaches an attainment; None: it never does.

    `runs` of one seed, in the order of the knob. Between two neighbours of which one reaches it, cost is linear in the
    logarithm of the misses, unless the knob has steps; beyond them nothing is assumed.
    """
    target = math.log(1 - attainment)
    costs = [run.usd for run in runs if run.log_miss <= target]
    for first, second in () if is_stepped else pairwise(runs):
        low, high = sorted((first, second), key=lambda run: run.log_miss)
        if low.log_miss <= target < high.log_miss:
            share = (high.log_miss - target) / (high.log_miss - low.log_miss)
            costs.append(high.usd + share * (low.usd - high.usd))
    return min(costs, default=None)


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over seeds and half of its 95 % interval; nan with one seed."""

    value: float
    half_width: float
    seeds: int


def mean_of(values: Sequence[float]) -> Mean | None:
    """Return the mean, None without values."""
    return Mean(statistics.fmean(values), half_width(values), len(values)) if values else None


@dataclass(frozen=True, slots=True)
class AtEqualAttainment:
    """A law in one scenario at one attainment."""

    usd: Mean | None  # of the seeds in which it reaches the attainment
    reached: int  # seeds
    seeds: int
    over_ours: Mean | None  # cost over that of the operator's law, less 1, paired by seed
    regret: Mean | None  # cost over the oracle's, less 1
    capture: (
        Mean | None
    )  # of what the oracle saves over the best fixed replicas, the share that the law saves


@dataclass(frozen=True, slots=True)
class OnOtherTraces:
    """The knob that reaches an attainment in the mean of the other scenarios, and what it does in this one."""

    knob: float
    reaches: bool  # the attainment in the others; False: no knob does, and this is the most generous one
    usd: Mean
    miss: Mean
    over_oracle: Mean | None  # cost over the oracle's, less 1, at whatever attainment that is


@dataclass(slots=True)
class Results:
    """The runs on file, by scenario, law, knob and seed."""

    runs: dict[tuple[str, str], dict[int, list[SweptRun]]] = field(default_factory=dict)
    records: dict[tuple[str, str, float], list[Record]] = field(default_factory=dict)
    oracles: dict[str, dict[int, Mapping[str, Record | None]]] = field(default_factory=dict)
    failed: list[Record] = field(default_factory=list)

    @property
    def scenarios(self) -> list[str]:
        """The scenarios in the order of the records."""
        return list(dict.fromkeys(scenario for scenario, _ in self.runs))

    @property
    def laws(self) -> list[str]:
        """The laws that have runs, in the order of their table."""
        present = {law for _, law in self.runs}
        return [law for law in BY_NAME if law in present]


def collected(records: Iterable[Record]) -> Results:
    """Sort the records. Of a law, seeds count in which the values of its knob around all attainments were run."""
    results = Results()
    found: dict[tuple[str, str], dict[int, dict[float, Record]]] = defaultdict(lambda: defaultdict(dict))
    for record in records:
        if "error" in record:
            results.failed.append(record)
        elif record["law"] == ORACLE:
            results.oracles.setdefault(record["scenario"], {})[record["seed"]] = record["oracle"]
        else:
            found[record["scenario"], record["law"]][record["seed"]][record["knob"]] = record
    for (scenario, law), by_seed in found.items():
        complete = {
            seed: {knob: by_knob[knob] for knob in BY_NAME[law].knobs if knob in by_knob}
            for seed, by_knob in by_seed.items()
            if next_knob(BY_NAME[law], {knob: record["miss"] for knob, record in by_knob.items()}) is None
        }
        results.runs[scenario, law] = {
            seed: [_swept(record) for record in by_knob.values()]
            for seed, by_knob in sorted(complete.items())
        }
        for _, by_knob in sorted(complete.items()):
            for knob, record in by_knob.items():
                results.records.setdefault((scenario, law, knob), []).append(record)
    return results


def _swept(record: Record) -> SweptRun:
    return SweptRun(record["knob"], record["usd"], record["miss"], record["requests"])


def at_equal_attainment(results: Results, scenario: str, law: str, attainment: float) -> AtEqualAttainment:
    """Compare a law in one scenario with the operator's, the oracle and fixed replicas."""
    costs = _costs(results, scenario, law, attainment)
    reached = {seed: usd for seed, usd in costs.items() if usd is not None}
    ours = _costs(results, scenario, OURS, attainment)
    fixed = _oracle_costs(results, scenario, attainment, "static_usd")
    least = _oracle_costs(results, scenario, attainment)
    captures = []
    for seed, usd in reached.items():
        static, oracle = fixed.get(seed), least.get(seed)
        if static is not None and oracle is not None and static > LEAST_SAVING * oracle:
            captures.append((static - usd) / (static - oracle))
    return AtEqualAttainment(
        mean_of(list(reached.values())),
        len(reached),
        len(costs),
        None if law == OURS else _ratio(reached, ours),
        _ratio(reached, least),
        mean_of(captures),
    )


def _costs(results: Results, scenario: str, law: str, attainment: float) -> dict[int, float | None]:
    by_seed = results.runs.get((scenario, law), {})
    stepped = BY_NAME[law].is_static
    return {seed: usd_at(runs, attainment, is_stepped=stepped) for seed, runs in by_seed.items()}


def over_peak_sized(results: Results, scenario: str, law: str, attainment: float) -> Mean | None:
    """Return a law's cost over that of a pool sized for the busiest minute, less 1, paired by seed."""
    pools = {seed: pool.usd for seed, (pool,) in results.runs.get((scenario, PEAK_SIZED), {}).items()}
    costs = _costs(results, scenario, law, attainment)
    return _ratio({seed: usd for seed, usd in costs.items() if usd is not None}, pools)


def _oracle_costs(
    results: Results, scenario: str, attainment: float, figure: str = "usd"
) -> dict[int, float | None]:
    return {
        seed: found[figure] if (found := by_attainment.get(str(attainment))) else None
        for seed, by_attainment in results.oracles.get(scenario, {}).items()
    }


def _ratio(costs: Mapping[int, float], others: Mapping[int, float | None]) -> Mean | None:
    """Return cost over cost, less 1, of the seeds that have both."""
    return mean_of([usd / other - 1 for seed, usd in costs.items() if (other := others.get(seed))])


def on_other_traces(results: Results, scenario: str, law: str, attainment: float) -> OnOtherTraces | None:
    """Choose the knob on the other scenarios, and return what it does here; None without others.

    Only scenarios count in which all values of the knob were run.
    """
    knobs = BY_NAME[law].knobs
    swept = [name for name in results.scenarios if _knobs_of_all_seeds(results, name, law) == list(knobs)]
    others = [name for name in swept if name != scenario]
    if not others or scenario not in swept:
        return None
    misses = {
        knob: statistics.fmean(_mean_miss(results, name, law, knob) for name in others) for knob in knobs
    }
    reaching = [knob for knob in knobs if misses[knob] <= 1 - attainment]
    knob = reaching[0] if reaching else min(knobs, key=lambda knob: misses[knob])
    chosen = _with_knob(results, scenario, law, knob)
    over = _ratio({s: r.usd for s, r in chosen.items()}, _oracle_costs(results, scenario, attainment))
    usd = mean_of([run.usd for run in chosen.values()])
    miss = mean_of([run.miss for run in chosen.values()])
    return OnOtherTraces(knob, bool(reaching), usd, miss, over) if usd and miss else None


@dataclass(frozen=True, slots=True)
class AtDefault:
    """A law with the published value of its knob in one scenario."""

    knob: float
    miss: Mean
    over_oracle: Mean | None  # cost over the oracle's at the attainment asked for, less 1


def at_default(results: Results, scenario: str, law: str, attainment: float) -> AtDefault | None:
    """Return what a law does as published; None without a default, or without runs."""
    knob = BY_NAME[law].default
    chosen = {} if knob is None else _with_knob(results, scenario, law, knob)
    miss = mean_of([run.miss for run in chosen.values()])
    over = _ratio({s: r.usd for s, r in chosen.items()}, _oracle_costs(results, scenario, attainment))
    return AtDefault(knob, miss, over) if knob is not None and miss else None


def _with_knob(results: Results, scenario: str, law: str, knob: float) -> dict[int, SweptRun]:
    by_seed = results.runs.get((scenario, law), {})
    return {seed: run for seed, runs in by_seed.items() for run in runs if run.knob == knob}


def _mean_miss(results: Results, scenario: str, law: str, knob: float) -> float:
    return statistics.fmean(run.miss for run in _with_knob(results, scenario, law, knob).values())


def _knobs_of_all_seeds(results: Results, scenario: str, law: str) -> list[float]:
    seeds = len(results.runs.get((scenario, law), {}))
    return [
        knob
        for knob in BY_NAME[law].knobs
        if seeds and len(_with_knob(results, scenario, law, knob)) == seeds
    ]


def most_frugal_knob(results: Results, scenario: str, law: str, attainment: float) -> float | None:
    """Return the most frugal knob that reaches an attainment in the mean over seeds; None: none does."""
    for knob in _knobs_of_all_seeds(results, scenario, law):
        if _mean_miss(results, scenario, law, knob) <= 1 - attainment:
            return knob
    return None


def behaviour(results: Results, scenario: str, law: str, knob: float) -> dict[str, float]:
    """Return means over seeds of what a law does beside cost and attainment."""
    records = results.records[scenario, law, knob]
    names = (
        "miss",
        "usd",
        "windows_99",
        "mean_replicas",
        "most_replicas",
        "starts",
        "reversals_per_day",
        "changes_per_day",
        "recovery_s",
        "idle_gpu_hours",
        "starting_gpu_hours",
        "blind_actions",
        "blind_scale_downs",
    )
    return {name: statistics.fmean(record[name] for record in records) for name in names}


def geometric_mean(ratios: Iterable[float]) -> float | None:
    """Return the geometric mean of ratios, None without any."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(statistics.fmean(logs)) if logs else None
