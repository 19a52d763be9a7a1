"""`tangram diagnose`: read a running engine's /metrics twice and answer four questions about its speed."""

import math
import sys
from dataclasses import asdict, replace
from pathlib import Path
from time import sleep

import click

from tangram.capacity.diagnosis.admission_limit import EngineFlags
from tangram.capacity.diagnosis.diagnose import diagnose as diagnosis_of
from tangram.capacity.diagnosis.scrape import Scrape
from tangram.capacity.hardware import Hardware, hardware
from tangram.capacity.memory.footprint import footprint
from tangram.capacity.steps.calibration import coefficients_for
from tangram.capacity.steps.step_model import StepModel
from tangram.catalog import InputError
from tangram.catalog.lookup import gpu_of_name
from tangram.catalog.models.architecture import Architecture
from tangram.catalog.reading.fields import shortened
from tangram.cli.diagnose.metrics_page import MetricsPage
from tangram.cli.diagnose.table import show
from tangram.cli.options.model import ModelOption, model_options, read_model
from tangram.cli.output import document, output_option
from tangram.fleet import WHOLE_GPU

MIN_INTERVAL_S = 15.0  # with less, too few requests complete
MAX_INTERVAL_S = 3600.0


@click.command()
@click.option(
    "--url",
    required=True,
    help="Metrics of the engine, http://host:8000/metrics: of one pod, not of a Service.",
)
@click.option("--interval", default=MIN_INTERVAL_S, help="Seconds between the readings.")
@click.option("--served-model", help="Served model to diagnose, if the page has several.")
@click.option("--token-file", type=click.Path(path_type=Path), help="File that holds a bearer token.")
@click.option("--sku", help="GPU that the engine runs on; `tangram gpus` lists them.")
@click.option("--profile", default=WHOLE_GPU, help="MIG profile of the slice.")
@click.option("--tp", default=1, help="GPUs per replica (tensor parallelism).")
@click.option("--weights", help="Precision of the weights.  [default: that of the checkpoint]")
@click.option("--kv", default="bf16", help="Precision of the KV cache: bf16, fp16 or fp8.")
@click.option("--max-num-seqs", type=int, help="The engine's --max-num-seqs; vLLM does not export it.")
@click.option(
    "--max-num-batched-tokens", type=int, help="The engine's --max-num-batched-tokens: tokens in one step."
)
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
    """Diagnose what limits a running engine (Tangram's or vLLM).

    Answers four questions with their numbers: compute or memory bound; prefill, decode or queue; KV cache
    pressure; scheduler policy. "cannot tell" comes with what is missing. The first needs --sku and --model.
    """
    _check_interval(interval)
    limits = EngineFlags(
        _positive("--max-num-seqs", max_num_seqs),
        _positive("--max-num-batched-tokens", max_num_batched_tokens),
    )
    board = _board(sku, profile, tp)
    step, unverified = _step_model(read_model(model) if model else None, board, weights, kv, tp)
    before, after, seconds = read_twice(url, interval, token_file)
    served = model_to_diagnose(after, served_model)
    diagnosis = diagnosis_of(
        before.of_model(served), after.of_model(served), seconds, hardware=board, step=step, limits=limits
    )
    diagnosis = replace(diagnosis, unverified=(*diagnosis.unverified, *unverified))
    if fmt == "table":
        show(diagnosis)
    else:
        document(asdict(diagnosis), fmt)


def read_twice(url: str, interval: float, token_file: Path | None = None) -> tuple[Scrape, Scrape, float]:
    """Read a page twice; return both readings and the measured seconds between them."""
    with MetricsPage(url, token_file) as page:
        first = page.read()
        if sys.stderr.isatty():
            click.echo(f"First reading done, the second follows in {interval:g} s.", err=True)
        sleep(interval)
        second = page.read()
    for reading in (first.scrape, second.scrape):
        if reading.unusable:
            raise InputError(reading.unusable[0], "is NaN, infinite or negative: not a reading of an engine")
    return first.scrape, second.scrape, max(second.at - first.at, 1e-3)


def model_to_diagnose(scrape: Scrape, requested: str | None) -> str:
    """Return the name of the served model to diagnose. Raises `InputError` where the choice is ambiguous."""
    served_models = scrape.models
    shown = shortened(served_models, 10)
    if requested is not None and requested not in served_models:
        raise InputError("--served-model", f"the page has no model {requested!r}; it has {shown or 'none'}")
    if requested is None and len(served_models) > 1:
        raise InputError("--served-model", f"the page has several models, choose one: {shown}")
    return requested or (served_models[0] if served_models else "")


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
            raise InputError("--profile", "needs --sku, the GPU of the slice")
        return None
    return hardware(gpu_of_name(sku, "--sku").sku, profile, tp)


def _step_model(
    architecture: Architecture | None, board: Hardware | None, weights: str | None, kv: str, tp: int
) -> tuple[StepModel | None, tuple[str, ...]]:
    """Return the step model, None without a model or GPU, and the names of its unverified facts."""
    if tp < 1:
        raise InputError("--tp", f"{tp} is not a number of GPUs")
    if board is not None and board.is_slice and tp > 1:
        raise InputError("--tp", "MIG slices have no peer-to-peer links: a replica takes one slice")
    if architecture is None or board is None:
        return None, ()
    weight_format = weights or architecture.served_precision
    replica_footprint = footprint(architecture, weight_format, kv, tp, board)
    calibrated = coefficients_for("vllm", None, weight_format, board.sku, architecture.name)
    unverified = (*architecture.unverified, *(("speed coefficients",) if calibrated.unverified else ()))
    return StepModel(replica_footprint, board, calibrated.coefficients), unverified
