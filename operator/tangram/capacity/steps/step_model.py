"""How long one step of an engine takes: every term is a quantity of the data sheet times a calibrated factor.

    step = matrix products (bytes of weights or FLOP, whichever takes longer)
         + decode attention (bytes of KV cache or FLOP, likewise) + prompt attention (FLOP)
         + what passes between the products (activations: bytes)
         + launches (per step, per layer, per sequence)
         + all-reduces (latency and bytes)

The form is the roofline of Williams et al. (CACM 2009) per kind of kernel, plus what rooflines leave out and
what decides small models and tensor parallelism. The factors come from `calibration`, and none is below 1:
nothing is faster than its data sheet. Times are those of one rank; ranks of a group run in step.

A pipeline of p stages has p batches on their way, each with a p-th of the running sequences. A step is the
way of one batch through all stages, with its hand-overs: then each sequence of the replica has one token
more. A prompt passes the stages whole, one after the other.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from operator import itemgetter

from tangram.capacity.hardware import Hardware
from tangram.capacity.memory.footprint import Footprint, Reaches

# An all-reduce through host memory and PCIe waits for copies and doorbells that NVLink's one-shot kernels do
# not have: 20 to 30 us against 3 to 8 us for small messages (nccl-tests, recalled; not calibrated here).
PCIE_LATENCY_FACTOR = 4.0
# Bytes per weight below which a format is a 4-bit one: with scales and zeros these take 0.53 to 0.65.
NARROW_BYTES = 0.8


class Wall(StrEnum):
    """What a step stands against: the resource that takes most of its time."""

    COMPUTE = "compute"
    MEMORY_BANDWIDTH = "memory bandwidth"
    LAUNCH_OVERHEAD = "launch overhead"
    INTERCONNECT = "interconnect"


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Calibrated factors. The default is the data sheet itself: the bound that nothing passes.

    A factor multiplies a data-sheet time. Of times and counts see the comments.
    """

    weights: float = 1.0  # reading weights
    narrow: float = 1.0  # 4-bit weights that are multiplied as such, over wider ones: scales, activations
    unpack: float = 1.0  # 4-bit weights that are unpacked to 16 bits, over wider ones
    experts: float = 1.0  # reading routed experts: many small matrices
    kv: float = 1.0  # reading the KV cache
    compute_16: float = 1.0  # matrix products in 16 bits
    compute_8: float = 1.0
    compute_4: float = 1.0
    expert_compute: float = 1.0  # products of a model with experts, over a dense one's: part-filled tiles
    attention: float = 1.0  # attention of prompts, in 16 bits
    moved: float = 0.0  # hidden vectors of 16 bits per token and layer, read and written between products
    reduce: float = 1.0  # bytes of all-reduces
    reduce_s: float = 0.0  # seconds per all-reduce and doubling of ranks
    step_s: float = 0.0  # seconds per step: scheduling
    layer_s: float = 0.0  # seconds per layer and step: launches and tails of its kernels
    sequence_s: float = 0.0  # seconds per decoding sequence and step: sampling, detokenising
    sequence_layer_s: float = 0.0  # seconds per decoding sequence and layer: paged attention's set-up
    expert_overhead: float = 1.0  # the four above in a model with experts, over those of a dense one
    expert_layer_s: float = 0.0  # seconds per layer with experts: routing, sorting, merging
    request_s: float = 0.0  # seconds per request outside of steps: HTTP, tokenising; part of TTFT alone


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step by the resource they are spent on; the parts add up to the whole.

    Matrix products count where they take longer: as weights or as compute. What passes between the products
    grows with the tokens as compute does, and counts there.
    """

    weights_s: float
    kv_s: float
    compute_s: float
    launch_s: float
    communication_s: float

    @property
    def total(self) -> float:
        """Seconds from one step to the next."""
        return self.weights_s + self.kv_s + self.compute_s + self.launch_s + self.communication_s

    @property
    def by_wall(self) -> dict[str, float]:
        """The parts by resource."""
        return {
            Wall.COMPUTE: self.compute_s,
            Wall.MEMORY_BANDWIDTH: self.weights_s + self.kv_s,
            Wall.LAUNCH_OVERHEAD: self.launch_s,
            Wall.INTERCONNECT: self.communication_s,
        }

    @property
    def wall(self) -> Wall:
        """The resource with the largest part."""
        return Wall(max(self.by_wall.items(), key=itemgetter(1))[0])


StepParts = tuple[float, float, float, float, float]  # the fields of StepTime, in their order
# (decoding sequences, bytes of KV cache of each, reaches of each, prompt tokens, keys of each) -> parts
StepFormula = Callable[[float, float, Reaches, float, float], StepParts]
_NO_STEP: StepParts = (0.0, 0.0, 0.0, 0.0, 0.0)
IDLE = StepTime(*_NO_STEP)


@dataclass(frozen=True)
class StepModel:
    """Step times of one replica: a footprint on a GPU or slice, run by a calibrated engine."""

    footprint: Footprint
    hardware: Hardware
    coefficients: Coefficients

    def decode_s(self, batch: float, context: float) -> StepTime:
        """One step of `batch` sequences, each of which attends to `context` tokens (means)."""
        return self.step_s(batch, context)

    def prefill_s(self, tokens: float, context: float = 0) -> float:
        """Seconds of a step that computes `tokens` of one prompt, `context` tokens of which are cached."""
        return self.step_s(0, 0, tokens, context + tokens / 2).total

    def step_s(
        self, decode: float, context: float, prefill_tokens: float = 0, prefill_context: float = 0
    ) -> StepTime:
        """One mixed step.

        `decode` sequences at `context` tokens each, and `prefill_tokens` prompt tokens (of any number of
        prompts), each of which attends to `prefill_context` keys on average: for a whole prompt of n tokens
        that is n / 2, for a chunk what is cached before it plus half of the chunk.
        """
        kv_bytes, reaches = self.footprint.kv_bytes(context), self.footprint.reaches(context)
        return StepTime(*self.parts(decode, kv_bytes, reaches, prefill_tokens, prefill_context))

    @cached_property
    def parts(self) -> StepFormula:
        """The formula of this replica's step times."""
        one_stage, stages = _step_formula(self), self.footprint.pipeline_parallel
        return one_stage if stages == 1 else _pipelined(one_stage, self)

    @property
    def weights_factor(self) -> float:
        """Calibrated factor of reading the weights that every step reads."""
        k = self.coefficients
        if narrow(self.footprint):
            return k.weights * (k.narrow if self.footprint.compute == "fp4" else k.unpack)
        return k.weights

    @property
    def compute_factor(self) -> float:
        """Calibrated factor of the matrix products of the body."""
        k = self.coefficients
        by_type = {"fp8": k.compute_8, "int8": k.compute_8, "fp4": k.compute_4}
        experts = k.expert_compute if self.footprint.experts else 1.0
        return experts * by_type.get(self.footprint.compute, k.compute_16)

    @property
    def flops(self) -> float:
        """FLOP/s of the body's matrix products, data sheet."""
        return self.hardware.flops_of(self.footprint.compute) or self.hardware.flops_16


def _step_formula(model: StepModel) -> StepFormula:
    """Return the step time of a replica as a function; what all of its steps share is computed once."""
    foot, k, bandwidth = model.footprint, model.coefficients, model.hardware.bandwidth
    flops, flops_16 = model.flops, model.hardware.flops_16
    dense, of_experts = foot.dense_read_bytes, foot.expert_read_bytes
    untouched = 1 - foot.experts_per_token / foot.experts if foot.experts else None
    weights, expert_factor = model.weights_factor * dense, k.experts
    dense_s = weights / bandwidth
    linear_flops, linear_factor = foot.linear_flops_per_token, model.compute_factor
    head_flops, head_factor = foot.head_flops_per_token, k.compute_16
    kv_factor, attention, pairs = k.kv, k.attention, foot.attention_flops
    moved, layers, vector = k.moved, foot.layers, foot.all_reduce_bytes_per_token / bandwidth
    step_s, sequence_s, layer_s, sequence_layer_s = k.step_s, k.sequence_s, k.layer_s, k.sequence_layer_s
    expert_overhead, expert_layers_s = k.expert_overhead, layers * k.expert_layer_s
    all_reduces = _all_reduces(model)

    def parts(decode: float, kv_bytes: float, reaches: Reaches, prompt: float, keys: float) -> StepParts:
        tokens = decode + prompt
        if tokens <= 0:
            return _NO_STEP
        launch = step_s + sequence_s * decode + layers * (layer_s + sequence_layer_s * decode)
        if untouched is None:
            read = dense_s
        else:  # an expert is read if any token chose it
            left: float = untouched**tokens
            read = (weights + expert_factor * (dense + of_experts * (1 - left) - dense)) / bandwidth
            launch = launch * expert_overhead + expert_layers_s
        multiply = (
            tokens * linear_flops * linear_factor / flops
            + max(1.0, decode) * head_flops * head_factor / flops_16
        )
        kv = kv_factor * decode * kv_bytes / bandwidth
        decode_flops = prompt_s = 0.0
        for per_pair, reach in reaches:
            decode_flops += decode * per_pair * reach
        score = attention * decode_flops / flops_16  # of MLA as long as the KV cache takes
        if prompt:
            prompt_flops = 0.0
            for per_pair, window in pairs:
                prompt_flops += prompt * per_pair * (window if window and window < keys else keys)
            prompt_s = attention * prompt_flops / flops_16
        compute = (
            (multiply if multiply > read else 0.0)
            + (score if score > kv else 0.0)
            + prompt_s
            + moved * tokens * layers * vector
        )
        return (
            read if read >= multiply else 0.0,
            kv if kv >= score else 0.0,
            compute,
            launch,
            all_reduces(tokens) if all_reduces else 0.0,
        )

    return parts


def _pipelined(one_stage: StepFormula, model: StepModel) -> StepFormula:
    """Return the time of the way through all stages; none is faster than the heaviest."""
    stages, hand_over = model.footprint.pipeline_parallel, _hand_over(model)

    def parts(decode: float, kv_bytes: float, reaches: Reaches, prompt: float, keys: float) -> StepParts:
        batch = min(decode, max(1.0, decode / stages))
        weights, kv, compute, launch, reduces = one_stage(batch, kv_bytes, reaches, prompt, keys)
        way = stages * reduces + (stages - 1) * hand_over(batch + prompt)
        return stages * weights, stages * kv, stages * compute, stages * launch, way

    return parts


def _hand_over(model: StepModel) -> Callable[[float], float]:
    """Seconds from stage to stage by tokens: two vectors each, the hidden one and the residual.

    Its latency is that of an all-reduce of two ranks, which is one exchange.
    """
    k, link = model.coefficients, model.hardware.link_bandwidth
    latency = k.reduce_s * (1.0 if model.hardware.nvlink else PCIE_LATENCY_FACTOR)
    per_token = k.reduce * 2 * model.footprint.all_reduce_bytes_per_token / link
    return lambda tokens: latency + tokens * per_token


def _all_reduces(model: StepModel) -> Callable[[float], float] | None:
    """Seconds of all-reduces by tokens, two per layer; None: one rank has none.

    A ring moves 2 (t - 1) / t of the message through every link. A message is cut so that latency and
    transfer overlap as well as they can, which takes (sqrt(latency) + sqrt(transfer))^2: the classic optimum
    of pipelined collectives.
    """
    foot, k, ranks = model.footprint, model.coefficients, model.footprint.tensor_parallel
    if ranks == 1:
        return None
    share, per_token = 2 * (ranks - 1) / ranks, foot.all_reduce_bytes_per_token
    factor, link = k.reduce, model.hardware.link_bandwidth
    latency = k.reduce_s * math.log2(ranks) * (1.0 if model.hardware.nvlink else PCIE_LATENCY_FACTOR)
    root, times = math.sqrt(latency), 2 * foot.layers

    def seconds(tokens: float) -> float:
        transfer = factor * (share * tokens * per_token) / link
        return times * (root + math.sqrt(transfer)) ** 2

    return seconds


def narrow(footprint: Footprint) -> bool:
    """Whether the matrices that every step reads are stored in about four bits per weight.

    The head stays in 16 bits (as many bytes as FLOP per token). Of models with experts the experts are what
    is narrow, and they have a factor of their own.
    """
    body = footprint.dense_read_bytes - footprint.head_flops_per_token
    return not footprint.experts and body < NARROW_BYTES * footprint.linear_flops_per_token / 2
