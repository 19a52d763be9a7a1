"""How long one step of an engine takes: every term is a quantity of the data sheet times a calibrated factor.

    step = matrix products (bytes of weights or FLOP, whichever takes longer)
         + decode attention (bytes of KV cache or FLOP, likewise) + prompt attention (FLOP)
         + what passes between the products (activations: bytes)
         + launches (per step, per layer, per sequence)
         + all-reduces (latency and bytes)

The form is the roofline of Williams et al. (CACM 2009) per kind of kernel, plus what rooflines leave out and
what decides small models and tensor parallelism. The factors come from `calibration`, and none is below 1:
nothing is faster than its data sheet. Times are those of one rank; ranks of a group run in step.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from tangram.capacity.hardware import Hardware
from tangram.capacity.memory.footprint import Footprint

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
    def wall(self) -> Wall:
        """The resource with the largest part."""
        parts = {
            Wall.COMPUTE: self.compute_s,
            Wall.MEMORY_BANDWIDTH: self.weights_s + self.kv_s,
            Wall.LAUNCH_OVERHEAD: self.launch_s,
            Wall.INTERCONNECT: self.communication_s,
        }
        return max(parts, key=lambda wall: parts[wall])


IDLE = StepTime(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
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
        tokens = decode + prefill_tokens
        if tokens <= 0:
            return IDLE
        read, math_ = self._products(tokens, max(decode, 1.0))
        kv, pairs = self._decode_attention(decode, context)
        prompt = self._attention(prefill_tokens, prefill_context)
        return StepTime(
            weights_s=read if read >= math_ else 0.0,
            kv_s=kv if kv >= pairs else 0.0,
            compute_s=(math_ if math_ > read else 0.0)
            + (pairs if pairs > kv else 0.0)
            + prompt
            + self._between(tokens),
            launch_s=self._launches(decode),
            communication_s=self._all_reduces(tokens),
        )

    def _products(self, tokens: float, sampled: float) -> tuple[float, float]:
        """Seconds that the weights take to be read, and seconds that the FLOP take."""
        foot, k = self.footprint, self.coefficients
        experts = foot.weight_read_bytes(tokens) - foot.dense_read_bytes
        dense = self.weights_factor * foot.dense_read_bytes
        read = (dense + k.experts * experts) / self.hardware.bandwidth
        linear = tokens * foot.linear_flops_per_token * self.compute_factor / self.flops
        head = sampled * foot.head_flops_per_token * k.compute_16 / self.flops_16
        return read, linear + head

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
        return self.hardware.flops_of(self.footprint.compute) or self.flops_16

    @property
    def flops_16(self) -> float:
        """FLOP/s in 16 bits, data sheet."""
        found = self.hardware.flops_of("bf16") or self.hardware.flops_of("fp16")
        return found or min(value for _, value in self.hardware.flops)

    def _decode_attention(self, decode: float, context: float) -> tuple[float, float]:
        """Seconds that the KV cache takes to be read, and that its products take (MLA: as long)."""
        read = self.coefficients.kv * decode * self.footprint.kv_bytes(context) / self.hardware.bandwidth
        return read, self._attention(decode, context)

    def _attention(self, tokens: float, context: float) -> float:
        flops = self.footprint.attention_flops_of(tokens, context)
        return self.coefficients.attention * flops / self.flops_16

    def _between(self, tokens: float) -> float:
        vector = self.footprint.all_reduce_bytes_per_token / self.hardware.bandwidth
        return self.coefficients.moved * tokens * self.footprint.layers * vector

    def _launches(self, decode: float) -> float:
        k, layers = self.coefficients, self.footprint.layers
        step = k.step_s + k.sequence_s * decode
        launches = step + layers * (k.layer_s + k.sequence_layer_s * decode)
        if self.footprint.experts:
            return launches * k.expert_overhead + layers * k.expert_layer_s
        return launches

    def _all_reduces(self, tokens: float) -> float:
        """Two per layer. A ring moves 2 (t - 1) / t of the message through every link.

        A message is cut so that latency and transfer overlap as well as they can, which takes
        (sqrt(latency) + sqrt(transfer))^2: the classic optimum of pipelined collectives.
        """
        foot, k, ranks = self.footprint, self.coefficients, self.footprint.tensor_parallel
        if ranks == 1:
            return 0.0
        message = 2 * (ranks - 1) / ranks * tokens * foot.all_reduce_bytes_per_token
        transfer = k.reduce * message / self.hardware.link_bandwidth
        latency = k.reduce_s * math.log2(ranks) * (1.0 if self.hardware.nvlink else PCIE_LATENCY_FACTOR)
        return 2 * foot.layers * (math.sqrt(latency) + math.sqrt(transfer)) ** 2


def narrow(footprint: Footprint) -> bool:
    """Whether the matrices that every step reads are stored in about four bits per weight.

    The head stays in 16 bits (as many bytes as FLOP per token). Of models with experts the experts are what
    is narrow, and they have a factor of their own.
    """
    body = footprint.dense_read_bytes - footprint.head_flops_per_token
    return not footprint.experts and body < NARROW_BYTES * footprint.linear_flops_per_token / 2
