"""Step times of one replica at one context, fast: what does not change from step to step is worked out once.

Capacity is found by asking for thousands of step times of the same requests on the same hardware. A clock
gives the very numbers of `Steps.step_s(...).total`, to the last bit: it does the same operations in the same
order.
"""

import math
from collections.abc import Callable

from tangram.capacity.steps.decode_times import Steps
from tangram.capacity.steps.step import PCIE_LATENCY_FACTOR, StepModel

# (decoding sequences, prompt tokens, keys that a prompt token attends to) -> seconds
Clock = Callable[[float, float, float], float]
Pairs = tuple[tuple[float, int | None], ...]


def clock(model: Steps, context: float) -> Clock:
    """Return seconds of a step whose decoding sequences attend to `context` tokens each."""
    if isinstance(model, StepModel):
        return _compiled(model, context)
    return lambda decode, tokens, keys: model.step_s(decode, context, tokens, keys).total


def _compiled(model: StepModel, context: float) -> Clock:
    foot, k, bandwidth = model.footprint, model.coefficients, model.hardware.bandwidth
    flops, flops_16 = model.flops, model.flops_16
    weights, dense, of_experts = model.weights_factor, foot.dense_read_bytes, foot.expert_read_bytes
    untouched = 1 - foot.experts_per_token / foot.experts if foot.experts else None
    read_of_dense = (weights * dense + k.experts * 0.0) / bandwidth
    linear_flops, linear_factor = foot.linear_flops_per_token, model.compute_factor
    head_flops, head_factor = foot.head_flops_per_token, k.compute_16
    kv_factor, kv_bytes = k.kv, foot.kv_bytes(context)
    attention, pairs = k.attention, foot.attention_flops
    seen = tuple((flop, min(context, window or context)) for flop, window in pairs)
    moved, layers = k.moved, foot.layers
    vector = foot.all_reduce_bytes_per_token / bandwidth
    step_s, sequence_s, layer_s, sequence_layer_s = k.step_s, k.sequence_s, k.layer_s, k.sequence_layer_s
    overhead, more_s = k.expert_overhead, layers * k.expert_layer_s
    all_reduces = _all_reduces(model)

    def seconds(decode: float, prompt: float, keys: float) -> float:
        tokens = decode + prompt
        if tokens <= 0:
            return 0.0
        if untouched is None:
            read = read_of_dense
        else:
            left: float = untouched**tokens
            experts = dense + of_experts * (1 - left) - dense
            read = (weights * dense + k.experts * experts) / bandwidth
        multiply = (
            tokens * linear_flops * linear_factor / flops
            + max(1.0, decode) * head_flops * head_factor / flops_16
        )
        kv = kv_factor * decode * kv_bytes / bandwidth
        flop = 0.0
        for per_pair, reach in seen:
            flop += decode * per_pair * reach
        score = attention * flop / flops_16
        flop = 0.0
        if prompt:
            for per_pair, window in pairs:
                flop += prompt * per_pair * (window if window and window < keys else keys)
        compute = (
            (multiply if multiply > read else 0.0)
            + (score if score > kv else 0.0)
            + attention * flop / flops_16
            + moved * tokens * layers * vector
        )
        launch = step_s + sequence_s * decode + layers * (layer_s + sequence_layer_s * decode)
        if untouched is not None:
            launch = launch * overhead + more_s
        return (
            (read if read >= multiply else 0.0)
            + (kv if kv >= score else 0.0)
            + compute
            + launch
            + (all_reduces(tokens) if all_reduces else 0.0)
        )

    return seconds


def _all_reduces(model: StepModel) -> Callable[[float], float] | None:
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
