"""`tangram explain-memory`: where the memory of one replica goes, and what is left for requests."""

import click

from tangram.capacity.memory.engine_buffers import UTILISATION, EngineSettings
from tangram.capacity.memory.relief import ReplicaSetup, reliefs
from tangram.catalog import Architecture, InputError
from tangram.catalog.lookup import find_gpu, nearest
from tangram.catalog.models.precision import kv_bytes, precision
from tangram.cli.explain_memory.account import MemoryAccount, account_document, show_account
from tangram.cli.options.model import ModelOption, model_options, read_model
from tangram.cli.output import document, output_option
from tangram.fleet import DEFAULT_RUNNING_REQUESTS, WHOLE_GPU

# Fields of errors from below, as they are called here.
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
    "--profile", help="MIG slice of it, as 1g.10gb; `tangram mig` lists them.  [default: whole GPU]"
)
@click.option("--tp", type=int, default=1, show_default=True, help="GPUs that share the model.")
@click.option(
    "--weights", help="Format of the weights, as fp8 or int4.  [default: the checkpoint's own, of fp32: bf16]"
)
@click.option("--kv", default="bf16", show_default=True, help="Format of the KV cache: bf16, fp16 or fp8.")
@click.option("--max-model-len", type=int, help="Longest request in tokens.  [default: the model's context]")
@click.option(
    "--max-num-seqs",
    type=int,
    default=DEFAULT_RUNNING_REQUESTS,
    show_default=True,
    help="Most requests in one step.",
)
@click.option("--max-num-batched-tokens", type=int, help="Tokens in one step.  [default: by SMs]")
@click.option("--gpu-memory-utilization", type=float, default=UTILISATION, show_default=True, help="Share.")
@click.option("--block-size", type=int, default=16, show_default=True, help="Tokens per block of the cache.")
@click.option("--input", "input_tokens", type=int, help="Prompt tokens of a request.  [default: 1024]")
@click.option("--output", "output_tokens", type=int, help="Answer tokens of a request.  [default: 256]")
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
    """Show where the memory of one GPU or slice goes, and how many requests the rest holds.

    \b
    tangram explain-memory --model llama-3.1-8b --sku H100-80GB-SXM
    tangram explain-memory --model ./checkpoint --sku H100-80GB-SXM --profile 1g.20gb --weights fp8
    """
    architecture = read_model(model)
    board, slice_ = _hardware(sku, profile, tp)
    form = precision(weights or architecture.served_precision, "--weights").name
    kv_bytes(kv, "--kv")
    length = _length(architecture, max_model_len)
    request = _request(length, input_tokens, output_tokens)
    try:
        limits = EngineSettings(
            length, max_num_seqs, gpu_memory_utilization, max_num_batched_tokens, block_size
        )
        _check_steps(limits)
        replica = ReplicaSetup(architecture, board, slice_, form, kv, tp, limits)
        budget = replica.budget()
    except InputError as error:
        raise InputError(_FLAGS.get(error.field, error.field), error.problem) from error
    found = () if budget.fits else reliefs(replica, shortest=sum(request))
    asked = MemoryAccount(replica, budget, request, found)
    if fmt == "table":
        show_account(asked)
    else:
        document(account_document(asked), fmt)


def _hardware(sku: str, profile: str | None, tp: int) -> tuple[str, str]:
    found = find_gpu(sku)
    if found is None:
        raise InputError("--sku", f"no GPU is called {sku!r}{nearest(sku)}; `tangram gpus` lists them")
    if profile is None or profile == WHOLE_GPU:
        return found.sku, WHOLE_GPU
    there = {each.name: each for each in found.profiles}
    if not there:
        raise InputError("--profile", f"{found.sku} cannot be cut into slices")
    if profile not in there:
        raise InputError("--profile", f"{found.sku} has no {profile!r}; it has {', '.join(there)}")
    if there[profile].memory_mib is None:
        raise InputError("--profile", f"nobody has published how much memory {profile} of {found.sku} has")
    if tp > 1:
        raise InputError(
            "--profile", f"slices have no peer-to-peer links, so they cannot serve with --tp {tp}"
        )
    return found.sku, profile


def _length(architecture: Architecture, wanted: int | None) -> int:
    longest = architecture.max_position_embeddings
    if wanted is not None and wanted > longest:
        raise InputError(
            "--max-model-len", f"{wanted} is beyond the {longest} tokens {architecture.name} knows"
        )
    if wanted is not None and wanted < 2:
        raise InputError(
            "--max-model-len", f"must be at least 2, a token of prompt and of answer, not {wanted}"
        )
    return longest if wanted is None else wanted


def _request(longest: int, input_tokens: int | None, output_tokens: int | None) -> tuple[int, int]:
    """Tokens of prompt and answer. What nobody asked for is cut to what fits; what somebody did, is not."""
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
            f"{tokens} is below --max-num-seqs {limits.max_running}: one token each",
        )
