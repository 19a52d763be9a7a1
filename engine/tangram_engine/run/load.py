"""From a configuration to a warm runner: device, dtype, weights, memory, and the largest steps once."""

import logging
import time
from dataclasses import dataclass

import torch

from tangram_engine.checkpoint import (
    Checkpoint,
    CheckpointError,
    ModelSpec,
    Reason,
    read_checkpoint,
    read_shapes,
)
from tangram_engine.config import DUMMY, EngineConfig
from tangram_engine.kernels.ops import reference_ops
from tangram_engine.models import Decoder, Weights, dummy_weights, load_weights
from tangram_engine.models.rope import Rope
from tangram_engine.run import host
from tangram_engine.run.attention import TorchAttention
from tangram_engine.run.ladder import CPU_STEP, step_tokens
from tangram_engine.run.memory import (
    OutOfMemory,
    block_bytes,
    check_weights,
    count_blocks,
    cpu_pool_bytes,
    weight_bytes,
)
from tangram_engine.run.runner import Runner
from tangram_engine.run.sizing import CudaMemory, DeviceMemory, SizingTrial, measured_pool_bytes
from tangram_engine.sample.params import MAX_LOGPROBS, SamplingParams
from tangram_engine.sample.sampler import Sampler
from tangram_engine.schedule import Limits, Request, Row, Sequence

logger = logging.getLogger(__name__)

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


def load(config: EngineConfig, memory: DeviceMemory | None = None) -> Loaded:
    """Load, size the KV pool and warm up. Raises CheckpointError or OutOfMemory.

    `memory`: of the device, which the pool is to fill; by default the CUDA runtime's on a GPU, none on a CPU.
    """
    begin = time.perf_counter()
    device = _device(config)
    if memory is None and device.type == "cuda":
        memory = CudaMemory()
    if device.type == "cpu":
        torch.set_num_threads(min(torch.get_num_threads(), host.threads(host.cpu_limit())))
    checkpoint = read_shapes(config.model) if config.load_format == DUMMY else read_checkpoint(config.model)
    spec = checkpoint.spec
    dtype = _dtype(config, spec, device)
    limits = _limits(config, spec, device)
    check_weights(sum(weight_bytes(spec, dtype).values()), _available_bytes(config, device))
    try:
        decoder = Decoder(spec, _weights(config, checkpoint, dtype, device), reference_ops())
        loaded = time.perf_counter()
        rope = Rope(spec, limits.max_model_len, dtype, device)
        attention = TorchAttention(spec, rope, 0, config.block_size, dtype, limits.max_num_seqs)
        runner = Runner(decoder, attention, device)
        per_block = block_bytes(spec, config.block_size, dtype)
        num_blocks = allocate_pool(config, runner, limits, per_block, memory)
        # On a CPU, memory is committed when it is touched: long contexts can wait until somebody has one.
        context = limits.max_model_len if memory is not None else config.block_size
        warm_up(runner, limits, config.block_size, context)
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(f"the weights and the largest step do not fit: {error}") from error
    warm = time.perf_counter()
    return Loaded(runner, spec, limits, num_blocks, dtype, device, loaded - begin, warm - loaded)


def warm_up(runner: Runner, limits: Limits, block_size: int, context: int) -> None:
    """Run the largest decode, the largest prefill, the last chunk of a longer one, and a step of both.

    Contexts have up to `context` tokens. After the decode, tokens are drawn in the most expensive way.
    Everything lands in block 0, which no request owns.
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
        decodes = min(limits.max_num_seqs, limits.max_num_batched_tokens - 1) - 1
        chunk = min(longest, limits.max_num_batched_tokens - decodes)
        runner.forward([Row(one, context - 1, 1)] * decodes + [Row(sequence, end - chunk, chunk)])


def _dummy(tokens: int, block_size: int) -> Sequence:
    params = SamplingParams(max_tokens=1, top_p=0.5, presence_penalty=1.0, logprobs=MAX_LOGPROBS)
    sequence = Sequence(Request("warm-up", (0,) * tokens, params, arrival=0.0))
    sequence.table = [0] * -(-tokens // block_size)
    return sequence


def allocate_pool(
    config: EngineConfig, runner: Runner, limits: Limits, per_block: int, memory: DeviceMemory | None
) -> int:
    """Give the attention its pool; the number of blocks, each of `per_block` bytes. `memory`: None on a CPU.

    All else is allocated by now, and at its final size. Raises OutOfMemory.
    """
    pool_bytes = config.kv_cache_bytes
    if pool_bytes is None and memory is not None:
        trial = SizingTrial(
            allocate=runner.attention.resize,
            run_largest_steps=lambda: warm_up(runner, limits, config.block_size, limits.max_model_len),
        )
        pool_bytes = measured_pool_bytes(memory, trial, config.gpu_memory_utilization)
    elif pool_bytes is None:
        pool_bytes = cpu_pool_bytes(host.memory_limit_bytes())
    num_blocks = count_blocks(pool_bytes, per_block, config.block_size, limits.max_model_len)
    runner.attention.resize(num_blocks)
    return num_blocks


def _weights(
    config: EngineConfig, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device
) -> Weights:
    if config.load_format != DUMMY:
        return load_weights(checkpoint, dtype, device)
    logger.warning("--load-format dummy: the weights are random, and so is every answer; for benchmarks only")
    return dummy_weights(checkpoint.spec, dtype, device, config.seed)


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


def _step_tokens(device: torch.device) -> int:
    if device.type == "cpu":
        return CPU_STEP
    return step_tokens(torch.cuda.get_device_properties(device).multi_processor_count)


def _limits(config: EngineConfig, spec: ModelSpec, device: torch.device) -> Limits:
    longest = spec.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > longest:
        raise CheckpointError(
            Reason.INVALID,
            f"max_model_len {config.max_model_len} is more than max_position_embeddings, {longest}",
        )
    budget = config.max_num_batched_tokens or max(_step_tokens(device), config.max_num_seqs)
    return Limits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=config.max_model_len or longest,
        eos_token_ids=frozenset(spec.eos_token_ids),
    )
