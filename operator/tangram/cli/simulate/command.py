"""`tangram simulate`: a fleet under a trace of requests: what it would have cost, and which requests it would
have failed.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click

from tangram.catalog import Architecture, InputError
from tangram.catalog.prices import Prices
from tangram.cli.options.planning import facts_option
from tangram.cli.options.prices import prices_option
from tangram.cli.output import document, output_option, rounded
from tangram.cli.plan.input_files import read_fleet
from tangram.cli.simulate import options
from tangram.cli.simulate.document import simulation_document
from tangram.cli.simulate.law_option import FORMS, law_choice
from tangram.cli.simulate.simulated_fleet import names_of, simulated_fleet
from tangram.cli.simulate.simulation import Progress, SimulationTerms, simulated
from tangram.cli.simulate.table import show
from tangram.cli.simulate.trace_files import packaged_traces, read_trace
from tangram.simulator.serving.gateway import Router

MOST_SEEDS, MOST_SEED = 100, 10**9
RATE_FACTORS = 0.001, 1000.0
MOST_START_S = 86_400.0
_ROUTERS = {router.value.replace(" ", "-"): router for router in Router}


@click.command(name="simulate")
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    required=True,
    metavar="FILE",
    help="Input file, as for `tangram plan`, repeatable; - is standard input.",
)
@click.option(
    "--trace",
    "traces",
    multiple=True,
    required=True,
    metavar="[NAME=]TRACE",
    help=f"Requests: {', '.join(packaged_traces())}, or a file (CSV or JSON lines, gzip or not); NAME is the"
    " LLMDeployment, where there are several. Repeatable.",
)
@click.option(
    "--law",
    default="tangram",
    metavar="LAW[=KNOB]",
    help=f"Scaling law: {FORMS}, a function that builds yours.",
)
@click.option("--rate-factor", type=float, default=1.0, help="Times as many requests in the same time.")
@click.option("--from", "begin", metavar="TIME", help="Begin of the window of the traces: 90, 15m or 2h.")
@click.option("--to", "end", metavar="TIME", help="End of the window of the traces.")
@click.option("--duration", metavar="TIME", help="Time to simulate.  [default: until the last request]")
@click.option("--seed", default=0, help="Of start times and routing; the trace is resampled above 0.")
@click.option("--seeds", default=1, help="How many seeds to run, from --seed on.")
@click.option(
    "--start-seconds",
    type=float,
    help="Mean from the order of a replica to its first request, on nodes with the image.",
)
@click.option("--router", type=click.Choice(tuple(_ROUTERS)), default="random", help="How a pod is picked.")
@click.option(
    "--node-failure",
    "failures",
    multiple=True,
    metavar="NODE=TIME[-TIME]",
    help="Node that is lost at a time of the run, and back at another one: node-a=15m-1h. Repeatable.",
)
@click.option("--compare", is_flag=True, help="Compare with static replicas for the peak and for the mean.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw the run: .png or .html.")
@facts_option
@prices_option
@output_option
def simulate(
    files: tuple[str, ...],
    traces: tuple[str, ...],
    law: str,
    rate_factor: float,
    begin: str | None,
    end: str | None,
    duration: str | None,
    seed: int,
    seeds: int,
    start_seconds: float | None,
    router: str,
    failures: tuple[str, ...],
    compare: bool,
    plot: Path | None,
    facts: dict[str, Architecture],
    prices: Prices,
    fmt: str,
) -> None:
    """Simulate a fleet under a trace of requests: its cost, and the requests that it would have failed.

    \b
    tangram simulate -f deployments.yaml -f fleet.yaml --trace azure2023_conv
    tangram simulate -f fleet.yaml --trace chat=monday.csv.gz --trace code=azure2023_code --compare
    tangram simulate -f fleet.yaml --trace monday.jsonl --law static=6 --seeds 5 --plot monday.html
    """
    _within("--rate-factor", rate_factor, *RATE_FACTORS)
    _within("--seed", seed, 0, MOST_SEED)
    _within("--seeds", seeds, 1, MOST_SEEDS)
    if start_seconds is not None:
        _within("--start-seconds", start_seconds, 0.0, MOST_START_S)
    duration_s = options.seconds(duration, "--duration")
    if duration_s == 0:
        raise InputError("--duration", "must be above 0")
    terms = SimulationTerms(
        law=law_choice(law),
        seeds=tuple(range(seed, seed + seeds)),
        rate_factor=rate_factor,
        begin_s=options.seconds(begin, "--from") or 0.0,
        end_s=options.seconds(end, "--to"),
        duration_s=duration_s,
        start_s=start_seconds,
        router=_ROUTERS[router],
        compare=compare,
    )
    if plot is not None:
        from tangram.cli.simulate.plot import check_plot  # noqa: PLC0415 - only for --plot

        check_plot(plot)
    source = read_fleet(files, facts)
    chosen = options.traces_by_name(traces, names_of(source))
    fleet = simulated_fleet(source, tuple(chosen))
    read = {name: read_trace(trace) for name, trace in chosen.items()}
    failed = options.node_failures(failures, [node.name for node in fleet.nodes])
    ordered = {model.intent.uid: read[model.intent.uid] for model in fleet.models}
    with _progress() as progress:
        outcome = simulated(fleet, ordered, replace(terms, node_failures=failed), prices, progress)
    whole = simulation_document(outcome, fleet.notes)
    if plot is not None:
        from tangram.cli.simulate.plot import draw  # noqa: PLC0415 - only for --plot

        draw(plot, outcome, whole["seeds"][0]["deployments"])
    if fmt == "table":
        show(outcome, whole, fleet.notes, default_prices=not (prices.overrides or fleet.prices))
    else:
        document(rounded(whole), fmt)


def _within(option: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InputError(option, f"must be from {least:g} to {most:,g}, not {value:g}")


@contextmanager
def _progress() -> Iterator[Progress]:
    """Show a progress bar on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(length=1000, label="Simulating", file=sys.stderr) as bar:
        yield lambda share: bar.update(round(1000 * share) - bar.pos)
