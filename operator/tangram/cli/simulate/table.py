"""A simulation as people read it: attainment and cost, the requests that it failed, what was waste."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import click

from tangram.cli.options.prices import DEFAULT_PRICE_NOTE
from tangram.cli.output import Column, Row, counted, note, notes, section
from tangram.cli.simulate.simulation import SimulationOutcome
from tangram.fleet import Shape
from tangram.simulator.result.attainment import UNSERVABLE, Verdict
from tangram.simulator.result.run_result import DeploymentResult


def show(
    outcome: SimulationOutcome, document: Row, further_notes: Sequence[str], *, default_prices: bool
) -> None:
    """Print tables of the document's LLMDeployments for all seeds, and notes that explain them."""
    note(_summary(outcome), indent="  ")
    rows = [
        {"seed": run["seed"], **deployment} for run in document["seeds"] for deployment in run["deployments"]
    ]
    section(_ATTAINMENT_COLUMNS, rows)
    section(_COST_COLUMNS, rows)
    section(_SHAPE_COLUMNS, list(_shape_rows(outcome, rows)))
    click.echo()
    for place, name in enumerate(document["shapes"]):
        note(_failed(name, [result.deployments[place] for result in outcome.results]), indent="  ")
    for line in _comparisons(outcome):
        note(line, indent="  ")
    notes([*_explanations(outcome, default_prices=default_prices), *further_notes])


def _shape_rows(outcome: SimulationOutcome, rows: Sequence[Row]) -> Iterator[Row]:
    """Yield a row for each shape of an LLMDeployment that ran on several."""
    results = (deployment for run in outcome.results for deployment in run.deployments)
    for row, result in zip(rows, results, strict=True):
        for (shape, _), part in zip(result.shape_uses, row["shapes"], strict=True):
            if len(row["shapes"]) > 1:
                yield {**row, **part, "shape": shape.described}


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


def _worst(share: Mapping[str, Any]) -> str | None:
    window = share["worst_window"]
    return window and f"{_percent(window['share'])} at {_time(window['from'])}"


def _latency(percentiles: Mapping[str, float]) -> str:
    return f"{_ms(percentiles['p50'])}/{_ms(percentiles['p99'])} ms"


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.1f}" if milliseconds < 100 else f"{milliseconds:,.0f}"


def _waste(row: Row) -> str:
    return "/".join(f"{hours:.2f}" for hours in row["waste_gpu_hours"].values())


def _time(seconds: float) -> str:
    """Return 42 s, 5:00 min or 1:05:00 h."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"


def _attainment_columns(title: str, objective: str, rank: int) -> tuple[Column, Column]:
    return (
        Column(title, lambda row: _percent(row["attainment"][objective]["share"]), right=True),
        Column(
            f"WORST 5 MIN {title}", lambda row: _worst(row["attainment"][objective]), right=True, rank=rank
        ),
    )


_NAME_AND_SEED = (Column("NAME", "name"), Column("SEED", "seed", right=True, rank=1))
_ATTAINMENT_COLUMNS = (
    *_NAME_AND_SEED,
    Column("REQUESTS", "requests", ",", right=True, rank=2),
    *_attainment_columns("BOTH", "joint", rank=3),
    *_attainment_columns("TTFT", "ttft", rank=5),
    *_attainment_columns("TPOT", "tpot", rank=5),
    Column("TTFT P50/P99", lambda row: _latency(row["ttft_ms"]), right=True, rank=4),
    Column("TPOT P50/P99", lambda row: _latency(row["tpot_ms"]), right=True, rank=4),
)
_USE_COLUMNS = (
    Column("$", "usd", ",.2f", right=True),
    Column("GPU-HOURS", "gpu_hours", ",.2f", right=True),
    Column(
        "REPLICAS MIN/MEAN/MAX", lambda row: "{min}/{mean:.1f}/{max}".format_map(row["replicas"]), right=True
    ),
    Column("STARTS", "starts", right=True, rank=2),
)
_COST_COLUMNS = (
    *_NAME_AND_SEED,
    *_USE_COLUMNS,
    Column("REVERSALS/DAY", "reversals_per_day", ".0f", right=True, rank=4),
    Column("RECOVERY", lambda row: _time(row["longest_recovery_seconds"]), right=True, rank=3),
    Column("START/DRAIN/IDLE GPU-HOURS", _waste, right=True, rank=5),
)
_SHAPE_COLUMNS = (*_NAME_AND_SEED, Column("SHAPE", "shape"), *_USE_COLUMNS)
