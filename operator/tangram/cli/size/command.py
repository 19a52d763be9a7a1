"""`tangram size`: which GPUs and slices serve a model within its objectives, how many, and at what price."""

from pathlib import Path

import click

from tangram.capacity.sizing import SizingRequest, size
from tangram.catalog import Architecture, InputError
from tangram.catalog.prices import Prices
from tangram.cli.options.lengths import lengths_given, lengths_options
from tangram.cli.options.model import ModelOption, model_options, read_model
from tangram.cli.options.prices import prices_option
from tangram.cli.output import document, output_option
from tangram.cli.size.document import sizing_document
from tangram.cli.size.filters import chosen
from tangram.cli.size.simulate import simulated
from tangram.cli.size.table import show, show_simulated
from tangram.fleet import DEFAULT_PERCENTILE, DEFAULT_RUNNING_REQUESTS, PERCENTILES

INPUT_TOKENS, OUTPUT_TOKENS = 1024, 256


@click.command(name="size")
@model_options()
@click.option("--ttft-ms", type=float, help="Objective: time to first token.  [default: any]")
@click.option("--tpot-ms", type=float, help="Objective: time per output token of a request.  [default: any]")
@click.option(
    "--percentile",
    type=int,
    default=DEFAULT_PERCENTILE,
    show_default=True,
    help=f"Of both objectives: {', '.join(map(str, PERCENTILES))}.",
)
@lengths_options("Prompt", "input", INPUT_TOKENS)
@lengths_options("Answer", "output", OUTPUT_TOKENS)
@click.option("--rps", type=float, default=1.0, show_default=True, help="Load, requests per second.")
@click.option(
    "--cv", type=float, default=1.0, show_default=True, help="Variation of arrival gaps; 1: Poisson."
)
@click.option("--engine", help="vllm, sglang or trtllm: whose measured speed to use.  [default: all of them]")
@click.option("--engine-version", help="Its version, e.g. 0.18.0.")
@click.option("--precision", "precisions", multiple=True, help="Weights in this format only; repeatable.")
@click.option("--kv-precision", default="bf16", show_default=True, help="KV cache: bf16, fp16 or fp8.")
@click.option("--sku", "names", multiple=True, help="This GPU only; repeatable. `tangram gpus` lists them.")
@click.option(
    "--mig", default="allowed", show_default=True, help="allowed, required, forbidden, or a profile."
)
@click.option("--tp", type=int, multiple=True, help="Tensor parallelism: this one of 1, 2, 4, 8; repeatable.")
@click.option(
    "--max-model-len", type=int, help="Longest request to accept.  [default: covers P99 of the lengths]"
)
@click.option(
    "--max-running",
    type=int,
    default=DEFAULT_RUNNING_REQUESTS,
    show_default=True,
    help="Most requests in one step.",
)
@click.option(
    "--simulate", "row", type=int, metavar="ROW", help="Run the step simulation for this row as well."
)
@click.option("--all", "everything", is_flag=True, help="Show every shape and every rejection.")
@prices_option
@output_option
def size_command(
    model: ModelOption,
    ttft_ms: float | None,
    tpot_ms: float | None,
    percentile: int,
    input_tokens: int | None,
    input_p90: int | None,
    input_histogram: Path | None,
    output_tokens: int | None,
    output_p90: int | None,
    output_histogram: Path | None,
    rps: float,
    cv: float,
    engine: str | None,
    engine_version: str | None,
    precisions: tuple[str, ...],
    kv_precision: str,
    names: tuple[str, ...],
    mig: str,
    tp: tuple[int, ...],
    max_model_len: int | None,
    max_running: int,
    row: int | None,
    everything: bool,
    prices: Prices,
    fmt: str,
) -> None:
    """Rank the GPUs and MIG slices that serve a model within its objectives, from the cheapest.

    \b
    tangram size --model llama-3.1-8b --ttft-ms 500 --tpot-ms 40 --rps 4
    tangram size --model ./checkpoint --tpot-ms 30 --input 4000 --output 500 --sku h100-80gb-sxm --all
    """
    prompts = lengths_given("input", INPUT_TOKENS, input_tokens, input_p90, input_histogram)
    answers = lengths_given("output", OUTPUT_TOKENS, output_tokens, output_p90, output_histogram)
    try:
        request = SizingRequest(
            input_tokens=prompts,
            output_tokens=answers,
            rps=rps,
            ttft_ms=ttft_ms,
            tpot_ms=tpot_ms,
            percentile=percentile,
            cv=cv,
            engine=engine,
            engine_version=engine_version,
            kv_precision=kv_precision,
            max_model_len=max_model_len,
            max_running=max_running,
        )
    except InputError as error:  # every field of a request is a flag
        raise InputError(f"--{error.field}", error.problem) from error
    architecture: Architecture = read_model(model)
    found = size(architecture, request, prices, chosen(architecture, names, precisions, tp, mig))
    simulation = None if row is None else simulated(found, row)
    if fmt != "table":
        document(sizing_document(architecture, found, simulation), fmt)
        return
    show(architecture, found, prices, everything=everything)
    if simulation is not None:
        show_simulated(found, simulation)
