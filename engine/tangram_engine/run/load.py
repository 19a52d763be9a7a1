"""From a configuration to a warm runner: device, dtype, weights, memory, and the largest steps once."""

import time
from dataclasses import dataclass

import torch

from tangram_engine.checkpoint import CheckpointError, ModelSpec, Reason, read_checkpoint
from tangram_engine.config import EngineConfig
from tangram_engine.kernels.ops import reference_ops
from tangram_engine.models import Decoder, load_weights
from tangram_engine.models.rope import Rope
from tangram_engine.run import host
from tangram_engine.run.attention import TorchAttention
from tangram_engine.run.memory import (
    OutOfMemory,
    block_bytes,
    check_weights,
    count_blocks,
    cpu_pool_bytes,
    cuda_pool_bytes,
    weight_bytes,
)
from tangram_engine.run.runner import Runner
from tangram_engine.sample.params import MAX_LOGPROBS, SamplingParams
from tangram_engine.sample.sampler import Sampler
from tangram_engine.schedule import Limits, Request, Row, Sequence

DEFAULT_BUDGET = {"cpu": 512, "cuda": 4096}  # tokens per step
STORED = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is ready to step."""

    runner: Runner
    spec: ModelSpec
    limits: Limits
    num_blocks: int
    dtype: torch.dtype
    device: torch.device
    load_seconds: float
    warmup_seconds: float


def load(config: EngineConfig) -> Loaded:
    """Load, size the KV pool and warm up. Raises CheckpointError or OutOfMemory."""
    begin = time.perf_counter()
    device = _device(config)
    if device.type == "cpu":
        torch.set_num_threads(min(torch.get_num_threads(), host.threads(host.cpu_limit())))
    checkpoint = read_checkpoint(config.model)
    spec = checkpoint.spec
    dtype = _dtype(config, spec, device)
    limits = _limits(config, spec, device)
    check_weights(sum(weight_bytes(spec, dtype).values()), _available_bytes(config, device))
    try:
        decoder = Decoder(spec, load_weights(checkpoint, dtype, device), reference_ops())
        loaded = time.perf_counter()
        runner, num_blocks = _with_pool(config, decoder, limits, dtype, device)
        # On a CPU, memory is committed when it is touched: long contexts can wait until somebody has one.
        context = limits.max_model_len if device.type == "cuda" else config.block_size
        warm_up(runner, limits, config.block_size, context)
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(f"the weights and the largest step do not fit: {error}") from error
    warm = time.perf_counter()
    return Loaded(runner, spec, limits, num_blocks, dtype, device, loaded - begin, warm - loaded)


def warm_up(runner: Runner, limits: Limits, block_size: int, context: int) -> None:
    """Run the largest decode, the largest prefill and the last chunk of a longer one, up to `context` tokens.

    After the decode, tokens are drawn in the most expensive way. It comes first because attention keeps what
    it collects for it: a prefill finds that much less memory. Everything lands in block 0, which nobody owns.
    """
    longest = min(limits.max_num_batched_tokens, limits.max_model_len - 1)
    context = min(context, limits.max_model_len)
    end = max(context, longest)
    sequence = _dummy(end, block_size)
    with torch.inference_mode():
        one = _dummy(context, block_size)
        _, logits = runner.forward([Row(one, context - 1, 1)] * limits.max_num_seqs)
        sampler = Sampler(logits.shape[-1], 0, runner.device)
        sampler.sample([_dummy(1, block_size)] * limits.max_num_seqs, logits)
        del logits, sampler
        runner.forward([Row(sequence, 0, longest)])
        if end > longest:
            runner.forward([Row(sequence, end - longest, longest)])


def _dummy(tokens: int, block_size: int) -> Sequence:
    params = SamplingParams(max_tokens=1, top_p=0.5, presence_penalty=1.0, logprobs=MAX_LOGPROBS)
    sequence = Sequence(Request("warm-up", (0,) * tokens, params, arrival=0.0))
    sequence.table = [0] * -(-tokens // block_size)
    return sequence


def _with_pool(
    config: EngineConfig, decoder: Decoder, limits: Limits, dtype: torch.dtype, device: torch.device
) -> tuple[Runner, int]:
    rope = Rope(decoder.spec, limits.max_model_len, dtype, device)

    def runner(num_blocks: int) -> Runner:
        attention = TorchAttention(decoder.spec, rope, num_blocks, config.block_size, dtype)
        return Runner(decoder, attention, device)

    pool_bytes = config.kv_cache_bytes
    if pool_bytes is None and device.type == "cuda":
        activation = _activation_bytes(runner(1), limits, config.block_size)
        pool_bytes = cuda_pool_bytes(torch.cuda.mem_get_info, config.gpu_memory_utilization, activation)
    elif pool_bytes is None:
        pool_bytes = cpu_pool_bytes(host.memory_limit_bytes())
    per_block = block_bytes(decoder.spec, config.block_size, dtype)
    num_blocks = count_blocks(pool_bytes, per_block, config.block_size, limits.max_model_len)
    return runner(num_blocks), num_blocks


def _activation_bytes(runner: Runner, limits: Limits, block_size: int) -> int:
    """Peak of the largest step above what is allocated now, measured with a pool of one block."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    warm_up(runner, limits, block_size, limits.max_model_len)
    peak = torch.cuda.max_memory_allocated() - before
    torch.cuda.empty_cache()
    return peak


def _available_bytes(config: EngineConfig, device: torch.device) -> int:
    """Memory that this process may use in all, whatever is free of it now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info()[1] * config.gpu_memory_utilization)
    return host.memory_limit_bytes()


def _device(config: EngineConfig) -> torch.device:
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(config.device)


def _dtype(config: EngineConfig, spec: ModelSpec, device: torch.device) -> torch.dtype:
    if config.dtype != "auto":
        dtype: torch.dtype = getattr(torch, config.dtype)
        return dtype
    return torch.float32 if device.type == "cpu" else STORED[spec.dtype]


def _limits(config: EngineConfig, spec: ModelSpec, device: torch.device) -> Limits:
    longest = spec.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > longest:
        raise CheckpointError(
            Reason.INVALID,
            f"max_model_len {config.max_model_len} is more than max_position_embeddings, {longest}",
        )
    budget = config.max_num_batched_tokens or max(DEFAULT_BUDGET[device.type], config.max_num_seqs)
    return Limits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=config.max_model_len or longest,
        eos_token_ids=frozenset(spec.eos_token_ids),
    )
