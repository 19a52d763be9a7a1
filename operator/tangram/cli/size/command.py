"""`tangram size`: the GPUs and slices that serve a model within its objectives, how many, at what price."""

from typing import Any

import click

from tangram.capacity.sizing import SizingRequest, size
from tangram.catalog import InputError
from tangram.catalog.prices import Prices
from tangram.cli.options.lengths import lengths_options
from tangram.cli.options.model import ModelOption, model_options, read_model
from tangram.cli.options.prices import prices_option
from tangram.cli.output import document, output_option, rounded
from tangram.cli.size.document import sizing_document
from tangram.cli.size.row_simulation import row_simulation
from tangram.cli.size.shape_filters import selected_shapes
from tangram.cli.size.table import show, show_simulated
from tangram.fleet import DEFAULT_PERCENTILE, DEFAULT_RUNNING_REQUESTS, PERCENTILES


@click.command(name="size")
@model_options()
@click.option("--ttft-ms", type=float, help="Objective: time to first token.  [default: any]")
@click.option("--tpot-ms", type=float, help="Objective: time per output token of a request.  [default: any]")
@click.option(
    "--percentile",
    default=DEFAULT_PERCENTILE,
    help=f"Percentile of both objectives: {', '.join(map(str, PERCENTILES))}.",
)
@lengths_options("Input (prompt)", "input", mean=1024)
@lengths_options("Output (answer)", "output", mean=256)
@click.option("--rps", default=1.0, help="Load, requests per second.")
@click.option("--cv", default=1.0, help="Coefficient of variation of the times between arrivals; 1: Poisson.")
@click.option("--engine", help="Engine whose measurements to use: vllm, sglang or trtllm.  [default: all]")
@click.option("--engine-version", help="Version of the engine, such as 0.18.0.")
@click.option("--precision", "precisions", multiple=True, help="Only weights of this precision; repeatable.")
@click.option("--kv-precision", default="bf16", help="Precision of the KV cache: bf16, fp16 or fp8.")
@click.option("--sku", "names", multiple=True, help="Only this GPU; repeatable. `tangram gpus` lists them.")
@click.option("--mig", default="allowed", help="MIG slices: allowed, required, forbidden, or one profile.")
@click.option("--tp", type=int, multiple=True, help="Only this tensor parallelism: 1, 2, 4 or 8; repeatable.")
@click.option(
    "--max-model-len", type=int, help="Tokens of the longest request.  [default: P99 of the lengths]"
)
@click.option(
    "--max-running", default=DEFAULT_RUNNING_REQUESTS, help="Most requests that a replica runs at once."
)
@click.option("--simulate", "row", type=int, metavar="ROW", help="Simulate this row step by step, too.")
@click.option("--all", "everything", is_flag=True, help="Show every shape and every rejection.")
@prices_option
@output_option
def size_command(
    model: ModelOption,
    names: tuple[str, ...],
    precisions: tuple[str, ...],
    tp: tuple[int, ...],
    mig: str,
    row: int | None,
    everything: bool,
    prices: Prices,
    fmt: str,
    **request_fields: Any,  # of `SizingRequest`: objectives, lengths, load, engine, limits of a replica
) -> None:
    """Rank the GPUs and MIG slices that serve a model within its objectives, cheapest first.

    \b
    tangram size --model llama-3.1-8b --ttft-ms 500 --tpot-ms 40 --rps 4
    tangram size --model ./checkpoint --tpot-ms 30 --input 4000 --output 500 --sku h100-80gb-sxm --all
    """
    try:
        request = SizingRequest(**request_fields)
    except InputError as error:  # every field of a request is an option
        raise InputError(f"--{error.field}", error.problem) from error
    architecture = read_model(model)
    sizing = size(architecture, request, prices, selected_shapes(architecture, names, precisions, tp, mig))
    simulation = None if row is None else row_simulation(sizing, row)
    whole = sizing_document(architecture, sizing, simulation)
    if fmt != "table":
        document(rounded(whole), fmt)
        return
    show(architecture, sizing, whole["rows"], everything=everything)
    if simulation is not None:
        show_simulated(sizing, simulation)
