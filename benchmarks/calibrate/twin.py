"""`StepModel` over columns instead of one row at a time: the fit needs a million rows a second.

It must say what the package says; tests/capacity/test_calibration.py holds them together, row by row.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.calibrate.points import Column, Points
from tangram.capacity.steps.step_model import PCIE_LATENCY_FACTOR

Values = Mapping[str, Column | float]  # fields of `Coefficients` by name, per row or for all

STEP_TOKENS = 8192  # tokens that one step takes: the usual budget of the engines measured


def step(
    k: Values, p: Points, decode: Column, context: Column, prompt: Column, prompt_context: Column
) -> Column:
    """Seconds of one mixed step; arguments as those of `StepModel.step_s`."""
    tokens = decode + prompt
    sampled = np.maximum(decode, 1.0)
    four = np.where(p["bits"] == 4, k["narrow"], k["unpack"])
    weights = k["weights"] * np.where(p["narrow"] > 0, four, 1.0)
    read = (weights * p["dense"] + k["experts"] * _expert_bytes(p, tokens)) / p["bandwidth"]
    factor = np.where(
        p["bits"] == 8, k["compute_8"], np.where(p["bits"] == 4, k["compute_4"], k["compute_16"])
    )
    factor = factor * np.where(p["experts"] > 0, k["expert_compute"], 1.0)
    linear = tokens * p["linear"] * factor / p["flops"]
    head = sampled * p["head"] * k["compute_16"] / p["flops_16"]
    kv = k["kv"] * decode * _windowed(p, "kv", context) / p["bandwidth"]
    per_flop = k["attention"] / p["flops_16"]
    attention = np.maximum(kv, per_flop * decode * _windowed(p, "pairs", context))
    prompts = per_flop * prompt * _windowed(p, "pairs", prompt_context)
    between = k["moved"] * tokens * p["layers"] * p["vector"] / p["bandwidth"]
    launches = k["step_s"] + k["sequence_s"] * decode
    launches = launches + p["layers"] * (k["layer_s"] + k["sequence_layer_s"] * decode)
    routed = launches * k["expert_overhead"] + p["layers"] * k["expert_layer_s"]
    launches = np.where(p["experts"] > 0, routed, launches)
    return np.maximum(read, linear + head) + attention + prompts + between + launches + _reduces(k, p, tokens)


def tpot(k: Values, p: Points) -> Column:
    """Mean seconds per token of a closed loop whose decoding requests are known (`batch`).

    A request's token waits for one decode step and for its share of the prompts: while it makes `output` tokens,
    every other decoding request is replaced once.
    """
    prompt, output = p["input"] * p["mean"], p["output"] * p["mean"]
    others = p["batch"] * (1 - 1 / np.maximum(p["concurrency"], 1.0))
    batch = 1 + others
    context = prompt + output / 2
    nothing = np.zeros_like(batch)
    decode = step(k, p, batch, context, nothing, nothing)
    return decode + others / output * added(k, p, decode, batch, context, prompt)


def added(k: Values, p: Points, decode: Column, batch: Column, context: Column, prompt: Column) -> Column:
    """Seconds that one prompt adds to the steps that compute it, beside `batch` decoding requests."""
    room = np.maximum(STEP_TOKENS - batch, 1.0)
    chunk = np.minimum(prompt, room)
    mixed = step(k, p, batch, context, chunk, prompt / 2)
    whole: Column = (mixed - decode) * prompt / chunk
    return whole


def _windowed(p: Points, name: str, context: Column) -> Column:
    total: Column = sum(p[f"{name}{i}"] * np.minimum(context, p[f"{name}{i}_window"]) for i in (0, 1))  # type: ignore[assignment]
    return total


def _expert_bytes(p: Points, tokens: Column) -> Column:
    share = np.where(p["experts"] > 0, p["chosen"] / np.maximum(p["experts"], 1.0), 0.0)
    touched: Column = p["expert"] * (1 - (1 - share) ** tokens)
    return touched


def _reduces(k: Values, p: Points, tokens: Column) -> Column:
    ranks = p["ranks"]
    message = 2 * (ranks - 1) / ranks * tokens * p["vector"]
    latency = k["reduce_s"] * np.log2(ranks) * np.where(p["nvlink"] > 0, 1.0, PCIE_LATENCY_FACTOR)
    transfer = k["reduce"] * message / p["link"]
    seconds: Column = np.where(ranks > 1, 2 * p["layers"] * (np.sqrt(latency) + np.sqrt(transfer)) ** 2, 0.0)
    return seconds
