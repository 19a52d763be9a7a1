"""Runs of laws in scenarios: resumable, bounded in time, one process per core.

A line of JSON per run, keyed by scenario, law, knob, seed and a hash of the code that decides the outcome. A run that
is on file under its key is not repeated; one that failed is on file with its error.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import tangram
from benchmarks.autoscaling import clairvoyant, compared_laws, prepared_scenario
from benchmarks.autoscaling.collector_pause import paused_collector
from benchmarks.autoscaling.knob_bisection import next_knob
from benchmarks.autoscaling.prepared_scenario import prepared
from benchmarks.autoscaling.scenarios import Scenario
from tangram.simulator.control.control_loop import ReplicaCount
from tangram.simulator.result.attainment import Verdict
from tangram.simulator.result.run_result import DeploymentResult
from tangram.simulator.run import SimulationSettings, run

ORACLE = "oracle"
ATTAINMENTS = (0.95, 0.99, 0.999)
Record = dict[str, Any]

_HERE = Path(__file__).parent
_PACKAGE = Path(tangram.__file__).parent
_SIMULATION = ("simulator", "capacity", "scaling/scrapes", "scaling/queries.py", "scaling/sample.py")
# What only the operator's own law is made of: a change of it leaves runs of other laws valid.
_OWN_LAW = ("scaling", "simulator/control/operator_law.py")


@dataclass(frozen=True, slots=True)
class Case:
    """One run: a law with a value of its knob, in a scenario with one seed."""

    scenario: Scenario
    law: str
    knob: float
    seed: int

    @property
    def key(self) -> str:
        return f"{self.scenario.name} {self.law} {self.knob:.6g} {self.seed} {code_hash(self.law, self.scenario)}"


def sweep(
    chosen: Sequence[Scenario],
    names: Sequence[str],
    file: Path,
    *,
    seeds: int | None = None,
    with_oracle: bool = True,
    hours: float | None = None,
    processes: int = 1,
    report: Callable[[Record], None] = lambda _: None,
) -> list[Record]:
    """Return the records of all runs, seed by seed: what a bound on time cuts off are further seeds.

    Rounds: where knobs are bisected, the outcome of one says what the next has.
    """
    deadline = time.monotonic() + hours * 3600 if hours is not None else math.inf
    records: list[Record] = []
    for seed in range(max(scenario.seeds for scenario in chosen) if seeds is None else seeds):
        done: list[Record] = []
        while len(wanted := cases(chosen, names, seed, done, with_oracle=with_oracle)) > len(done):
            done = perform(wanted, file, processes=processes, deadline=deadline, report=report)
            if len(done) < len(wanted):
                break
        records += done
    return records


def cases(
    chosen: Iterable[Scenario],
    names: Iterable[str],
    seed: int,
    done: Iterable[Record] = (),
    *,
    with_oracle: bool = True,
) -> list[Case]:
    """Return the runs with a seed. Where knobs are bisected: those that are done, and the next of each law."""
    misses: dict[tuple[str, str], dict[float, float]] = defaultdict(dict)
    for record in done:
        misses[record["scenario"], record["law"]][record["knob"]] = record.get("miss", 1.0)
    found = []
    names = tuple(names)
    for scenario in (scenario for scenario in chosen if seed < scenario.seeds):
        for law in (compared_laws.BY_NAME[name] for name in names):
            knobs = law.knobs
            if scenario.is_bisected:
                ran = misses[scenario.name, law.name]
                following = next_knob(law, ran)
                knobs = (*ran, *([following] if following is not None else []))
            found += [Case(scenario, law.name, knob, seed) for knob in knobs]
        if with_oracle:
            found.append(Case(scenario, ORACLE, 0.0, seed))
    return found


def perform(
    wanted: Iterable[Case],
    file: Path,
    *,
    processes: int = 1,
    deadline: float = math.inf,
    report: Callable[[Record], None] = lambda _: None,
) -> list[Record]:
    """Return the records of the cases that are on file, or begin before a monotonic time."""
    known = read(file)
    wanted = list(wanted)
    records = [known[case.key] for case in wanted if case.key in known]
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as out:
        for record in _performed((c for c in wanted if c.key not in known), processes, deadline):
            out.write(json.dumps(record) + "\n")
            out.flush()
            records.append(record)
            report(record)
    return records


def read(file: Path) -> dict[str, Record]:
    """Return the runs on file by key; a line that was cut off is left out."""
    found: dict[str, Record] = {}
    if file.exists():
        for line in file.read_text().splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            found[record["key"]] = record
    return found


def _performed(wanted: Iterable[Case], processes: int, deadline: float) -> Iterator[Record]:
    todo = iter(wanted)
    if processes == 1:
        for case in todo:
            if time.monotonic() > deadline:
                return
            yield perform_one(case)
        return
    with ProcessPoolExecutor(processes) as pool:
        running: set[Future[Record]] = set()
        while True:
            while len(running) < processes and time.monotonic() < deadline:
                case = next(todo, None)
                if case is None:
                    break
                running.add(pool.submit(perform_one, case))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def perform_one(case: Case) -> Record:
    """Return the record of one run."""
    start = time.perf_counter()
    record: Record = {
        "key": case.key,
        "scenario": case.scenario.name,
        "law": case.law,
        "knob": case.knob,
        "seed": case.seed,
    }
    try:
        record |= _oracle(case) if case.law == ORACLE else _run(case)
    except Exception:  # noqa: BLE001 (one law that fails in one scenario is a result, not the end of the others)
        record["error"] = traceback.format_exc(limit=-3)
    return record | {"seconds": round(time.perf_counter() - start, 2)}


def _run(case: Case) -> Record:
    scenario, law = prepared(case.scenario, case.seed), compared_laws.BY_NAME[case.law]
    deployment = scenario.deployment(
        law.controller(scenario, case.knob),
        law.initial(scenario, case.knob),
    )
    settings = SimulationSettings(scenario.nodes, seed=case.seed, has_metrics=not law.is_static)
    with paused_collector():
        result = run((deployment,), settings)
    return figures(result.deployments[0], result.duration_s, scenario.price_per_hour)


def _oracle(case: Case) -> Record:
    found = clairvoyant.oracle(prepared(case.scenario, case.seed), ATTAINMENTS, case.seed)
    return {"oracle": {str(a): asdict(result) if result else None for a, result in found.items()}}


def figures(result: DeploymentResult, duration_s: float, price_per_hour: float) -> Record:
    """Return the figures of one LLMDeployment in one run."""
    attainment, use = result.attainment, result.use
    verdicts = dict(attainment.verdicts)
    return {
        "usd": use.usd,
        "miss": 1 - attainment.share,
        "requests": attainment.feasible,
        "unservable": sum(verdicts.get(str(v), 0) for v in (Verdict.INFEASIBLE, Verdict.TOO_LONG)),
        "verdicts": verdicts,
        "windows_99": attainment.window_share(0.99),
        "mean_replicas": use.usd / price_per_hour / (duration_s / 3600),
        "most_replicas": max(count.ordered for count in result.counts),
        "last_change_s": max((count.at for count in _changes(result)), default=0.0),
        "starts": use.starts,
        "starting_gpu_hours": use.starting_gpu_hours,
        "idle_gpu_hours": use.idle_gpu_hours,
        "pending_s": use.pending_s,
        "reversals_per_day": result.reversals_per_day,
        "changes_per_day": len(_changes(result)) / duration_s * 86_400,
        "recovery_s": result.longest_recovery_s,
        "violated": len(result.violated),
        "blind_actions": result.blind_actions,
        "blind_scale_downs": result.blind_scale_downs,
    }


def _changes(result: DeploymentResult) -> list[ReplicaCount]:
    """Return the counts after a change of the desired replicas."""
    return [after for before, after in pairwise(result.counts) if after.desired != before.desired]


# -- code that decides the outcome ------------------------------------------------------------------------------


def code_hash(law: str, scenario: Scenario) -> str:
    """Return a hash of the code that a run of this law depends on, and of its scenario."""
    own = law.startswith(compared_laws.OURS)
    more = [Path(prepared_scenario.__file__), *sorted(_files(_HERE / "laws"))]
    if law == ORACLE:
        more += [Path(clairvoyant.__file__), *sorted(_files(_HERE / "oracle"))]
    elif own:
        more.append(Path(compared_laws.__file__))
    built = _hash_of_code(own=own, more=tuple(more))
    text = f"{built} {replace(scenario, trace=Path(scenario.trace.name))} {_hash((scenario.trace,))}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@cache
def _hash_of_code(*, own: bool, more: tuple[Path, ...]) -> str:
    rooms = (*_SIMULATION, *_OWN_LAW) if own else _SIMULATION
    excluded = () if own else tuple(_PACKAGE / name for name in _OWN_LAW[1:])
    files = {file for room in rooms for file in _files(_PACKAGE / room) if file not in excluded}
    return _hash((*sorted(files), *more))


def _files(room: Path) -> Iterable[Path]:
    return [room] if room.is_file() else room.rglob("*.py")


@cache
def _hash(files: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()
