"""A sizing as people read it: the shapes that serve, from the cheapest, then the rejected ones."""

from collections.abc import Iterator, Sequence

import click

from tangram.capacity.sizing import Sizing
from tangram.capacity.steps.calibration import Basis
from tangram.catalog import Architecture
from tangram.cli.options.model import OTHER_RUNTIMES_NOTE
from tangram.cli.options.prices import DEFAULT_PRICE_NOTE
from tangram.cli.output import ANY, Column, Row, note, notes, table, unverified_mark, unverified_note
from tangram.cli.size.rejection_table import show_rejected
from tangram.cli.size.row_simulation import RowSimulation
from tangram.fleet import Lengths
from tangram.fleet.lengths import USUAL_P90

SHOWN = 15


def show(architecture: Architecture, sizing: Sizing, rows: Sequence[Row], *, everything: bool) -> None:
    """Print the rows of the document as a table, and notes that explain the columns."""
    note(_summary(architecture, sizing), indent="  ")
    click.echo()
    shown = rows if everything else _cheapest_of_each_device(rows)[:SHOWN]
    if shown:
        table(_columns(sizing.request.percentile), shown)
        notes(_row_notes(architecture, sizing, len(shown)))
    else:
        note("No GPU or slice of the catalog serves this load within these objectives.")
    show_rejected(sizing, everything=everything)


def show_simulated(sizing: Sizing, simulation: RowSimulation) -> None:
    """Print the latencies of one row beside those of its simulation."""
    row = sizing.rows[simulation.rank - 1]
    click.echo()
    replica = f"{row.shape} {row.shape.precision}, one replica at {simulation.rate:.3g} req/s"
    note(
        f"Row {simulation.rank}: {replica}, compared with a simulation of {simulation.requests} requests"
        f" (busy {simulation.utilisation:.0%} of the time, {simulation.preemptions} preemptions)."
    )
    rows = [
        {"": f"{name} {source}", **{f"P{latency[0]}": _ms(latency[side] * 1e3) for latency in latencies}}
        for name, latencies in (("TTFT", simulation.ttft_s), ("TPOT", simulation.tpot_s))
        for side, source in ((1, "table"), (2, "simulation"))
    ]
    table([Column(title, title, right=title != "") for title in rows[0]], rows)


def _summary(architecture: Architecture, sizing: Sizing) -> str:
    request = sizing.request
    objectives = [
        f"{name} <= {limit:g} ms at P{request.percentile}"
        for name, limit in (("TTFT", request.ttft_ms), ("TPOT", request.tpot_ms))
        if limit is not None
    ]
    size = f"{architecture.parameters / 1e9:.1f} B parameters, {architecture.layers} layers"
    lengths = f"{_lengths(request.prompts)} + {_lengths(request.answers)} tokens (means)"
    traffic = f"{request.rps:g} req/s of {lengths}"
    limits = f"{sizing.max_model_len} tokens, {request.max_running} at once, {request.kv_precision} KV cache"
    return (
        f"{architecture.name}{unverified_mark(architecture.unverified)}: {size}, {architecture.precision}."
        f" {traffic}, {' and '.join(objectives) or 'no objectives'}. Requests up to {limits}."
    )


def _lengths(lengths: Lengths) -> str:
    """Return the mean, and the P90 where it is not twice the mean."""
    mean = f"{lengths.mean:.10g}" if float(lengths.mean).is_integer() else f"{lengths.mean:.1f}"
    return mean if _has_usual_p90(lengths) else f"{mean} (P90 {lengths.p90:.0f})"


def _has_usual_p90(lengths: Lengths) -> bool:
    return lengths.p90 == USUAL_P90 * lengths.mean


def _cheapest_of_each_device(rows: Sequence[Row]) -> list[Row]:
    """Return one row per GPU and slice: its cheapest."""
    cheapest: dict[tuple[str, str | None], Row] = {}
    for row in rows:
        cheapest.setdefault((row["sku"], row["profile"]), row)
    return list(cheapest.values())


def _columns(percentile: int) -> tuple[Column, ...]:
    return (
        Column("#", "rank", right=True),
        Column("GPU OR SLICE", _hardware, mark=ANY),
        Column("TP", "tensor_parallel", right=True),
        Column("PREC", "precision"),
        Column("W+KV+BUF+FREE GiB", _memory, right=True, rank=6),
        Column("CONC", "concurrent_requests_p90", right=True, rank=4),
        Column("REQ/S", lambda row: _figure(row["max_rps_per_replica"]), right=True, rank=1),
        Column(f"TTFT P{percentile}", lambda row: _ms(row["ttft_ms"]), right=True),
        Column(f"TPOT P{percentile}", lambda row: _ms(row["tpot_ms"]), right=True),
        Column("WALL", "wall", rank=3),
        Column("REPL", "replicas", right=True),
        Column("GPUs", lambda row: _figure(row["gpus"]), right=True, rank=5),
        Column("$/h", "usd_per_hour", ".2f", right=True),
        Column("$/1M", "usd_per_million_output_tokens", ".2f", right=True, rank=2),
    )


def _memory(row: Row) -> str:
    gib = row["memory_gib_per_gpu"]
    return "+".join(f"{gib[part]:.1f}" for part in ("weights", "kv_used", "buffers", "free"))


def _row_notes(architecture: Architecture, sizing: Sizing, shown: int) -> Iterator[str]:
    rest = len(sizing.rows) - shown
    if rest:
        yield f"{rest} more shapes serve: shown is the cheapest of each GPU and slice; --all shows all."
    usual = all(map(_has_usual_p90, (sizing.request.prompts, sizing.request.answers)))
    p90 = "P90 length (twice the mean)" if usual else "P90 length"
    yield (
        "GiB of one GPU: weights + KV cache of the running requests (average) + buffers and reserve + free KV"
        f" cache. CONC: requests of {p90} that fit at once. REQ/S: the most that one replica"
        " serves within the objectives; TTFT and TPOT at its part of the load. WALL: what limits REQ/S."
        " $/1M: per million generated tokens. A slice counts and costs its share of a GPU."
    )
    own = architecture.served_precision
    if any(row.shape.precision != own for row in sizing.rows):
        yield (
            f"PREC other than {own}, that of the checkpoint, needs a quantised checkpoint: test its answers;"
            f" --precision {own} hides these rows."
        )
    if any(row.default_price for row in sizing.rows):
        yield f"{DEFAULT_PRICE_NOTE}."
    yield _speed_note(sizing)
    if not architecture.served_by_engine:
        yield OTHER_RUNTIMES_NOTE
    unverified = {fact for row in sizing.rows for fact in row.unverified} | {*architecture.unverified}
    if unverified:
        yield f"{unverified_note(unverified)} (per row: -o json)."


def _speed_note(sizing: Sizing) -> str:
    """Say which measurements the predicted speed rests on."""
    request, calibrated = sizing.request, sizing.rows[0].calibrated
    engine = " ".join(filter(None, (request.engine, request.engine_version)))
    measured = calibrated.basis is Basis.VERSION or (
        calibrated.basis is Basis.ENGINE and not request.engine_version
    )
    unmeasured = f"There is no measurement of {engine}. " if engine and not measured else ""
    if calibrated.basis is Basis.ROOFLINE:
        return f"{unmeasured}Speed: data sheet (roofline), an upper limit that no engine reaches."
    error = f", TPOT within {calibrated.error_p50:.0%} (median)" if calibrated.error_p50 is not None else ""
    number = f"{calibrated.points} published measurements"
    if calibrated.basis is Basis.ALL:
        return f"{unmeasured}Speed: fitted to all engines ({number}){error}."
    return f"{unmeasured}Speed: fitted to {number} of {calibrated.key}{error}."


def _hardware(row: Row) -> str:
    return row["sku"] if row["profile"] is None else f"{row['sku']}:{row['profile']}"


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.1f} ms" if milliseconds < 100 else f"{milliseconds:.0f} ms"


def _figure(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"
