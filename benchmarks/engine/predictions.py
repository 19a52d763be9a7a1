"""How fast a step can be, and how fast it is expected to be, written down before any GPU was at hand.

    python benchmarks/engine/predictions.py                      write predictions.json again
    python benchmarks/engine/predictions.py --table kernels      the bytes and times of docs/engine.md
    python benchmarks/engine/predictions.py --table ceilings|precisions|goals

Two numbers for each row:

    wire        the bytes that must be moved over the measured bandwidth, or the multiplications over the measured
                rate, whichever takes longer; kernels follow each other without a gap. No version is much faster.
    predicted   the same with the assumptions of `ASSUMED`: the share of the bandwidth that a kernel reaches, the time
                between two kernels in a CUDA graph, the time that the host needs for an operation outside of one.

The benchmark prints measured / predicted and flags rows that are off by more than a quarter. A prediction is not
mended after the measurement: the profile explains the row first.

Needs no torch. Bytes, FLOP and seconds; rates per second. bf16 where nothing else is written.
"""

import argparse
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path

PREDICTIONS = Path(__file__).with_name("predictions.json")
MEASURED = Path(__file__).with_name("measured")  # a folder for each GPU, with what gpu.py wrote there
BATCHES = (1, 64, 256)
CONTEXT = 1024  # tokens in the cache of each row of a decode step, in all rows of the tables
PREFILLS = (1024, 8192)
ACTIVATION_BYTES = 2
LOGIT_BYTES = 4
SMALL_LINEAR_ROWS = 8  # kernels/small_linear.py: up to so many tokens
SPLIT_TOKENS = 256  # kernels/decode_attention.py: one part of a context of up to 8,192 tokens
SAMPLER_GROUP = 256  # kernels/sample.py: tokens that share 16 bytes of maximum, mass and winner
INT4_GEMM_ROWS = 64  # kernels/int4_gemm.py
# kernels/small_linear.py: instructions of its loop for a weight (SASS of sm_90).
INSTRUCTIONS = {"bf16": 1.8, "fp8": 3.2, "int4": 3.3}
ISSUED_PER_CYCLE = 128  # by a multiprocessor, of single threads
OFF = 0.25  # a row further from its prediction than this is explained from the profile


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The sizes of a decoder that bytes and multiplications follow from."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    @property
    def matrices(self) -> dict[str, int]:
        """Parameters of the projections of one layer."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "qkv": (q + 2 * kv) * self.hidden,
            "o": q * self.hidden,
            "gate_up": 2 * self.intermediate * self.hidden,
            "down": self.intermediate * self.hidden,
        }

    @property
    def body(self) -> int:
        """Parameters of all layers' projections."""
        return self.layers * sum(self.matrices.values())

    @property
    def head(self) -> int:
        """Parameters of the last projection, which is read in each step whether it is tied or not."""
        return self.vocabulary * self.hidden

    @property
    def kv_bytes(self) -> int:
        """Bytes of the keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * ACTIVATION_BYTES


LLAMA_8B = DecoderShape("llama-3-8b", 32, 4096, 14336, 32, 8, 128, 128256)
QWEN3_06B = DecoderShape("qwen3-0.6b", 28, 1024, 3072, 16, 8, 128, 151936)
SHAPES = {shape.name: shape for shape in (LLAMA_8B, QWEN3_06B)}


@dataclass(frozen=True, slots=True)
class GpuRates:
    """What one GPU does in a second: data sheet, and where a measurement is at hand, measured."""

    name: str
    spec_bandwidth: float
    spec_gemm: float  # bf16, FLOP, dense
    spec_fp8_gemm: float
    bandwidth: float  # measured device-to-device copy, read and written bytes
    gemm: float  # measured 8192 x 8192 x 8192 product of random bf16 numbers, FLOP
    fp8_gemm: float  # assumed: 1,400 TFLOP/s of 1,979 on the data sheet
    processors: int


# Data sheets of NVIDIA for the SXM boards; measured with PyTorch 2.11 on machines of this project, one run each.
H100 = GpuRates("H100 80GB", 3.35e12, 989e12, 1979e12, 3.0e12, 798e12, 1400e12, 132)
H200 = GpuRates("H200", 4.8e12, 989e12, 1979e12, 4.3e12, 790e12, 1400e12, 132)
GPUS = {gpu.name: gpu for gpu in (H100, H200)}


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How the projections of the layers are stored. Embedding and head stay bf16 in all formats."""

    name: str
    bytes_per_parameter: float
    multiplies_in: str  # the rate of the matrix product: "gemm" or "fp8_gemm"


# int4: groups of 128 share a 16-bit scale and a 4-bit zero.
FORMATS = {
    "bf16": WeightFormat("bf16", 2.0, "gemm"),
    "fp8": WeightFormat("fp8", 1.0, "fp8_gemm"),
    "int4": WeightFormat("int4", 0.5 + (2 + 0.5) / 128, "gemm"),
}


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What the predictions add to bytes and rates. None of it was measured on this engine."""

    kernel_gap_s: float = 1.3e-6  # between kernels in a CUDA graph: Hazy Research, "No Bubbles", H100, 2025
    eager_op_s: float = 10e-6  # of the host for one torch operation; 600 of them make today's step
    eager_ops_per_layer: int = 19  # counted in models/decoder.py and run/attention/reference.py
    reference_collects: float = (
        16.0  # bytes that decode_attention.reference moves over those of the cache it reads
    )
    collects: float = 3.0  # plain torch reads the keys, writes them side by side and reads them again
    host_step_s: float = 0.1e-3  # scheduling and commit of a step ...
    host_row_s: float = 5e-6  # ... and of one row of it
    library_reads: float = (
        0.85  # share of the bandwidth of cuBLAS with few rows; vLLM on H100: 0.78 for a whole step
    )
    linear_reads: float = 0.92  # of the small linear, bf16
    quantized_reads: float = 0.85  # of the small linear and the int4 product with fewer bytes per row
    attention_reads: float = 0.85  # of decode attention
    other_reads: float = 0.70  # of norms, SiLU, stores and the sampler, once rows fill the GPU
    clock: float = 1.8e9
    issues: float = 0.8  # share of the cycles of the small linear in which instructions are issued
    product: float = 0.85  # of the product's rate at the shapes of layers
    prefill_attention: float = 0.55  # of the same rate: cuDNN on H100, causal, 1k to 8k: 410 to 529 TFLOP/s


ASSUMED = Assumptions()


@dataclass(frozen=True, slots=True)
class KernelCost:
    """One kernel of a decode step. `reads` names the share of the bandwidth that is assumed for it."""

    name: str
    calls: int  # in one step
    bytes: float  # of one call, read and written
    flops: float = 0.0  # of one call
    rate: str = "gemm"
    reads: str = "other_reads"
    launches: int = 1  # of one call
    detour: float = 0.0  # bytes of one call that another implementation would not move
    instructions: float = 0.0  # of single threads, of one call; 0 where they are known not to limit it

    def wire(self, gpu: GpuRates) -> float:
        """Seconds of one call at the measured rates."""
        return max(self.bytes / gpu.bandwidth, self.flops / getattr(gpu, self.rate))

    def predicted(self, gpu: GpuRates) -> float:
        """Seconds of one call in a CUDA graph, with the gap after it."""
        memory = (self.bytes + self.detour) / gpu.bandwidth / getattr(ASSUMED, self.reads)
        cycles = self.instructions / gpu.processors / ISSUED_PER_CYCLE / ASSUMED.issues
        products = self.flops / getattr(gpu, self.rate) / ASSUMED.product
        return self.launches * ASSUMED.kernel_gap_s + max(memory, products, cycles / ASSUMED.clock)


def step_kernels(
    shape: DecoderShape, weights: str, batch: int, context: int, *, own_linear: bool = True
) -> list[KernelCost]:
    """The kernels of one decode step: `batch` rows with `context` tokens each in the cache."""
    c, e, layers = shape.hidden, ACTIVATION_BYTES, shape.layers
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    inner = shape.intermediate
    fused = own_linear and batch <= SMALL_LINEAR_ROWS  # gate and residuals are part of the projections
    scaled = weights == "fp8" and batch > SMALL_LINEAR_ROWS  # models/quantized.py: rows in fp8, too
    widths = {
        "qkv": c + q + 2 * kv,
        "o": q + 2 * c,  # with the residual
        "gate_up": c + (1 if fused else 2) * inner,
        "down": inner + 2 * c,
    }

    def linear(name: str) -> KernelCost:
        parameters = shape.matrices[name]
        moved = parameters * FORMATS[weights].bytes_per_parameter + batch * widths[name] * e
        # models/quantized.py: beyond 64 rows, int4 becomes bf16 first.
        dequantized = weights == "int4" and batch > INT4_GEMM_ROWS
        # kernels/int4_gemm.py: but for gate_up, 64 outputs a program are too few programs: parts are added up.
        parts = weights == "int4" and SMALL_LINEAR_ROWS < batch <= INT4_GEMM_ROWS and name != "gate_up"
        added = scaled and name in ("o", "down")  # the scaled product has no residual
        return KernelCost(
            f"linear {name}", layers, moved, 2 * parameters * batch, FORMATS[weights].multiplies_in,
            _linear_reads(weights, batch, own_linear=own_linear),
            launches=2 if dequantized or parts or added else 1,
            detour=parameters * 4.0 * dequantized + 2.0 * batch * c * e * added,
            instructions=parameters * INSTRUCTIONS[weights] * fused,
        )  # fmt: skip

    splits = -(-(context + 1) // SPLIT_TOKENS)
    partial_results = batch * splits * shape.heads * (shape.head_dim + 1) * 4
    # qkv, a row of cosines and sines, and the cache in; the output, a key and a value out
    attended = batch * ((2 * q + 2 * kv + (context + 1) * 2 * kv) * e + shape.head_dim * 4)
    norms = 1 if scaled else 2 * layers + 1  # rows in fp8 are normalised as they are made
    kernels = [
        KernelCost("look up rows", 1, batch * 5 * 4),  # a row's number, its id and position in and out
        KernelCost("embedding", 1, 2 * batch * c * e),
        KernelCost("rms_norm", norms, 2 * batch * c * e + c * e),
        KernelCost("fp8_rows hidden", 3 * layers * scaled, batch * (2 * c + q) / 3 * (e + 1)),
        linear("qkv"),
        KernelCost("decode_attention", layers, attended, reads="attention_reads"),
        KernelCost("combine splits", layers, partial_results + batch * q * e),
        linear("o"),
        linear("gate_up"),
        KernelCost("silu_mul", layers * (not fused), 3 * batch * inner * e),
        KernelCost("fp8_rows", layers * scaled, batch * inner * (e + 1)),
        linear("down"),
        KernelCost("linear head", 1, shape.head * 2 + batch * (c + shape.vocabulary) * e,
                   2 * shape.head * batch, reads=_linear_reads("bf16", batch, own_linear=own_linear)),
        KernelCost("logits in float32", 1, batch * shape.vocabulary * (e + LOGIT_BYTES)),
        KernelCost("sample", 1, batch * shape.vocabulary * LOGIT_BYTES),
        KernelCost("choose id", 1, batch * -(-shape.vocabulary // SAMPLER_GROUP) * 16),
    ]  # fmt: skip
    return [kernel for kernel in kernels if kernel.calls]


def prompt_kernels(shape: DecoderShape, tokens: int) -> list[KernelCost]:
    """The kernels of a step of prompts that decode steps do without."""
    packed = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    # In, out, and a row of cosines and sines.
    moved = tokens * (2 * packed * ACTIVATION_BYTES + shape.head_dim * 4)
    return [KernelCost("store_kv", shape.layers, moved)]


def _linear_reads(weights: str, batch: int, *, own_linear: bool) -> str:
    if weights == "bf16" or not own_linear:
        return "linear_reads" if own_linear and batch <= SMALL_LINEAR_ROWS else "library_reads"
    return "quantized_reads" if batch <= INT4_GEMM_ROWS else "library_reads"


def ceiling_step(shape: DecoderShape, weights: str, batch: int, tokens: int, gpu: GpuRates) -> float:
    """Seconds of a decode step that reads the weights and `tokens` tokens of keys and values, and nothing else."""
    form = FORMATS[weights]
    total = shape.layers * sum(
        max(n * form.bytes_per_parameter / gpu.bandwidth, 2 * n * batch / getattr(gpu, form.multiplies_in))
        for n in shape.matrices.values()
    )
    total += max(shape.head * 2 / gpu.bandwidth, 2 * shape.head * batch / gpu.gemm)
    return total + tokens * shape.kv_bytes / gpu.bandwidth


def decode_ceiling(
    shape: DecoderShape, weights: str, batch: int, gpu: GpuRates, context: int = CONTEXT
) -> float:
    """Output tokens per second that no version exceeds."""
    return batch / ceiling_step(shape, weights, batch, batch * context, gpu)


def prefill_ceiling(shape: DecoderShape, length: int, gpu: GpuRates) -> float:
    """Prompt tokens per second: projections, and attention to half of the prompt on average."""
    return gpu.gemm / (2 * shape.body + 4 * shape.layers * shape.heads * shape.head_dim * length / 2)


OF_FORMATS = ("linear qkv", "linear o", "linear gate_up", "linear down", "fp8_rows")  # what formats change
# What one call of a launcher launches besides.
SECOND_LAUNCH = {"decode_attention": ("combine splits",), "sample": ("choose id",)}

# The rungs of the ladder, each with what is below it. A rung is a row of the benchmark.
RUNGS = ("eager", "graph", "fused", "linear", "async")


def predicted_step(
    shape: DecoderShape, weights: str, batch: int, gpu: GpuRates, rung: str, context: int = CONTEXT
) -> float:
    """Seconds from one step to the next on that rung."""
    place = RUNGS.index(rung)
    kernels = step_kernels(shape, weights, batch, context, own_linear=place >= RUNGS.index("linear"))
    device = sum(kernel.calls * kernel.predicted(gpu) for kernel in kernels)
    if place < RUNGS.index("fused"):
        collects = ASSUMED.collects if rung == "eager" else ASSUMED.reference_collects
        device += _plain_torch(shape, batch * context, gpu, collects, sum(kernel.calls for kernel in kernels))
    host = ASSUMED.host_step_s + batch * ASSUMED.host_row_s
    if rung == "eager":
        device = max(device, _eager_host(shape))
    return max(device, host) if rung == "async" else device + host


def _plain_torch(
    shape: DecoderShape, tokens: float, gpu: GpuRates, collects: float, fused_calls: int
) -> float:
    """Seconds that the operations of plain torch take beyond the fused kernels, in a graph."""
    more = shape.layers * ASSUMED.eager_ops_per_layer - fused_calls
    copied = (collects - 1) * tokens * shape.kv_bytes
    return more * ASSUMED.kernel_gap_s + copied / gpu.bandwidth / ASSUMED.other_reads


def _eager_host(shape: DecoderShape) -> float:
    return shape.layers * ASSUMED.eager_ops_per_layer * ASSUMED.eager_op_s


def predicted_prefill(shape: DecoderShape, length: int, gpu: GpuRates) -> float:
    """Seconds of a prompt of that length, alone, without a graph."""
    c, e = shape.hidden, ACTIVATION_BYTES
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    products = 2 * shape.body * length / gpu.gemm / ASSUMED.product
    attention = 4 * shape.layers * q * length**2 / 2 / gpu.gemm / ASSUMED.prefill_attention
    moved = shape.layers * length * e * (6 * c + 3 * shape.intermediate + 2 * q + 4 * kv)
    device = products + attention + moved / gpu.bandwidth / ASSUMED.other_reads
    return max(device, _eager_host(shape)) + shape.head * 2 / gpu.bandwidth / ASSUMED.library_reads


@cache
def nano_workload(seed: int = 0) -> tuple[tuple[tuple[int, ...], int], ...]:
    """nano-vllm's `bench.py`: 256 prompts of 100 to 1,024 random ids, and 100 to 1,024 tokens for each.

    The order of the random numbers is that of its source, so prompts and lengths are the same:
    142,827 prompt tokens, 133,966 output tokens.
    """
    chance = random.Random(seed)
    prompts = [tuple(chance.randint(0, 10000) for _ in range(chance.randint(100, 1024))) for _ in range(256)]
    return tuple((prompt, chance.randint(100, 1024)) for prompt in prompts)


def nano_rate(step: Callable[[int, int], float], prefill: Callable[[int], float]) -> float:
    """Output tokens per second of nano-vllm's workload with all requests resident.

    `step` gives the seconds of a decode step by rows and tokens in the cache, `prefill` those of a prompt.
    """
    work = nano_workload()
    seconds = sum(prefill(len(prompt)) for prompt, _ in work)
    for number in range(1, max(count for _, count in work)):
        held = [len(prompt) + number for prompt, count in work if count > number]
        seconds += step(len(held), sum(held))
    return sum(count for _, count in work) / seconds


def nano_ceiling(shape: DecoderShape, gpu: GpuRates) -> float:
    """Output tokens per second of nano-vllm's workload that no version exceeds, bf16."""
    return nano_rate(
        lambda batch, tokens: ceiling_step(shape, "bf16", batch, tokens, gpu),
        lambda length: length / prefill_ceiling(shape, length, gpu),
    )


def predicted_nano(shape: DecoderShape, gpu: GpuRates, rung: str = "async") -> float:
    """The same as predicted; prompts share steps, so one of them costs its part of a step of 4,096 tokens."""
    full = 4096
    per_token = predicted_prefill(shape, full, gpu) / full
    return nano_rate(
        lambda batch, tokens: predicted_step(shape, "bf16", batch, gpu, rung, tokens / batch),
        lambda length: length * per_token,
    )


def serving_rate(
    step: Callable[[int], float], prefill_s: float, batch: int = 256, prompt: int = 1000, output: int = 1000
) -> float:
    """Output tokens per second of `batch` streams that each prefill `prompt` tokens and decode `output`."""
    return output / (prefill_s + output * step(prompt + output // 2) / batch)


@dataclass(frozen=True, slots=True)
class Prediction:
    """One row of the benchmark: `wire` is the limit, `predicted` what the engine should reach."""

    unit: str  # "tok/s", "GB/s", "TFLOP/s", or "us" of one call
    wire: float
    predicted: float


def rows(gpu: GpuRates) -> dict[str, Prediction]:
    """All rows of the benchmark that have a prediction, by name."""
    found = {
        "copy bandwidth": Prediction("GB/s", gpu.spec_bandwidth / 1e9, gpu.bandwidth / 1e9),
        "bf16 product": Prediction("TFLOP/s", gpu.spec_gemm / 1e12, gpu.gemm / 1e12),
        "fp8 scaled product": Prediction("TFLOP/s", gpu.spec_fp8_gemm / 1e12, gpu.fp8_gemm / 1e12),
        "kernel in a CUDA graph": Prediction("us", 1e6 * ASSUMED.kernel_gap_s, 1e6 * ASSUMED.kernel_gap_s),
    }
    for shape, weights, batch in ((s, w, b) for s in SHAPES.values() for w in FORMATS for b in BATCHES):
        wire = decode_ceiling(shape, weights, batch, gpu)
        for rung in RUNGS if weights == "bf16" else ("async",):
            predicted = batch / predicted_step(shape, weights, batch, gpu, rung)
            found[decode_row(shape.name, weights, batch, rung)] = Prediction("tok/s", wire, predicted)
    for batch in (1, 8, 64, 256):
        for weights in FORMATS:
            step = [*step_kernels(LLAMA_8B, weights, batch, CONTEXT), *prompt_kernels(LLAMA_8B, batch)]
            kernels = {kernel.name: kernel for kernel in step}
            for name in (name for name in kernels if weights == "bf16" or name in OF_FORMATS):
                parts = [kernels[part] for part in (name, *SECOND_LAUNCH.get(name, ()))]
                found[kernel_row(name, weights, batch)] = Prediction(
                    "us",
                    1e6 * sum(part.wire(gpu) for part in parts),
                    1e6 * sum(part.predicted(gpu) for part in parts),
                )
    for shape in SHAPES.values():
        for length in PREFILLS:
            rate = length / predicted_prefill(shape, length, gpu)
            found[prefill_row(shape.name, length)] = Prediction(
                "tok/s", prefill_ceiling(shape, length, gpu), rate
            )
        found[f"{shape.name} nano-vllm"] = Prediction(
            "tok/s", nano_ceiling(shape, gpu), predicted_nano(shape, gpu)
        )
    found["llama-3-8b serving 1000/1000"] = _serving(gpu)
    return found


def _serving(gpu: GpuRates) -> Prediction:
    shape, batch = LLAMA_8B, 256
    wire = serving_rate(
        lambda context: ceiling_step(shape, "bf16", batch, batch * context, gpu),
        1000 / prefill_ceiling(shape, 1000, gpu),
    )
    step = partial(predicted_step, shape, "bf16", batch, gpu, "async")
    return Prediction("tok/s", wire, serving_rate(step, predicted_prefill(shape, 1000, gpu)))


def decode_row(shape: str, weights: str, batch: int, rung: str) -> str:
    """Name of a decode row."""
    return f"{shape} {weights} decode {batch} {rung}"


def prefill_row(shape: str, length: int) -> str:
    """Name of a prefill row."""
    return f"{shape} prefill {length}"


def kernel_row(kernel: str, weights: str, batch: int) -> str:
    """Name of a kernel row: shapes of Llama-3-8B."""
    return f"{kernel} {weights} {batch}"


def gpu_by_device_name(name: str) -> GpuRates | None:
    """The rates of a device by what CUDA calls it ("NVIDIA H100 80GB HBM3"); None: no prediction exists."""
    return next((gpu for gpu in GPUS.values() if gpu.name.split()[0] in name.split()), None)


def document() -> str:
    """What predictions.json holds: one line for each row, so that a change of one is seen."""
    gpus = ",\n".join(f"{json.dumps(gpu.name)}: {{\n{_lines(gpu)}\n}}" for gpu in GPUS.values())
    return f'{{"assumed": {json.dumps(asdict(ASSUMED))},\n{gpus}}}\n'


def _lines(gpu: GpuRates) -> str:
    found = {"rates": asdict(gpu)} | {name: _rounded(row) for name, row in rows(gpu).items()}
    return ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in found.items())


def _rounded(row: Prediction) -> dict[str, object]:
    return {"unit": row.unit, "wire": float(f"{row.wire:.4g}"), "predicted": float(f"{row.predicted:.4g}")}


@dataclass(frozen=True, slots=True)
class Goal:
    """Tokens per second that the product requires, for Llama-3-8B shapes on an H200 unless another is named."""

    title: str
    prediction: str  # a row of predictions.json
    floor: float | None
    goal: float
    measured: tuple[str, str]  # stage and row of measured/h200 and measured/h100


GOALS = (
    Goal("batch 1, bf16", decode_row("llama-3-8b", "bf16", 1, "async"), 221, 256, ("baseline", "decode 1")),
    Goal("batch 1, fp8", decode_row("llama-3-8b", "fp8", 1, "async"), 400, 474, ("model", "fp8 async 1")),
    Goal("batch 1, int4", decode_row("llama-3-8b", "int4", 1, "async"), 620, 804, ("model", "int4 async 1")),
    Goal("batch 64, bf16", decode_row("llama-3-8b", "bf16", 64, "async"), None, 10_200, ("baseline", "decode 64")),
    Goal("batch 256, bf16", decode_row("llama-3-8b", "bf16", 256, "async"), None, 17_300, ("baseline", "decode 256")),
    Goal("prefill 1k, bf16", prefill_row("llama-3-8b", 1024), None, 38_900, ("baseline", "prefill 1024")),
    Goal("prefill 8k, bf16", prefill_row("llama-3-8b", 8192), None, 34_300, ("baseline", "prefill 8192")),
    Goal("nano-vllm's 256 requests, Qwen3-0.6B", "qwen3-0.6b nano-vllm", None, 30_800,
         ("model", "nano-vllm's requests, qwen3-0.6b")),
)  # fmt: skip


def kernels_table() -> Iterator[str]:
    """Bytes and time at the wire of each kernel of a step, Llama-3-8B, bf16, H200."""
    per_call = " | ".join(f"{unit} per call, batch {batch}" for unit in ("MB", "µs") for batch in BATCHES)
    yield f"| kernel | calls, batch 1 | calls, batch 64 and 256 | {per_call} |"
    yield "| --- |" + " ---: |" * (2 + 2 * len(BATCHES))
    few, *more = ({k.name: k for k in step_kernels(LLAMA_8B, "bf16", batch, CONTEXT)} for batch in BATCHES)
    for name, kernel in more[0].items():
        kernels = [few.get(name), *(step[name] for step in more)]
        calls = few[name].calls if name in few else "-"
        moved = " | ".join(_megabytes(kernel.bytes) if kernel else "-" for kernel in kernels)
        times = " | ".join(_microseconds(kernel.wire(H200)) if kernel else "-" for kernel in kernels)
        yield f"| {name} | {calls} | {kernel.calls} | {moved} | {times} |"
    steps = [step.values() for step in (few, *more)]
    moved = " | ".join(f"{sum(k.calls * k.bytes for k in kernels) / 1e6:,.0f}" for kernels in steps)
    times = " | ".join(f"{1e6 * sum(k.calls * k.wire(H200) for k in kernels):,.0f}" for kernels in steps)
    calls, most = (sum(kernel.calls for kernel in step) for step in steps[:2])
    yield f"| **one step, all calls** | {calls} | {most} | {moved} | {times} |"


def _megabytes(count: float) -> str:
    return f"{count / 1e6:,.3g}" if count < 1e9 else f"{count / 1e6:,.0f}"


def _microseconds(seconds: float) -> str:
    value = 1e6 * seconds
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def ceilings_table() -> Iterator[str]:
    """Output tokens per second that no version exceeds, by format and batch, on both GPUs."""
    yield "| GPU, weights | " + " | ".join(f"batch {batch}" for batch in BATCHES) + " |"
    yield "| --- |" + " ---: |" * len(BATCHES)
    for gpu in GPUS.values():
        for weights in FORMATS:
            cells = " | ".join(f"{decode_ceiling(LLAMA_8B, weights, batch, gpu):,.0f}" for batch in BATCHES)
            yield f"| {gpu.name}, {weights} | {cells} |"


def precisions_table() -> Iterator[str]:
    """Output tokens per second at the largest batch, by precision of the weights: limit and prediction."""
    yield "| weights | limit, H200 | predicted, H200 | limit, H100 | predicted, H100 |"
    yield "| --- |" + " ---: |" * 4
    for weights in FORMATS:
        found = [rows(gpu)[decode_row("llama-3-8b", weights, BATCHES[-1], "async")] for gpu in (H200, H100)]
        cells = " | ".join(f"{row.wire:,.0f} | {row.predicted:,.0f}" for row in found)
        yield f"| {weights} | {cells} |"


def goals_table() -> Iterator[str]:
    """Floor and goal on an H200; limit, prediction and what was measured on an H200 and on an H100."""
    devices = {"H200": rows(H200), "H100": rows(H100)}
    titles = [f"{title}, {device}" for device in devices for title in ("limit", "predicted", "measured")]
    yield f"| tokens/s | floor | goal | {' | '.join(titles)} |"
    yield "| --- |" + " ---: |" * (2 + len(titles))
    for goal in GOALS:
        cells = [f"{goal.floor:,.0f}" if goal.floor else "-", f"{goal.goal:,.0f}"]
        for device, predictions in devices.items():
            row = predictions[goal.prediction]
            values = (row.wire, row.predicted, measured(device.lower(), *goal.measured))
            cells += [f"{value:,.0f}" for value in values]
        yield f"| {goal.title} | {' | '.join(cells)} |"


def measured(device: str, stage: str, row: str) -> float:
    """What measured/DEVICE holds of a row. Raises StopIteration where it holds none."""
    rows_of_stage = json.loads((MEASURED / device / f"{stage}.json").read_text())["rows"]
    return next(float(found["value"]) for found in rows_of_stage if found["name"] == row)


TABLES = {
    "kernels": kernels_table,
    "ceilings": ceilings_table,
    "precisions": precisions_table,
    "goals": goals_table,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", choices=TABLES)
    table = parser.parse_args().table
    if table:
        print("\n".join(TABLES[table]()))
    else:
        PREDICTIONS.write_text(document())


if __name__ == "__main__":
    main()
