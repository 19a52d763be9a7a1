"""Compute or memory bound? Compare what the mean step of an interval moved and computed with the hardware.

Three kinds of evidence, best first: the step-time model of the given model on the given hardware, whose
largest part of the measured step wins; the engine's own estimates of FLOP and bytes; the tokens per step,
which can at least rule compute out. Without any of them the answer is "cannot tell".
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tangram.capacity.diagnosis import scrape as m
from tangram.capacity.diagnosis.findings import CANNOT_TELL, Finding, Number, numbers
from tangram.capacity.diagnosis.scrape import Interval, ratio
from tangram.capacity.hardware import Hardware, hardware
from tangram.capacity.steps.step_model import StepModel, Wall
from tangram.catalog import skus

QUESTION = "compute or memory bound?"
NEITHER = "neither"
NOT_COMPUTE = "not compute"

# A data sheet cannot be beaten. Measured bandwidth stays below it by 5 to 15 %, so this much is a wrong flag.
_IMPOSSIBLE = 1.1
# Matrix products reach about two thirds of the data sheet, so that the ridge lies lower by as much.
_ATTAINED = 0.65
# Below this part of both data sheets, while busy, neither of them explains the time of a step.
_IDLE_SHARE = 0.35
# FLOP per byte of weights and token at most: two FLOP per weight of four bits.
_FLOP_PER_BYTE_AND_TOKEN = 4.0
# A prompt step takes several times as long as a decode step, so even few of them may take most of the time.
_NEARLY_ALL_STEPS = 0.98

_NEXT: Mapping[str, str] = {
    Wall.MEMORY_BANDWIDTH: "More sequences per step are almost free until it turns compute-bound: raise "
    "the load or --max-num-seqs; fewer bytes help at once: fp8 or 4-bit weights, fp8 KV cache.",
    Wall.COMPUTE: "Larger batches will not help: use fp8 where the GPU has it, a larger GPU or more "
    "replicas; prefix caching saves prompt work that repeats.",
    Wall.LAUNCH_OVERHEAD: "The GPU waits for the host: turn CUDA graphs on (no --enforce-eager), use a newer "
    "engine, or give the GPU more work per step; tensor parallelism makes this worse.",
    Wall.INTERCONNECT: "Use fewer GPUs per replica, or GPUs with NVLink between them.",
    NEITHER: "Look at the host first: CPU limits of the pod, --enforce-eager, tokenisation, a neighbour on "
    "the same GPU, power or clock limits (nvidia-smi -q -d PERFORMANCE).",
    NOT_COMPUTE: "Pass --sku and --model to separate memory bandwidth from launch overhead.",
}


@dataclass(frozen=True, slots=True)
class StepWork:
    """What the steps of an interval computed. None: the page does not have it."""

    steps: float | None
    steps_counted: bool  # else estimated from the time between tokens, as if there were never a pause
    step_s: float | None  # mean time between two tokens of a sequence
    computed: float | None  # prompt tokens computed, those from the prefix cache excluded
    generated: float | None
    decoded: float  # rows of running sequences; the first token of one comes out of its prompt's step
    drafted: float  # tokens that speculative decoding had checked beside them
    prompt_length: float | None
    context: float | None  # tokens that a running sequence attends to, mean

    @property
    def tokens_per_step(self) -> float | None:
        """Prompt and decode tokens of a mean step."""
        if self.computed is None or self.generated is None:
            return None
        return ratio(self.computed + self.decoded + self.drafted, self.steps)

    def busy_s(self, seconds: float) -> float:
        """Of `seconds` (those of all engines), the part in which steps ran; without a count all of them.

        A step without a decode row leaves no time between tokens, so there must be few of them.
        """
        if not (self.steps_counted and self.steps and self.step_s) or self.decoded < self.steps:
            return seconds
        return min(seconds, self.steps * self.step_s) or seconds


def work(interval: Interval) -> StepWork:
    """Read what the steps did."""
    step_s = interval.mean(m.ITL) or interval.mean(m.TPOT)
    counted = interval.increase(m.STEP_TOKENS, "_count")
    prompt, cached = interval.increase(m.PROMPT_TOKENS), interval.increase(m.CACHE_HITS)
    length = interval.mean(m.PROMPT_LENGTH) or _since_start(interval, m.PROMPT_LENGTH)
    answer = interval.mean(m.GENERATION_LENGTH) or _since_start(interval, m.GENERATION_LENGTH)
    generated, first = interval.increase(m.GENERATION_TOKENS), interval.increase(m.TTFT, "_count")
    rows = interval.increase(m.ITL, "_count")  # one per sequence and step, also where a step yields several
    return StepWork(
        steps=counted if counted is not None else ratio(interval.seconds * interval.after.engines, step_s),
        steps_counted=counted is not None,
        step_s=step_s,
        computed=None if prompt is None else max(0.0, prompt - (cached or 0.0)),
        generated=generated,
        decoded=rows if rows is not None else max(0.0, (generated or 0.0) - (first or 0.0)),
        drafted=interval.increase(m.DRAFT_TOKENS) or 0.0,
        prompt_length=length,
        context=None if length is None or answer is None else length + answer / 2,
    )


def _since_start(interval: Interval, histogram: m.Names) -> float | None:
    """Return the mean since the engine's start: the usual value, where no request ended in between."""
    return ratio(interval.after.total(histogram, "_sum"), interval.after.total(histogram, "_count"))


def bound(interval: Interval, hardware: Hardware | None, step: StepModel | None) -> Finding:
    """Answer the question from the best evidence there is."""
    done = work(interval)
    if step is not None and (answer := _by_model(interval, done, step)):
        return answer
    flags = (() if hardware else ("--sku",)) + (() if step else ("--model",))
    return _by_estimates(interval, done, hardware, flags) or _by_tokens(interval, done, flags)


def _by_model(interval: Interval, done: StepWork, step: StepModel) -> Finding | None:
    """Split the measured step by the step-time model; None where the page lacks what it takes."""
    per_step = done.tokens_per_step
    if not done.steps or not per_step or done.context is None or done.prompt_length is None:
        return None
    # Drafts share the reading of their sequence's cache, as the tokens of a prompt do.
    wide, half_prompt = (done.computed or 0.0) + done.drafted, done.prompt_length / 2
    parts = step.step_s(done.decoded / done.steps, done.context, wide / done.steps, half_prompt)
    busy_s = done.busy_s(interval.seconds * interval.after.engines)
    achieved = _Achieved.by(done, step, busy_s)
    measured = ratio(busy_s, done.steps)
    if not measured:
        return None
    evidence = (
        *_basics(done),
        *numbers(
            ("measured step, mean", measured * 1e3, "ms"),
            ("modelled: weights and KV", (parts.weights_s + parts.kv_s) * 1e3, "ms"),
            ("modelled: arithmetic", parts.compute_s * 1e3, "ms"),
            ("modelled: launches", parts.launch_s * 1e3, "ms"),
            ("modelled: collectives", parts.communication_s * 1e3, "ms"),
        ),
        *achieved.numbers,
    )
    if achieved.impossible:
        return _impossible(achieved, evidence)
    split: Mapping[str, float] = {**parts.by_wall, NEITHER: measured - parts.total}
    verdict = max(split, key=lambda wall: split[wall])
    share = min(1.0, split[verdict] / measured)
    reason = (
        f"{_TAKES[verdict]} {share:.0%} of the mean step of {measured * 1e3:.1f} ms; while steps run, "
        f"{achieved.used} are used"
    )
    missing = () if done.steps_counted else ("vllm:iteration_tokens_total (steps were estimated from ITL)",)
    return Finding(QUESTION, str(verdict), reason, evidence, missing, _NEXT[verdict])


_TAKES: Mapping[str, str] = {
    Wall.MEMORY_BANDWIDTH: "reading weights and KV cache takes",
    Wall.COMPUTE: "arithmetic takes",
    Wall.LAUNCH_OVERHEAD: "launching kernels takes",
    Wall.INTERCONNECT: "exchanging activations between GPUs takes",
    NEITHER: "neither memory, arithmetic, launches nor collectives explain",
}


@dataclass(frozen=True, slots=True)
class _Achieved:
    """Bytes and FLOP per second while steps run, against the data sheet."""

    bytes_per_s: float
    flops: float
    bandwidth: float  # shares of the data sheet
    compute: float

    @classmethod
    def of(cls, moved: float, flops: float, busy_s: float, hardware: Hardware, peak: float) -> "_Achieved":
        per_s, flops_per_s = moved / busy_s, flops / busy_s
        return cls(per_s, flops_per_s, per_s / hardware.bandwidth, flops_per_s / peak)

    @classmethod
    def by(cls, done: StepWork, step: StepModel, busy_s: float) -> "_Achieved":
        """Of one rank, from the bytes and FLOP of the model."""
        foot, hw = step.footprint, step.hardware
        steps, computed, context = done.steps or 0.0, done.computed or 0.0, done.context or 0.0
        moved = steps * foot.weight_read_bytes(done.tokens_per_step or 0.0)
        moved += done.decoded * foot.kv_bytes(context)
        flops = (computed + done.decoded + done.drafted) * foot.linear_flops_per_token
        flops += ((done.generated or 0.0) + done.drafted) * foot.head_flops_per_token
        flops += foot.attention_flops_of(computed, (done.prompt_length or 0.0) / 2)
        flops += foot.attention_flops_of(done.decoded, context)
        return cls.of(moved, flops, busy_s, hw, step.flops)

    @property
    def used(self) -> str:
        return f"{self.bandwidth:.0%} of the memory bandwidth and {self.compute:.0%} of the arithmetic"

    @property
    def impossible(self) -> bool:
        return max(self.bandwidth, self.compute) > _IMPOSSIBLE

    @property
    def numbers(self) -> tuple[Number, ...]:
        return numbers(
            ("read while busy", self.bytes_per_s / 1e9, "GB/s"),
            ("of the data sheet's bandwidth", self.bandwidth * 100, "%"),
            ("computed while busy", self.flops / 1e12, "TFLOP/s"),
            ("of the data sheet's arithmetic", self.compute * 100, "%"),
        )


def _impossible(achieved: _Achieved, evidence: tuple[Number, ...]) -> Finding:
    worst = max(achieved.bandwidth, achieved.compute)
    reason = f"the numbers would be {worst:.0%} of the data sheet, which no GPU reaches: a flag does not fit"
    return Finding(
        QUESTION, CANNOT_TELL, reason, evidence, ("--sku, --model, --tp and --weights as they are",)
    )


def _by_estimates(
    interval: Interval, done: StepWork, hardware: Hardware | None, flags: tuple[str, ...]
) -> Finding | None:
    """Use the engine's own estimates (vLLM: --enable-mfu-metrics); None where it makes none."""
    flops, read = interval.increase(m.FLOPS), interval.increase(m.READ_BYTES)
    moved = (read or 0.0) + (interval.increase(m.WRITE_BYTES) or 0.0)
    intensity = ratio(flops, moved)
    if not flops or not intensity:
        return None
    evidence = (*_basics(done), Number("FLOP per byte, estimated by the engine", intensity))
    if hardware is None:
        lowest = min(ridges().values())
        if intensity > lowest * _ATTAINED:
            return Finding(QUESTION, CANNOT_TELL, "it depends on the GPU", evidence, flags)
        reason = f"{intensity:.0f} FLOP per byte; every GPU of the catalog does {lowest:.0f} or more"
        return Finding(QUESTION, NOT_COMPUTE, reason, evidence, flags, _NEXT[NOT_COMPUTE])
    busy_s = done.busy_s(interval.seconds * interval.after.engines)
    achieved = _Achieved.of(moved, flops, busy_s, hardware, hardware.flops_16)
    evidence = (*evidence, *achieved.numbers)
    if achieved.impossible:
        return _impossible(achieved, evidence)
    verdict = Wall.MEMORY_BANDWIDTH if achieved.bandwidth >= achieved.compute else Wall.COMPUTE
    if max(achieved.bandwidth, achieved.compute) < _IDLE_SHARE:
        return Finding(QUESTION, NEITHER, _used(achieved), evidence, flags, _NEXT[NEITHER])
    return Finding(QUESTION, str(verdict), _used(achieved), evidence, flags, _NEXT[verdict])


def _used(achieved: _Achieved) -> str:
    return f"while steps run, {achieved.used} (at 16 bits) are used, by the engine's own estimates"


def _by_tokens(interval: Interval, done: StepWork, flags: tuple[str, ...]) -> Finding:
    """Rule compute out, if steps are so small that no GPU could be short of arithmetic."""
    lowest = min(ridges().values())
    most = interval.share_at_most(m.STEP_TOKENS, lowest / _FLOP_PER_BYTE_AND_TOKEN)
    missing = (*flags, *_absent(interval, done))
    if most is None:
        reason = "the page has no sizes of steps"
        return Finding(QUESTION, CANNOT_TELL, reason, _basics(done), missing)
    edge, share = most
    if share < _NEARLY_ALL_STEPS:
        reason = f"{1 - share:.0%} of the steps had more than {edge:.0f} tokens: they may be bound by either"
        return Finding(QUESTION, CANNOT_TELL, reason, _basics(done), missing)
    reason = (
        f"{share:.0%} of the steps had at most {edge:.0f} tokens, which is "
        f"{edge * _FLOP_PER_BYTE_AND_TOKEN:.0f} FLOP per byte of weights even at 4 bits; every GPU of the "
        f"catalog does {lowest:.0f} or more"
    )
    return Finding(QUESTION, NOT_COMPUTE, reason, _basics(done), missing, _NEXT[NOT_COMPUTE])


def _absent(interval: Interval, done: StepWork) -> tuple[str, ...]:
    """Name the metrics that better evidence needs and the page lacks."""
    metrics = {
        m.STEP_TOKENS[0]: interval.after.total(m.STEP_TOKENS, "_count"),
        m.PROMPT_TOKENS[0]: done.computed,
        m.GENERATION_TOKENS[0]: done.generated,
        m.ITL[0]: interval.after.total(m.ITL, "_count"),
        "vllm:request_prompt_tokens, vllm:request_generation_tokens (one finished request)": done.context,
    }
    return tuple(name for name, value in metrics.items() if value is None)


def _basics(done: StepWork) -> tuple[Number, ...]:
    return numbers(
        ("steps" if done.steps_counted else "steps, estimated", done.steps, ""),
        ("tokens per step, mean", done.tokens_per_step, ""),
        ("draft tokens per step, mean", ratio(done.drafted or None, done.steps), ""),
        ("time between tokens, mean", done.step_s and done.step_s * 1e3, "ms"),
        ("context of a sequence, mean", done.context, "tokens"),
    )


def ridges() -> Mapping[str, float]:
    """FLOP per byte, by SKU, from which on 16-bit arithmetic and not memory is the limit."""
    boards = {sku: hardware(sku) for sku in skus()}
    return {sku: board.flops_16 / board.bandwidth for sku, board in boards.items()}
