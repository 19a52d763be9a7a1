"""A sizing as people read it: what serves, from the cheapest; what does not, and what would change that."""

from collections.abc import Iterator

import click

from tangram.capacity.memory.budget import GIB
from tangram.capacity.sizing import SizedShape, Sizing
from tangram.capacity.steps.calibration import Basis
from tangram.catalog import Architecture
from tangram.catalog.prices import Prices
from tangram.cli.options.prices import DEFAULT_PRICE_NOTE
from tangram.cli.output import Column, note, notes, table
from tangram.cli.size.rejected import show_rejected
from tangram.cli.size.simulate import Simulated
from tangram.fleet import WHOLE_GPU, Lengths, Shape
from tangram.fleet.lengths import USUAL_P90

SHOWN = 15
MARK = "*"


def show(architecture: Architecture, found: Sizing, prices: Prices, *, everything: bool) -> None:
    """Print the tables and what must be known to read them."""
    note(_asked(architecture, found), indent="  ")
    click.echo()
    ranked = list(enumerate(found.rows, 1))
    shown = ranked if everything else _cheapest_of_each(ranked)[:SHOWN]
    if shown:
        table(_row_columns(found), [_row(rank, row, found) for rank, row in shown])
        notes(_row_notes(architecture, found, len(shown), prices))
    else:
        note("Nothing in the catalog serves this load within these objectives.")
    show_rejected(found, everything=everything)


def show_simulated(found: Sizing, simulation: Simulated) -> None:
    """Print one row's prediction beside its simulation."""
    row = found.rows[simulation.rank - 1]
    click.echo()
    replica = f"{row.shape} {row.shape.precision}, one replica at {simulation.rate:.3g} req/s"
    note(
        f"Row {simulation.rank}: {replica}, beside {simulation.requests} requests simulated step by step"
        f" (busy {simulation.utilisation:.0%} of the time, {simulation.preemptions} preemptions)."
    )
    columns = (Column(""), *(Column(f"P{p}", right=True) for p, _, _ in simulation.ttft_s))
    rows = [
        [f"{name} {source}", *(_ms(each[side]) for each in measured)]
        for name, measured in (("TTFT", simulation.ttft_s), ("TPOT", simulation.tpot_s))
        for side, source in ((1, "table"), (2, "simulation"))
        if measured
    ]
    table(columns, rows)


def _asked(architecture: Architecture, found: Sizing) -> str:
    request = found.request
    objectives = [
        f"{name} <= {limit:g} ms at P{request.percentile}"
        for name, limit in (("TTFT", request.ttft_ms), ("TPOT", request.tpot_ms))
        if limit is not None
    ]
    size = f"{architecture.parameters / 1e9:.1f} B parameters, {architecture.layers} layers"
    lengths = f"{_lengths(request.prompts)} + {_lengths(request.answers)} tokens (means)"
    traffic = f"{request.rps:g} req/s of {lengths}"
    limits = f"{found.max_model_len} tokens, {request.max_running} at once, {request.kv_precision} KV cache"
    return (
        f"{architecture.name}{MARK if architecture.unverified else ''}: {size}, {architecture.precision}."
        f" {traffic}, {' and '.join(objectives) or 'no objectives'}. Requests up to {limits}."
    )


def _lengths(lengths: Lengths) -> str:
    """The mean, and P90 where it is not twice that."""
    mean = f"{lengths.mean:.10g}" if float(lengths.mean).is_integer() else f"{lengths.mean:.1f}"
    if lengths.p90 == USUAL_P90 * lengths.mean:
        return mean
    return f"{mean} (P90 {lengths.p90:.0f})"


def _cheapest_of_each(ranked: list[tuple[int, SizedShape]]) -> list[tuple[int, SizedShape]]:
    """One row per GPU and slice: its cheapest."""
    seen: dict[tuple[str, str], tuple[int, SizedShape]] = {}
    for rank, row in ranked:
        seen.setdefault((row.shape.sku, row.shape.profile), (rank, row))
    return list(seen.values())


def _row_columns(found: Sizing) -> tuple[Column, ...]:
    at = f"P{found.request.percentile}"
    return (
        Column("#", right=True),
        Column("GPU OR SLICE"),
        Column("TP", right=True),
        Column("PREC"),
        Column("W+KV+BUF+FREE GiB", right=True, rank=6),
        Column("CONC", right=True, rank=4),
        Column("REQ/S", right=True, rank=1),
        Column(f"TTFT {at}", right=True),
        Column(f"TPOT {at}", right=True),
        Column("WALL", rank=3),
        Column("REPL", right=True),
        Column("GPUs", right=True, rank=5),
        Column("$/h", right=True),
        Column("$/1M", right=True, rank=2),
    )


def _row(rank: int, row: SizedShape, found: Sizing) -> list[str]:
    budget = row.budget
    parts = (budget.weights, row.kv_used, budget.overhead, budget.kv - row.kv_used)
    return [
        str(rank),
        _hardware(row.shape) + (MARK if row.unverified else ""),
        str(row.shape.tensor_parallel),
        row.shape.precision,
        "+".join(f"{part / GIB:.1f}" for part in parts),
        str(row.concurrent),
        _figure(row.max_rate),
        _ms(row.ttft_s),
        _ms(row.tpot_s),
        row.wall,
        str(row.replicas),
        _figure(row.gpus),
        f"{row.usd_per_hour:.2f}",
        f"{row.usd_per_million_tokens:.2f}",
    ]


def _row_notes(architecture: Architecture, found: Sizing, shown: int, prices: Prices) -> Iterator[str]:
    rest = len(found.rows) - shown
    if rest:
        yield f"{rest} more shapes serve: these are the cheapest of each GPU and slice; --all shows all."
    asked = (found.request.prompts, found.request.answers)
    usual = " (twice the mean)" if all(each.p90 == USUAL_P90 * each.mean for each in asked) else ""
    yield (
        "GiB of one GPU: weights, KV cache of running requests on average, buffers and reserve, free for more"
        f" requests. CONC: requests of P90 length{usual} that fit at once. REQ/S: what one replica"
        " carries within the objectives; TTFT and TPOT at its part of the load. WALL: what keeps it from"
        " more. $/1M: per million generated tokens. A slice counts and costs its share of a GPU."
    )
    own = architecture.served_precision
    if any(row.shape.precision != own for row in found.rows):
        yield (
            f"PREC other than {own}, the checkpoint's own, needs a quantised checkpoint, whose answers are"
            f" yours to judge; --precision {own} leaves them out."
        )
    if any(row.default_price for row in found.rows):
        yield f"{DEFAULT_PRICE_NOTE}."
    yield from _marks(architecture, found)


def _marks(architecture: Architecture, found: Sizing) -> Iterator[str]:
    yield _speed_note(found)
    doubted = sorted({each for row in found.rows for each in row.unverified} | {*architecture.unverified})
    if doubted:
        yield f"{MARK} not measured or not well sourced: {', '.join(doubted)} (-o json says which)."


def _speed_note(found: Sizing) -> str:
    """What the speed was fitted to, which may be less than what was asked for."""
    request, calibrated = found.request, found.rows[0].calibrated
    asked = " ".join(each for each in (request.engine, request.engine_version) if each)
    known = calibrated.basis is Basis.VERSION or (
        calibrated.basis is Basis.ENGINE and not request.engine_version
    )
    unknown = f"{asked} was not measured. " if asked and not known else ""
    if calibrated.basis is Basis.ROOFLINE:
        return f"{unknown}Speed: the data sheet's, which nothing reaches."
    error = f", TPOT within {calibrated.error_p50:.0%} (median)" if calibrated.error_p50 is not None else ""
    number = f"{calibrated.points} published measurements"
    if calibrated.basis is Basis.ALL:
        nobody = f"No measurement of engine {request.engine}: speed" if request.engine else "Speed:"
        return f"{nobody} fitted to all engines ({number}){error}."
    return f"{unknown}Speed: fitted to {number} of {calibrated.key}{error}."


def _hardware(shape: Shape) -> str:
    return shape.sku if shape.profile == WHOLE_GPU else f"{shape.sku}:{shape.profile}"


def _ms(seconds: float) -> str:
    milliseconds = seconds * 1e3
    return f"{milliseconds:.1f} ms" if milliseconds < 100 else f"{milliseconds:.0f} ms"


def _figure(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"
