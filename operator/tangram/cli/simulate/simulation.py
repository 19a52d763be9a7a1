"""Simulate a fleet under traces, once for each seed, and with fixed numbers of replicas beside it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tangram.catalog import InputError
from tangram.catalog.prices import Prices
from tangram.cli.simulate.law_option import LawChoice, static_choice
from tangram.cli.simulate.simulated_fleet import ServedModel, SimulatedFleet
from tangram.fleet import Shape
from tangram.simulator.cluster.engine_setups import EngineSetups
from tangram.simulator.cluster.faults import InjectedFaults, NodeFailure
from tangram.simulator.cluster.start_times import StartTimes
from tangram.simulator.controllers import LawKnowledge, StaticReplicas
from tangram.simulator.result.attainment import WINDOW_S
from tangram.simulator.result.run_result import RunResult
from tangram.simulator.run import SimulatedLLMDeployment, SimulationSettings, run, shapes_at_start
from tangram.simulator.serving.gateway import Router
from tangram.simulator.traffic.resampling import at_rate, resampled, window
from tangram.simulator.traffic.trace import Trace

MAX_REQUESTS = 1_000_000  # of one run, all traces together: each takes about a kilobyte
MAX_DURATION_S = 14 * 86_400.0
SPARE = 1.2  # replicas at the start, over those that the first five minutes need

Progress = Callable[[float], None]
"""Takes the share of all runs that is done."""


@dataclass(frozen=True, slots=True)
class SimulationTerms:
    """What is simulated, beside the fleet and its traces."""

    law: LawChoice
    seeds: tuple[int, ...] = (0,)
    rate_factor: float = 1.0
    begin_s: float = 0.0
    end_s: float | None = None  # of the window of the traces; None: their end
    duration_s: float | None = None  # of a run; None: until the last request
    start_s: float | None = None  # mean of a replica's start; None: the defaults of the simulator
    router: Router = Router.RANDOM
    compare: bool = False  # with fixed numbers of replicas
    node_failures: tuple[NodeFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class StaticComparison:
    """The same requests with a fixed number of replicas."""

    title: str  # for which load it is sized
    replicas: Mapping[str, int]  # by LLMDeployment
    result: RunResult


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """The runs of all seeds, in the order of the seeds."""

    terms: SimulationTerms
    results: tuple[RunResult, ...]
    shapes: Mapping[str, Shape]  # of the first replicas, by LLMDeployment
    loads: tuple[Mapping[str, tuple[int, ...]], ...]  # requests by window and LLMDeployment, for each seed
    compared: tuple[StaticComparison, ...] = ()


def simulated(
    fleet: SimulatedFleet,
    traces: Mapping[str, Trace],
    terms: SimulationTerms,
    prices: Prices,
    progress: Progress = lambda _: None,
) -> SimulationOutcome:
    """Run every seed. Raises `InputError` for traces out of bounds and for what the fleet cannot serve."""
    cut = {name: _cut(name, trace, terms) for name, trace in traces.items()}
    _check(cut, terms)
    starts = StartTimes() if terms.start_s is None else StartTimes.of_mean(terms.start_s)
    settings = SimulationSettings(
        nodes=fleet.nodes,
        foreign_claims=fleet.foreign_claims,
        pools=fleet.pools,
        prices={**fleet.prices, **prices.overrides},
        node_prices=fleet.node_prices,
        duration_s=terms.duration_s or max(1.0, *(trace.duration_s for trace in cut.values())),
        router=terms.router,
        faults=InjectedFaults(node_failures=terms.node_failures),
    )
    shapes = _first_shapes(fleet, settings)
    knowledge = {
        model.intent.uid: _knowledge(model, cut[model.intent.uid], shapes, settings, starts)
        for model in fleet.models
    }
    first = {name: _drawn(trace, terms, terms.seeds[0]) for name, trace in cut.items()}
    statics = _static_sizes(first, knowledge) if terms.compare else {}
    runs = len(terms.seeds) + len(statics)
    results, loads = [], []
    for number, seed in enumerate(terms.seeds):
        drawn = {name: _drawn(trace, terms, seed) for name, trace in cut.items()}
        chosen = dict.fromkeys(drawn, terms.law)
        deployments = _deployments(fleet, drawn, knowledge, chosen, starts)
        results.append(_run(deployments, replace(settings, seed=seed), number, runs, progress))
        loads.append({name: _by_window(trace, results[-1].duration_s) for name, trace in drawn.items()})
    compared = []
    for number, (title, replicas) in enumerate(statics.items(), len(terms.seeds)):
        chosen = {name: static_choice(count) for name, count in replicas.items()}
        deployments = _deployments(fleet, first, knowledge, chosen, starts)
        result = _run(deployments, replace(settings, seed=terms.seeds[0]), number, runs, progress)
        compared.append(StaticComparison(title, replicas, result))
    return SimulationOutcome(terms, tuple(results), shapes, tuple(loads), tuple(compared))


def _run(
    deployments: tuple[SimulatedLLMDeployment, ...],
    settings: SimulationSettings,
    number: int,
    runs: int,
    progress: Progress,
) -> RunResult:
    longest_s = settings.duration_s or 1.0
    result = run(deployments, settings, lambda at: progress((number + min(1.0, at / longest_s)) / runs))
    progress((number + 1) / runs)
    return result


# -- traces --------------------------------------------------------------------------------------------------


def _cut(name: str, trace: Trace, terms: SimulationTerms) -> Trace:
    end_s = math.inf if terms.end_s is None else terms.end_s
    if end_s <= terms.begin_s:
        raise InputError("--to", f"is {end_s:g} s, not after --from, {terms.begin_s:g} s")
    part = window(trace, terms.begin_s, end_s)
    if not part.requests:
        lasts = f"its requests arrive from 0 to {trace.duration_s:.0f} s"
        raise InputError("--from", f"the trace of {name} has no requests in the window: {lasts}")
    return part


def _check(traces: Mapping[str, Trace], terms: SimulationTerms) -> None:
    requests = sum(len(trace.requests) for trace in traces.values()) * terms.rate_factor
    if requests > MAX_REQUESTS:
        raise InputError(
            "--trace", f"has {requests:,.0f} requests, more than {MAX_REQUESTS:,}: cut it by --to"
        )
    longest_s = terms.duration_s or max(trace.duration_s for trace in traces.values())
    if longest_s > MAX_DURATION_S:
        days = f"{longest_s / 86_400:.1f} days, more than {MAX_DURATION_S / 86_400:.0f}"
        raise InputError("--duration" if terms.duration_s else "--trace", f"lasts {days}: cut it by --to")


def _drawn(trace: Trace, terms: SimulationTerms, seed: int) -> Trace:
    factor = terms.rate_factor
    return resampled(trace if factor == 1.0 else at_rate(trace, factor, seed), seed)


def _by_window(trace: Trace, duration_s: float) -> tuple[int, ...]:
    counts = [0] * max(1, math.ceil(duration_s / WINDOW_S))
    for request in trace.requests:
        if request.arrival_s <= duration_s:
            counts[min(len(counts) - 1, int(request.arrival_s // WINDOW_S))] += 1
    return tuple(counts)


# -- LLMDeployments ------------------------------------------------------------------------------------------


def _first_shapes(fleet: SimulatedFleet, settings: SimulationSettings) -> Mapping[str, Shape]:
    """Return the shapes that the planner takes first. Raises `InputError` where it finds none."""
    empty = tuple(
        # At least one replica, or no shape is chosen.
        SimulatedLLMDeployment(
            model.intent,
            model.facts,
            Trace(),
            StaticReplicas(1),
            initial_replicas=max(1, model.intent.min_replicas),
        )
        for model in fleet.models
    )
    shapes = shapes_at_start(empty, settings)
    for model in fleet.models:
        if model.intent.uid not in shapes:
            raise InputError(
                f"LLMDeployment {model.intent.uid}",
                "no replica finds a device in this fleet, or none serves within the objectives:"
                " `tangram plan` with the same files says why",
            )
    return shapes


def _knowledge(
    model: ServedModel,
    trace: Trace,
    shapes: Mapping[str, Shape],
    settings: SimulationSettings,
    starts: StartTimes,
) -> LawKnowledge:
    intent = model.intent
    prices, shape = Prices(dict(settings.prices)), shapes[intent.uid]
    engines = EngineSetups([(intent, model.facts)], prices)
    prompts, answers = trace.lengths
    return LawKnowledge(
        intent,
        engines.setup(intent.uid, shape),
        intent.traffic.input_tokens or prompts,
        intent.traffic.output_tokens or answers,
        starts.mean_s,
        engines,
    )


def _deployments(
    fleet: SimulatedFleet,
    traces: Mapping[str, Trace],
    knowledge: Mapping[str, LawKnowledge],
    laws: Mapping[str, LawChoice],
    starts: StartTimes,
) -> tuple[SimulatedLLMDeployment, ...]:
    return tuple(
        SimulatedLLMDeployment(
            model.intent,
            model.facts,
            traces[model.intent.uid],
            law.factory(knowledge[model.intent.uid], law.knob),
            starts,
            _initial(traces[model.intent.uid], knowledge[model.intent.uid], law),
        )
        for model in fleet.models
        for law in [laws[model.intent.uid]]
    )


def _initial(trace: Trace, knowledge: LawKnowledge, law: LawChoice) -> int:
    """Return the replicas at the start: a fixed number, else for the first five minutes and some to spare."""
    if law.name == "static":
        return round(law.knob or 0.0)
    first = sum(request.arrival_s < WINDOW_S for request in trace.requests)
    return _replicas(SPARE * first / min(WINDOW_S, max(1.0, trace.duration_s)), knowledge)


def _replicas(rate: float, knowledge: LawKnowledge) -> int:
    """Return replicas for a rate within the bounds; the most where objectives are met at no rate."""
    least, most = knowledge.intent.min_replicas, knowledge.intent.max_replicas
    capacity = knowledge.capacity(knowledge.prompts.mean, knowledge.answers.mean)
    if capacity is not None and not capacity.rates[0][1]:
        return most
    return min(max(knowledge.replicas_for(rate), least), most)


def _static_sizes(
    traces: Mapping[str, Trace], knowledge: Mapping[str, LawKnowledge]
) -> dict[str, dict[str, int]]:
    """Return replicas by title and LLMDeployment: for the busiest five minutes, and for the mean."""
    sizes: dict[str, dict[str, int]] = {"peak": {}, "mean": {}}
    for name, trace in traces.items():
        duration_s = max(trace.duration_s, 1.0)
        busiest = max(_by_window(trace, duration_s)) / min(WINDOW_S, duration_s)
        sizes["peak"][name] = _replicas(busiest, knowledge[name])
        sizes["mean"][name] = _replicas(len(trace.requests) / duration_s, knowledge[name])
    return sizes
