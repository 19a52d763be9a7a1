"""`tangram diagnose`: two readings of a running engine's /metrics, four questions, one next step each."""

import math
import sys
from dataclasses import asdict, replace
from pathlib import Path
from time import sleep

import click

from tangram.capacity.diagnosis.diagnose import diagnose as find
from tangram.capacity.diagnosis.findings import Diagnosis, Finding, Number
from tangram.capacity.diagnosis.policy import EngineFlags
from tangram.capacity.diagnosis.scrape import Scrape
from tangram.capacity.hardware import Hardware, hardware
from tangram.capacity.memory.footprint import footprint
from tangram.capacity.steps.calibration import coefficients_for
from tangram.capacity.steps.step import StepModel
from tangram.catalog import InputError, find_gpu
from tangram.catalog.lookup import nearest
from tangram.catalog.models.architecture import Architecture
from tangram.cli.diagnose.metrics_page import MetricsPage
from tangram.cli.options.model import ModelOption, model_options, read_model
from tangram.cli.output import UNVERIFIED_MARK, document, note, notes, output_option
from tangram.fleet import WHOLE_GPU

MIN_INTERVAL_S = 15.0  # below it, too few requests end to say where time goes
MAX_INTERVAL_S = 3600.0


@click.command()
@click.option("--url", required=True, help="Its metrics: http://host:8000/metrics; one pod, no Service.")
@click.option("--interval", default=MIN_INTERVAL_S, show_default=True, help="Seconds between the readings.")
@click.option("--served-model", help="Which model, where the page tells of several.")
@click.option("--token-file", type=click.Path(path_type=Path), help="File with a bearer token.")
@click.option("--sku", help="GPU that the engine runs on; `tangram gpus` lists them.")
@click.option("--profile", default=WHOLE_GPU, show_default=True, help="MIG profile of the slice.")
@click.option("--tp", default=1, show_default=True, help="GPUs per replica (tensor parallelism).")
@click.option("--weights", help="Precision of the weights; default: that of the checkpoint.")
@click.option("--kv", default="bf16", show_default=True, help="Precision of the KV cache: bf16, fp16 or fp8.")
@click.option("--max-num-seqs", type=int, help="The engine's limit, which vLLM does not export.")
@click.option("--max-num-batched-tokens", type=int, help="The engine's token budget of a step.")
@model_options(required=False)
@output_option
def diagnose(
    url: str,
    interval: float,
    served_model: str | None,
    token_file: Path | None,
    sku: str | None,
    profile: str,
    tp: int,
    weights: str | None,
    kv: str,
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
    model: ModelOption | None,
    fmt: str,
) -> None:
    """Say what a running engine (Tangram's or vLLM) is waiting for.

    Compute or memory bound? Prefill, decode or queue? KV pressure? Scheduler policy? Each with its numbers,
    or "cannot tell" and what is missing. --sku and --model answer the first question fully.
    """
    _check_interval(interval)
    limits = EngineFlags(
        _positive("--max-num-seqs", max_num_seqs),
        _positive("--max-num-batched-tokens", max_num_batched_tokens),
    )
    board = _board(sku, profile, tp)
    step, doubts = _step_model(read_model(model) if model else None, board, weights, kv, tp)
    before, after, seconds = read_twice(url, interval, token_file)
    name = chosen(after, served_model)
    found = find(
        before.of_model(name), after.of_model(name), seconds, hardware=board, step=step, limits=limits
    )
    found = replace(found, unverified=(*found.unverified, *doubts))
    if fmt == "table":
        show(found)
    else:
        document(asdict(found), fmt)


def read_twice(url: str, interval: float, token_file: Path | None = None) -> tuple[Scrape, Scrape, float]:
    """Read a page twice; return both and the seconds that really lay between them."""
    with MetricsPage(url, token_file) as page:
        first = page.read()
        if sys.stderr.isatty():
            click.echo(f"First reading done, the second follows in {interval:g} s.", err=True)
        sleep(interval)
        second = page.read()
    for reading in (first.scrape, second.scrape):
        if reading.unusable:
            raise InputError(reading.unusable[0], "is NaN, infinite or negative: no engine means that")
    return first.scrape, second.scrape, max(second.at - first.at, 1e-3)


def chosen(scrape: Scrape, wanted: str | None) -> str:
    """Return the served model to look at. Raises `InputError` where that is not clear."""
    there = scrape.models
    shown = ", ".join(there[:10]) + (f" and {len(there) - 10} more" if len(there) > 10 else "")
    if wanted is not None and wanted not in there:
        raise InputError("--served-model", f"the page has no model {wanted!r} but {shown or 'none at all'}")
    if wanted is None and len(there) > 1:
        raise InputError("--served-model", f"the page tells of several models, choose one: {shown}")
    return wanted or (there[0] if there else "")


def _check_interval(interval: float) -> None:
    if not math.isfinite(interval) or not MIN_INTERVAL_S <= interval <= MAX_INTERVAL_S:
        bounds = f"{MIN_INTERVAL_S:g} and {MAX_INTERVAL_S:g} s"
        raise InputError("--interval", f"{interval:g} is not between {bounds}")


def _positive(flag: str, value: int | None) -> int | None:
    if value is not None and value < 1:
        raise InputError(flag, f"{value} is not a number above 0")
    return value


def _board(sku: str | None, profile: str, tp: int) -> Hardware | None:
    if sku is None:
        if profile != WHOLE_GPU:
            raise InputError("--profile", "a slice is of a GPU: give --sku too")
        return None
    board = find_gpu(sku)
    if board is None:
        raise InputError("--sku", f"no GPU is called {sku!r}{nearest(sku)}; `tangram gpus` lists them")
    return hardware(board.sku, profile, tp)


def _step_model(
    architecture: Architecture | None, board: Hardware | None, weights: str | None, kv: str, tp: int
) -> tuple[StepModel | None, tuple[str, ...]]:
    """Return the model on its GPUs, None where one of them is not given; and what about it is not sure."""
    if tp < 1:
        raise InputError("--tp", f"{tp} is not a number of GPUs")
    if board is not None and board.is_slice and tp > 1:
        raise InputError("--tp", "MIG slices have no link to each other: a slice serves alone")
    if architecture is None or board is None:
        return None, ()
    form = weights or architecture.served_precision
    held = footprint(architecture, form, kv, tp, board)
    found = coefficients_for("vllm", None, form, board.sku, architecture.name)
    doubts = (*architecture.unverified, *(("speed coefficients",) if found.unverified else ()))
    return StepModel(held, board, found.coefficients), doubts


def show(found: Diagnosis) -> None:
    """Print a diagnosis for a person."""
    engines = f", {found.engines} engines" if found.engines > 1 else ""
    click.echo(f"{found.model or 'an unnamed model'}{engines}, {found.seconds:.1f} s between the readings")
    for number, answer in enumerate(found.answers, 1):
        _show_answer(number, answer, UNVERIFIED_MARK if number == 1 and found.unverified else "")
    below = list(found.notes)
    if found.unverified:
        doubted = ", ".join(found.unverified)
        below.append(
            f"{UNVERIFIED_MARK} recalled or not measured, so the first answer rests on less: {doubted}."
        )
    notes(below)


def _show_answer(number: int, answer: Finding, mark: str) -> None:
    click.echo(f"\n{number}. {answer.question}  ", nl=False)
    click.secho(answer.verdict + mark, bold=True)
    note(f"   {answer.reason}.", indent="   ")
    width = max((len(each.name) for each in answer.numbers), default=0)
    for each in answer.numbers:
        click.echo(f"     {each.name:<{width}}  {_value(each)}")
    if answer.missing:
        note(f"   missing: {'; '.join(answer.missing)}", indent="            ")
    if answer.next_step:
        note(f"   next: {answer.next_step}", indent="         ")


def _value(number: Number) -> str:
    """Three digits are what two readings are worth; whole numbers stay whole."""
    value = number.value
    text = f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.3g}"
    return f"{text} {number.unit}".rstrip()
