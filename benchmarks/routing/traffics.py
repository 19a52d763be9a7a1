"""Traffics that tell policies apart, each with its fleet."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from benchmarks.routing.fleet import TenantRequest
from tangram.capacity.load.prefix_cache import BLOCK_TOKENS
from tangram.capacity.load.traffic import SimulatedRequest, open_traffic, uniforms

SEVEN_SHAPES = ("h200", "3g", "3g", "1g", "1g", "1g", "1g")
MOONCAKE = Path(__file__).parents[1] / "autoscaling" / "traces" / "mooncake_conversation_00-30min.jsonl.gz"
FOUR_GPUS = ("h100",) * 4
SLOW_GPU = ("h100", "h100", "h100", "h100 at half speed")


@dataclass(frozen=True)
class Traffic:
    """Requests by seed, and the replicas that serve them."""

    name: str
    kinds: tuple[str, ...]
    requests: Callable[[int], list[TenantRequest]]
    pickers: int = 1


def with_prefixes(
    requests: Sequence[SimulatedRequest], groups: int, prefix_tokens: int, seed: int, share: float = 1.0
) -> list[SimulatedRequest]:
    """Put one of `groups` prefixes, at random, before a `share` of the prompts."""
    chances, chosen, blocks = uniforms(seed), [], prefix_tokens // BLOCK_TOKENS
    for request in requests:
        group = int(next(chances) * groups)
        if next(chances) >= share:
            chosen.append(request)
            continue
        ids = tuple(group * 1000 + place for place in range(blocks))
        chosen.append(replace(request, input_tokens=request.input_tokens + prefix_tokens, prefix_blocks=ids))
    return chosen


def _plain(
    count: int, rate: float, prompt: int, answer: int, cv: float = 1.0
) -> Callable[[int], list[TenantRequest]]:
    return lambda seed: _of(open_traffic(count, rate, prompt, answer, cv, seed, 60_000))


def _prefixed(
    count: int, rate: float, prompt: int, answer: int, groups: int, prefix: int, share: float = 1.0
) -> Callable[[int], list[TenantRequest]]:
    def requests(seed: int) -> list[TenantRequest]:
        plain = open_traffic(count, rate, prompt, answer, 1.0, seed, 50_000)
        return _of(with_prefixes(plain, groups, prefix, seed + 7, share))

    return requests


def _conversations(seed: int) -> list[TenantRequest]:
    """Turns of 300 conversations: each prompt is the one before it, its answer and a new question."""
    starts = open_traffic(300, 3.0, 2000, 200, 1.0, seed)
    pauses, requests = uniforms(seed + 3), []
    for number, start in enumerate(starts):
        at, tokens = start.arrival_s, start.input_tokens
        for _ in range(8):
            ids = tuple(number * 1000 + place for place in range(tokens // BLOCK_TOKENS))
            requests.append(SimulatedRequest(at, tokens, start.output_tokens, ids))
            at += 5 + 30 * next(pauses)
            tokens += start.output_tokens + 300
    return _of(sorted(requests, key=lambda request: request.arrival_s))


def _long_beside_short(seed: int) -> list[TenantRequest]:
    short = open_traffic(1800, 30.0, 300, 150, 1.0, seed, 60_000)
    long = open_traffic(150, 2.5, 25_000, 150, 1.0, seed + 50, 60_000)
    return _of(sorted([*short, *long], key=lambda request: request.arrival_s))


def _of(requests: Sequence[SimulatedRequest]) -> list[TenantRequest]:
    return [TenantRequest(request) for request in requests]


def _published_trace(path: Path, seconds: float, speed: float) -> Traffic:
    """Return the beginning of a trace with `prefix_block_ids_512` (Mooncake), `speed` times as fast."""

    def requests(_: int) -> list[TenantRequest]:
        found = []
        with gzip.open(path, "rt") as lines:
            for row in map(json.loads, islice(lines, 100_000)):
                if row["arrival_s"] > seconds * speed:
                    break
                ids, answer = tuple(row["prefix_block_ids_512"]), max(1, row["output_tokens"])
                prompt = min(max(1, row["input_tokens"]), 60_000)
                ids = ids[: prompt // BLOCK_TOKENS]
                found.append(TenantRequest(SimulatedRequest(row["arrival_s"] / speed, prompt, answer, ids)))
        return found

    return Traffic("Mooncake conversations", FOUR_GPUS, requests)


TRAFFICS = (
    Traffic("shared prefixes", FOUR_GPUS, _prefixed(2000, 40.0, 500, 150, 60, 16_384)),
    Traffic("no prefixes", FOUR_GPUS, _plain(3000, 45.0, 1000, 250)),
    Traffic("one hot prefix", FOUR_GPUS, _prefixed(2500, 45.0, 500, 200, 1, 8_192, 0.8)),
    Traffic("unequal slices", SEVEN_SHAPES, _plain(2000, 22.0, 1000, 250)),
    Traffic("unequal slices, shared prefixes", SEVEN_SHAPES, _prefixed(2000, 22.0, 500, 150, 30, 8_192)),
    Traffic("bursts", FOUR_GPUS, _plain(3000, 35.0, 1000, 250, 4.0)),
    Traffic("long beside short", FOUR_GPUS, _long_beside_short),
    Traffic("conversations", FOUR_GPUS, _conversations),
    Traffic("one replica at half speed", SLOW_GPU, _plain(3000, 35.0, 1000, 250)),
    Traffic("no prefixes, 3 pickers", FOUR_GPUS, _plain(3000, 45.0, 1000, 250), 3),
    Traffic("shared prefixes, 3 pickers", FOUR_GPUS, _prefixed(2000, 40.0, 500, 150, 60, 16_384), 3),
    _published_trace(MOONCAKE, 240.0, 2.5),
)


def at_load(requests: Sequence[TenantRequest], load: float) -> list[TenantRequest]:
    """Return the same requests, `load` times as fast."""
    return [
        replace(request, sent=replace(request.sent, arrival_s=request.sent.arrival_s / load))
        for request in requests
    ]
