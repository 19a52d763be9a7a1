"""`tangram explain-memory`: the memory of one GPU or slice by use, and how many requests fit."""

import click

from tangram.capacity.memory.engine_buffers import UTILISATION, EngineSettings
from tangram.capacity.memory.relief import ReplicaSetup, reliefs
from tangram.catalog import Architecture, InputError
from tangram.catalog.lookup import gpu_of_name
from tangram.catalog.models.precision import kv_bytes, precision
from tangram.cli.explain_memory.account import MemoryAccount
from tangram.cli.explain_memory.document import account_document
from tangram.cli.explain_memory.table import show_account
from tangram.cli.options.model import ModelOption, model_options, read_model
from tangram.cli.output import document, output_option
from tangram.fleet import DEFAULT_RUNNING_REQUESTS, WHOLE_GPU

# The option of each field that an error of the memory model names.
_FLAGS = {
    "max_model_len": "--max-model-len",
    "max_running": "--max-num-seqs",
    "max_batched_tokens": "--max-num-batched-tokens",
    "block_size": "--block-size",
    "utilisation": "--gpu-memory-utilization",
    "tensor parallel": "--tp",
    "precision": "--weights",
}


@click.command(name="explain-memory")
@model_options()
@click.option("--sku", required=True, help="GPU model; `tangram gpus` lists them.")
@click.option(
    "--profile",
    help="MIG profile of a slice, such as 1g.10gb; `tangram mig` lists them.  [default: whole GPU]",
)
@click.option("--tp", default=1, help="Tensor parallelism: GPUs per replica.")
@click.option(
    "--weights",
    help="Precision of the weights: fp8, int4 ...  [default: that of the checkpoint; bf16 if it is fp32]",
)
@click.option("--kv", default="bf16", help="Precision of the KV cache: bf16, fp16 or fp8.")
@click.option(
    "--max-model-len", type=int, help="Tokens of the longest request.  [default: the model's context length]"
)
@click.option(
    "--max-num-seqs", default=DEFAULT_RUNNING_REQUESTS, help="Largest number of requests in one step."
)
@click.option(
    "--max-num-batched-tokens", type=int, help="Tokens in one step.  [default: by the number of SMs]"
)
@click.option(
    "--gpu-memory-utilization", default=UTILISATION, help="Share of the memory that the engine uses."
)
@click.option("--block-size", default=16, help="Tokens per block of the KV cache.")
@click.option("--input", "input_tokens", type=int, help="Input (prompt) tokens.  [default: 1024]")
@click.option("--output", "output_tokens", type=int, help="Output (answer) tokens.  [default: 256]")
@output_option
def explain_memory(
    model: ModelOption,
    sku: str,
    profile: str | None,
    tp: int,
    weights: str | None,
    kv: str,
    max_model_len: int | None,
    max_num_seqs: int,
    max_num_batched_tokens: int | None,
    gpu_memory_utilization: float,
    block_size: int,
    input_tokens: int | None,
    output_tokens: int | None,
    fmt: str,
) -> None:
    """Show how a replica uses the memory of one GPU or slice, and how many requests fit.

    \b
    tangram explain-memory --model llama-3.1-8b --sku H100-80GB-SXM
    tangram explain-memory --model ./checkpoint --sku H100-80GB-SXM --profile 1g.20gb --weights fp8
    """
    architecture = read_model(model)
    board, slice_ = _hardware(sku, profile, tp)
    weight_format = precision(weights or architecture.served_precision, "--weights").name
    kv_bytes(kv, "--kv")
    length = _length(architecture, max_model_len)
    request = _request(length, input_tokens, output_tokens)
    try:
        limits = EngineSettings(
            length, max_num_seqs, gpu_memory_utilization, max_num_batched_tokens, block_size
        )
        _check_steps(limits)
        replica = ReplicaSetup(architecture, board, slice_, weight_format, kv, tp, limits)
        budget = replica.budget()
    except InputError as error:
        raise InputError(_FLAGS.get(error.field, error.field), error.problem) from error
    changes = () if budget.fits else reliefs(replica, shortest=sum(request))
    account = MemoryAccount(replica, budget, request, changes)
    if fmt == "table":
        show_account(account)
    else:
        document(account_document(account), fmt)


def _hardware(sku: str, profile: str | None, tp: int) -> tuple[str, str]:
    board = gpu_of_name(sku, "--sku")
    if profile is None or profile == WHOLE_GPU:
        return board.sku, WHOLE_GPU
    profiles = {facts.name: facts for facts in board.profiles}
    if not profiles:
        raise InputError("--profile", f"{board.sku} does not support MIG")
    if profile not in profiles:
        raise InputError("--profile", f"{board.sku} has no {profile!r}; it has {', '.join(profiles)}")
    if profiles[profile].memory_mib is None:
        raise InputError("--profile", f"no source states how much memory {profile} of {board.sku} has")
    if tp > 1:
        raise InputError(
            "--profile", f"MIG slices have no peer-to-peer links: they cannot serve with --tp {tp}"
        )
    return board.sku, profile


def _length(architecture: Architecture, requested: int | None) -> int:
    longest = architecture.max_position_embeddings
    if requested is not None and requested > longest:
        raise InputError(
            "--max-model-len", f"{requested} is beyond the {longest} tokens of context of {architecture.name}"
        )
    if requested is not None and requested < 2:
        raise InputError(
            "--max-model-len", f"must be at least 2, one token of input and one of output, not {requested}"
        )
    return longest if requested is None else requested


def _request(longest: int, input_tokens: int | None, output_tokens: int | None) -> tuple[int, int]:
    """Return the tokens of prompt and answer. Only defaults are cut to the longest request."""
    for flag, value in (("--input", input_tokens), ("--output", output_tokens)):
        if value is not None and value < 1:
            raise InputError(flag, f"must be at least 1, not {value}")
    prompt = input_tokens or max(1, min(1024, longest - (output_tokens or 256)))
    answer = output_tokens or max(1, min(256, longest - prompt))
    if prompt + answer > longest:
        flag = "--output" if input_tokens is None else "--input"
        raise InputError(flag, f"{prompt} + {answer} tokens are longer than the longest request, {longest}")
    return prompt, answer


def _check_steps(limits: EngineSettings) -> None:
    tokens = limits.max_batched_tokens
    if tokens is not None and tokens < limits.max_running:
        raise InputError(
            "--max-num-batched-tokens",
            f"{tokens} is below --max-num-seqs {limits.max_running}: each request needs a token",
        )
