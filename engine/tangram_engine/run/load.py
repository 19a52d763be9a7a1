"""From a configuration to a warm runner: device, dtype, weights, memory, and the largest steps once."""

import logging
import time
from dataclasses import dataclass

import torch

from tangram_engine.checkpoint import Checkpoint, DecoderSpec, read_checkpoint, read_shapes
from tangram_engine.checkpoint.errors import invalid
from tangram_engine.config import DUMMY, EngineConfig
from tangram_engine.kernels.ops import Ops, kernel_ops, reference_ops, use_kernels
from tangram_engine.messages import EngineInfo
from tangram_engine.models import (
    Decoder,
    Weights,
    dummy_source,
    in_place,
    load_weights,
    quantized_on_load,
)
from tangram_engine.models.rope import Rope
from tangram_engine.models.weights import MakeProjection, assemble
from tangram_engine.run import host
from tangram_engine.run.attention.paged import PagedAttention
from tangram_engine.run.attention.reference import TorchAttention
from tangram_engine.run.device import choose_dtype, is_out_of_memory, limit_threads, open_device
from tangram_engine.run.ladder import CPU_STEP, captured_sizes, step_tokens
from tangram_engine.run.memory import (
    MIB,
    BufferSizes,
    OutOfMemory,
    check_weights,
    count_blocks,
    cpu_pool_bytes,
    cuda_pool_bytes,
    largest_model_len,
    read_bytes,
)
from tangram_engine.run.rows import DeviceRows
from tangram_engine.run.runner import Runner
from tangram_engine.run.sizing import DeviceMemory, SizingTrial, measured_pool_bytes
from tangram_engine.run.speed import DeviceSpeed, measure_speed, predicted_tokens_per_second
from tangram_engine.sample.params import MAX_LOGPROBS, SamplingParams
from tangram_engine.sample.sampler import Sampler
from tangram_engine.schedule import BatchRow, Request, SchedulerLimits, Sequence

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is ready to step."""

    runner: Runner
    limits: SchedulerLimits
    info: EngineInfo


@dataclass(frozen=True, slots=True)
class _LoadPlan:
    """What is decided before anything is loaded."""

    config: EngineConfig
    checkpoint: Checkpoint
    device: torch.device
    memory: DeviceMemory | None  # of the device; None on a CPU
    ops: Ops | None  # the kernels; None: plain torch, whose attention plans each step on the host
    limits: SchedulerLimits
    buffers: BufferSizes
    available: int  # bytes for weights and all else

    @property
    def captured_sizes(self) -> tuple[int, ...]:
        """Batch sizes whose decode step is captured."""
        return captured_sizes(self.limits.max_num_seqs) if self.ops is not None else ()


def load(config: EngineConfig, memory: DeviceMemory | None = None, ops: Ops | None = None) -> Loaded:
    """Load, size the KV pool and warm up. Raises CheckpointError, UnusableDevice or OutOfMemory.

    `memory`: of the device, which the pool is to fill; by default the CUDA runtime's on a GPU, none on a CPU.
    `ops`: compute on device rows through these, and record decode steps; by default the kernels, where the
    device supports them. Without, attention plans each step on the host.
    """
    begin = time.perf_counter()
    plan = _plan(config, memory, ops)
    limits, buffers = plan.limits, plan.buffers
    check_weights(buffers.weights, plan.available)
    speed = _speed(plan)
    try:
        decoder = Decoder(buffers.spec, _weights(plan))
        loaded = time.perf_counter()
        runner = _runner(plan, decoder)
        num_blocks = _allocate_pool(plan, runner)
        # On a CPU, memory is committed when it is touched: long contexts can wait for a request that has one.
        context = limits.max_model_len if plan.memory is not None else config.block_size
        warm_up(runner, limits, config.block_size, context)
        if sizes := plan.captured_sizes:
            runner.use(runner.capture(sizes))
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(_out_of_memory(plan)) from error
    info = EngineInfo(
        block_size=config.block_size,
        num_blocks=num_blocks,
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        vocab_size=buffers.spec.vocab_size,
        dtype=str(buffers.dtype).removeprefix("torch."),
        device=str(plan.device),
        load_seconds=loaded - begin,
        warmup_seconds=time.perf_counter() - loaded,
        read_bandwidth=speed.read_bandwidth if speed else None,
        gemm_flops=speed.gemm_flops if speed else None,
        quantize=config.quantize,
    )
    return Loaded(runner, limits, info)


def _plan(config: EngineConfig, memory: DeviceMemory | None, ops: Ops | None) -> _LoadPlan:
    """Open the device and read the configuration files, but no weights. See `load`."""
    device = open_device(config.device)
    if device.type == "cpu":
        limit_threads()
    elif memory is None:
        memory = DeviceMemory()
    if ops is None and use_kernels(device):
        ops = kernel_ops()
    checkpoint = read_shapes(config.model) if config.load_format == DUMMY else read_checkpoint(config.model)
    spec = checkpoint.spec
    dtype = choose_dtype(config.dtype, spec.dtype, device, quantized=config.quantize is not None)
    limits = _limits(config, spec, device)
    buffers = BufferSizes(
        spec,
        dtype,
        config.block_size,
        limits.max_num_seqs,
        limits.max_num_batched_tokens,
        kernels=ops is not None,
        form=config.quantize if device.type != "cpu" else None,
    )
    available = _available_bytes(config, memory)
    return _LoadPlan(config, checkpoint, device, memory, ops, limits, buffers, available)


def _runner(plan: _LoadPlan, decoder: Decoder) -> Runner:
    """The runner with all that it keeps beside the weights, but without a KV pool."""
    limits, block_size, device, ops = plan.limits, plan.config.block_size, plan.device, plan.ops
    spec, dtype, context = plan.buffers.spec, plan.buffers.dtype, limits.max_model_len
    rows = DeviceRows(limits.max_num_seqs, context, block_size, spec.vocab_size, device, plan.config.seed)
    if ops is not None:
        attention = PagedAttention(spec, rows.tables, 0, block_size, dtype, context, ops)
        return Runner(decoder, attention, rows, ops.sample)
    rope = Rope(spec, context, dtype, device)
    torch_attention = TorchAttention(spec, rope, 0, block_size, dtype, limits.max_num_seqs)
    return Runner(decoder, torch_attention, rows, Sampler(spec.vocab_size, device))


def warm_up(runner: Runner, limits: SchedulerLimits, block_size: int, context: int) -> None:
    """Run the largest decode, the most tokens of prompts, the same as last chunks of longer ones, and both.

    Contexts have up to `context` tokens. Tokens are sampled with the most expensive parameters.
    Everything lands in block 0, which no request owns.
    """
    sequences, budget = limits.max_num_seqs, limits.max_num_batched_tokens
    longest = min(budget, limits.max_model_len - 1)
    context = min(context, limits.max_model_len)
    end = max(context, longest)
    # Where some rows ask for log-probabilities and one does not, the logits of the others are copied first.
    # On a CPU, counts of tokens commit memory when a row is penalised: one row is enough.
    penalised = sequences if runner.device.type == "cuda" else 1
    decoding = [
        BatchRow(_dummy(context, block_size, slot, slot < penalised, logprobs=slot > 0), context - 1, 1)
        for slot in range(sequences)
    ]

    def prompts(tokens: int, slot: int, past: bool) -> list[BatchRow]:
        rows = []
        for index in range(slot, sequences):
            length = min(longest, tokens)
            tokens -= length
            if length:
                sequence = _dummy(end, block_size, index, penalised=False, logprobs=True)
                rows.append(BatchRow(sequence, end - length if past else 0, length))
        return rows

    with torch.inference_mode():
        runner.launch(decoding).result()
        whole = prompts(budget, 0, past=False)
        runner.launch(whole).result()
        if end > longest:
            runner.launch(prompts(budget, 0, past=True)).result()
        decodes = max(0, min(sequences, budget - 1) - len(whole))
        runner.launch([*decoding[:decodes], *prompts(budget - decodes, decodes, past=True)]).result()


def _dummy(tokens: int, block_size: int, slot: int, penalised: bool, logprobs: bool) -> Sequence:
    params = SamplingParams(
        max_tokens=1,
        top_p=0.5,
        presence_penalty=1.0 if penalised else 0.0,
        logprobs=MAX_LOGPROBS if logprobs else None,
    )
    sequence = Sequence(Request("warm-up", (0,) * tokens, params, arrival=0.0))
    sequence.table, sequence.slot = [0] * -(-tokens // block_size), slot
    return sequence


def _allocate_pool(plan: _LoadPlan, runner: Runner) -> int:
    """Give the attention its pool; the number of blocks.

    All else is allocated by now, and at its final size. Raises OutOfMemory.
    """
    config, buffers, sizes = plan.config, plan.buffers, plan.captured_sizes
    pool_bytes, grows, context = config.kv_cache_bytes, None, plan.limits.max_model_len
    if pool_bytes is None and plan.memory is not None:
        trial = SizingTrial(
            allocate=runner.allocate,
            run_largest_steps=lambda: warm_up(runner, plan.limits, config.block_size, context),
            capture=(lambda: runner.capture(sizes)) if sizes else None,
        )
        pool_bytes = measured_pool_bytes(plan.memory, trial, config.gpu_memory_utilization)
        pool_bytes -= buffers.per_block if buffers.kernels else 0  # the padding row's
        grows = buffers.kept  # what a shorter context leaves of it is the pool's
    elif pool_bytes is None:
        pool_bytes = cpu_pool_bytes(host.memory_limit_bytes())
    num_blocks = count_blocks(pool_bytes, buffers.per_block, config.block_size, context, grows)
    runner.allocate(num_blocks)
    return num_blocks


def _weights(plan: _LoadPlan) -> Weights:
    config, spec, dtype, device = plan.config, plan.checkpoint.spec, plan.buffers.dtype, plan.device
    ops = plan.ops or reference_ops()
    make: MakeProjection = in_place
    if config.quantize is not None:
        make = quantized_on_load(spec, config.quantize, dtype, device)
    if config.load_format != DUMMY:
        return load_weights(plan.checkpoint, dtype, device, ops, make)
    logger.warning("--load-format dummy: the weights are random, and so is every answer; for benchmarks only")
    return assemble(spec, dummy_source(spec, dtype, device, config.seed), dtype, device, ops, make)


def _available_bytes(config: EngineConfig, memory: DeviceMemory | None) -> int:
    """Memory that weights and all else may use. On a GPU, CUDA's context and other processes have theirs."""
    if memory is None:
        return host.memory_limit_bytes()
    free, total = memory.free_and_total()
    return cuda_pool_bytes(free, total, config.gpu_memory_utilization, 0)


def _speed(plan: _LoadPlan) -> DeviceSpeed | None:
    """Measure the device before anything fills it, and predict what one request alone can get of it."""
    if plan.device.type == "cpu" or plan.memory is None:
        return None
    buffers = plan.buffers
    speed = measure_speed(plan.memory.free_and_total()[0], buffers.dtype, plan.device)
    plan.memory.trim()
    read = read_bytes(buffers.spec, buffers.dtype, buffers.form)
    logger.info(
        "one request alone gets %.0f tokens/s at most: each token reads %.2f GB of weights",
        predicted_tokens_per_second(read, speed), read / 1e9,
    )  # fmt: skip
    return speed


def _out_of_memory(plan: _LoadPlan) -> str:
    """Which context would fit, where there is not even room for the buffers. By formula, hence "about"."""
    buffers, max_model_len = plan.buffers, plan.limits.max_model_len

    def needed(length: int) -> int:
        pool = -(-length // buffers.block_size) * buffers.per_block
        return buffers.weights + pool + buffers.kept(length) + buffers.step(length)

    largest = largest_model_len(plan.available, max_model_len, needed)
    advice = "lower --max-num-batched-tokens or --max-num-seqs, or use a larger device or slice"
    if 0 < largest < max_model_len:
        advice = f"the largest workable max_model_len is about {largest}; or {advice}"
    return (
        f"weights and the largest step ({buffers.step_tokens} tokens, {buffers.max_num_seqs} sequences, "
        f"max_model_len {max_model_len}) do not fit into {plan.available / MIB:.0f} MiB: {advice}"
    )


def _limits(config: EngineConfig, spec: DecoderSpec, device: torch.device) -> SchedulerLimits:
    longest = spec.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > longest:
        raise invalid(f"max_model_len {config.max_model_len} is more than max_position_embeddings, {longest}")
    budget = CPU_STEP
    if device.type != "cpu":
        budget = step_tokens(torch.cuda.get_device_properties(device).multi_processor_count)
    return SchedulerLimits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens or max(budget, config.max_num_seqs),
        max_model_len=config.max_model_len or longest,
        eos_token_ids=frozenset(spec.eos_token_ids),
    )
