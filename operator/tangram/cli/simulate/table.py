"""A simulation as people read it: attainment and cost, the requests that it failed, what was waste."""

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean

import click

from tangram.cli.options.prices import DEFAULT_PRICE_NOTE
from tangram.cli.output import Column, Row, counted, note, notes, table
from tangram.cli.simulate.document import SHARES, replica_figures, worst_window
from tangram.cli.simulate.simulation import SimulationOutcome
from tangram.fleet import Shape
from tangram.simulator.result.attainment import UNSERVABLE, Verdict
from tangram.simulator.result.run_result import DeploymentResult, RunResult


def show(outcome: SimulationOutcome, further_notes: Sequence[str], *, default_prices: bool) -> None:
    """Print the tables of all seeds, and notes that explain them."""
    names = [deployment.name for deployment in outcome.results[0].deployments]
    note(_summary(outcome), indent="  ")
    click.echo()
    pairs = list(_deployments(outcome))
    table([_attainment_row(seed, run, deployment) for seed, run, deployment in pairs])
    click.echo()
    table([_cost_row(seed, run, deployment) for seed, run, deployment in pairs])
    click.echo()
    by_shape = [row for seed, run, deployment in pairs for row in _shape_rows(seed, run, deployment)]
    if by_shape:
        table(by_shape)
        click.echo()
    for place, name in enumerate(names):
        note(_failed(name, [result.deployments[place] for result in outcome.results]), indent="  ")
    for line in _comparisons(outcome):
        note(line, indent="  ")
    notes([*_explanations(outcome, default_prices=default_prices), *further_notes])


def _deployments(outcome: SimulationOutcome) -> Iterator[tuple[int, RunResult, DeploymentResult]]:
    for seed, run in zip(outcome.terms.seeds, outcome.results, strict=True):
        for deployment in run.deployments:
            yield seed, run, deployment


def _summary(outcome: SimulationOutcome) -> str:
    terms, first = outcome.terms, outcome.results[0]
    places = ", ".join(_place(name, shape, outcome) for name, shape in outcome.shapes.items())
    requests = sum(deployment.attainment.requests for deployment in first.deployments)
    costs = [result.usd for result in outcome.results]
    cost = f"${fmean(costs):,.2f}" if len(costs) == 1 else f"${min(costs):,.2f} to ${max(costs):,.2f}"
    return (
        f"{places}. Law {terms.law}, {counted(requests, 'request')} in {_time(first.duration_s)}: the fleet"
        f" would have cost {cost}."
    )


def _place(name: str, first: Shape, outcome: SimulationOutcome) -> str:
    """Return an LLMDeployment with the shape of its first replicas, and those that others were on."""
    shapes = dict.fromkeys(
        shape
        for result in outcome.results
        for deployment in result.deployments
        if deployment.name == name
        for shape, _ in deployment.shape_uses
    )
    others = [str(shape) for shape in shapes if shape != first]
    return f"{name} on {first}" + (f" and {', '.join(others)}" if others else "")


def _attainment_row(seed: int, _run: RunResult, deployment: DeploymentResult) -> Row:
    attainment = deployment.attainment
    shares = []
    for (_, share), title in zip(SHARES, ("BOTH", "TTFT", "TPOT"), strict=True):
        worst = worst_window(attainment, share)
        shares.append((Column(title, right=True), _percent(getattr(attainment.whole, share))))
        shares.append(
            (
                Column(f"WORST 5 MIN {title}", right=True, rank=3 if title == "BOTH" else 5),
                "-" if worst is None else f"{_percent(getattr(worst, share))} at {_time(worst.begin_s)}",
            )
        )
    return [
        (Column("NAME"), deployment.name),
        (Column("SEED", right=True, rank=1), str(seed)),
        (Column("REQUESTS", right=True, rank=2), f"{attainment.requests:,}"),
        *shares,
        (Column("TTFT P50/P99", right=True, rank=4), _latency(attainment.ttft_s.p50, attainment.ttft_s.p99)),
        (Column("TPOT P50/P99", right=True, rank=4), _latency(attainment.tpot_s.p50, attainment.tpot_s.p99)),
    ]


def _cost_row(seed: int, run: RunResult, deployment: DeploymentResult) -> Row:
    use, replicas = deployment.use, replica_figures(deployment.counts, run.duration_s)
    waste = "/".join(
        f"{hours:.2f}" for hours in (use.starting_gpu_hours, use.draining_gpu_hours, use.idle_gpu_hours)
    )
    return [
        (Column("NAME"), deployment.name),
        (Column("SEED", right=True, rank=1), str(seed)),
        (Column("$", right=True), f"{use.usd:,.2f}"),
        (Column("GPU-HOURS", right=True), f"{use.gpu_hours:,.2f}"),
        (
            Column("REPLICAS MIN/MEAN/MAX", right=True),
            f"{replicas.least}/{replicas.mean:.1f}/{replicas.most}",
        ),
        (Column("STARTS", right=True, rank=2), str(use.starts)),
        (Column("REVERSALS/DAY", right=True, rank=4), f"{deployment.reversals_per_day:.0f}"),
        (Column("RECOVERY", right=True, rank=3), _time(deployment.longest_recovery_s)),
        (Column("START/DRAIN/IDLE GPU-HOURS", right=True, rank=5), waste),
    ]


def _shape_rows(seed: int, run: RunResult, deployment: DeploymentResult) -> Iterator[Row]:
    """Yield a row for each shape of an LLMDeployment that ran on several."""
    for shape, use in deployment.shape_uses if len(deployment.shape_uses) > 1 else ():
        replicas = replica_figures(deployment.counts, run.duration_s, shape)
        yield [
            (Column("NAME"), deployment.name),
            (Column("SEED", right=True, rank=1), str(seed)),
            (Column("SHAPE"), shape.described),
            (Column("$", right=True), f"{use.usd:,.2f}"),
            (Column("GPU-HOURS", right=True), f"{use.gpu_hours:,.2f}"),
            (
                Column("REPLICAS MIN/MEAN/MAX", right=True),
                f"{replicas.least}/{replicas.mean:.1f}/{replicas.most}",
            ),
            (Column("STARTS", right=True, rank=2), str(use.starts)),
        ]


def _failed(name: str, results: Sequence[DeploymentResult]) -> str:
    """Say which requests were not served within their objectives, and why."""
    verdicts = Counter[str]()
    for result in results:
        verdicts.update(dict(result.attainment.verdicts))
    total, attained = sum(verdicts.values()), verdicts[Verdict.ATTAINED]
    unservable = sum(verdicts[verdict] for verdict in UNSERVABLE)
    failed = total - attained - unservable
    causes = [f"{verdicts[verdict]:,} {_CAUSES[verdict]}" for verdict in _CAUSES if verdicts[verdict]]
    text = f"{name} would have failed {failed:,} of {total - unservable:,} requests"
    text += f": {', '.join(causes)}." if causes else "."
    beside = [f"{verdicts[v]:,} {cause}" for v, cause in _UNSERVABLE.items() if verdicts[v]]
    if beside:
        text += f" Not counted, because no replica of this shape serves them: {', '.join(beside)}."
    return text


_CAUSES = {
    Verdict.TTFT: "late first tokens",
    Verdict.TPOT: "slow answers",
    Verdict.REFUSED: "refused while no pod was ready",
    Verdict.TIMED_OUT: "timed out",
    Verdict.LOST: "lost with their pod",
}
_UNSERVABLE = {
    Verdict.TOO_LONG: "too long for the model or the KV cache",
    Verdict.INFEASIBLE: "too slow even alone on an idle replica",
}


def _comparisons(outcome: SimulationOutcome) -> Iterator[str]:
    """Yield a line for each fixed number of replicas, beside the law with the same seed."""
    law = outcome.results[0]
    for static in outcome.compared:
        replicas = ", ".join(
            f"{name} {count}" if len(static.replicas) > 1 else counted(count, "replica")
            for name, count in static.replicas.items()
        )
        shares = ", ".join(
            f"{_percent(fixed.attainment.share)} instead of {_percent(scaled.attainment.share)}"
            for fixed, scaled in zip(static.result.deployments, law.deployments, strict=True)
        )
        load = "the busiest five minutes" if static.title == "peak" else "the mean load"
        more = law.usd / static.result.usd - 1 if static.result.usd else 0.0
        costs = f"{abs(more):.0%} {'more' if more > 0 else 'less'}" if abs(more) >= 0.005 else "as much"
        yield (
            f"Static, for {load} ({replicas}): attainment {shares}, ${static.result.usd:,.2f};"
            f" {outcome.terms.law} costs {costs}."
        )


def _explanations(outcome: SimulationOutcome, *, default_prices: bool) -> Iterator[str]:
    yield (
        "BOTH, TTFT, TPOT: share of requests that met both objectives, and each of them. REVERSALS: changes"
        " of replicas against one of the 15 minutes before. RECOVERY: the longest time below the share that"
        " the objectives ask for. IDLE: of engines that compute for less than a fifth of the time."
    )
    if outcome.terms.start_s is None:
        yield "Start times are assumed, not measured: --start-seconds sets yours."
    if default_prices:
        yield f"{DEFAULT_PRICE_NOTE}."
    faults = sorted({fault for result in outcome.results for fault in result.planning_faults})
    yield from (f"The planner failed: {fault}" for fault in faults)


def _percent(share: float) -> str:
    """Return per cent with two decimals, cut off: 99.999 is not 100."""
    return f"{int(share * 1e4) / 100:.2f} %" if share < 1 else "100 %"


def _latency(usual_s: float, worst_s: float) -> str:
    return f"{_ms(usual_s)}/{_ms(worst_s)} ms"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}" if seconds < 0.1 else f"{1e3 * seconds:,.0f}"


def _time(seconds: float) -> str:
    """Return 42 s, 5:00 min or 1:05:00 h."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"
