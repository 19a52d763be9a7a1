"""The replica on which a request has its first token soonest, as predicted."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from heapq import nsmallest
from typing import NamedTuple

from tangram.routing.replica import ReplicaLoad, ReplicaLoads, cached_tokens
from tangram.routing.request import RoutedRequest

RUNNERS_UP = 2
# What a second of the answer counts beside one before the first token, where the reader waits. Enough to
# level decode loads; with 1, prompts leave their prefixes too easily (benchmarks/routing).
ANSWER_WEIGHT = 0.2
_TIE_DIGITS = 4  # of seconds: what differs by less is equal


class RefusalCause(StrEnum):
    """Why a request is not sent."""

    NO_REPLICA = "no replica"  # there is none: 503
    SUBSET_IS_EMPTY = "no replica in the subset"  # the gateway allows none of ours: 503
    TOO_LONG = "too long"  # for every replica, or for the tenant: 400
    SHED = "shed"  # its deadline would be missed: 429
    HELD_LIMIT = "too many requests held"  # by count or bytes: 429


@dataclass(frozen=True, slots=True)
class RoutingRefusal:
    """A request that is not sent."""

    cause: RefusalCause
    retry_after_s: float | None = None  # None: trying again does not help


class ReplicaScore(NamedTuple):
    """One replica, as a request would find it. The lowest takes it."""

    is_too_long: bool  # for its KV cache
    score_s: float  # `ttft_s`, what the prompt delays others, and a share of the answer (`pick`)
    used_at: float  # last request sent
    place: int
    address: str
    wait_s: float  # before its prefill begins
    ttft_s: float
    tpot_s: float
    meets_tpot: bool  # the objective, with this request beside what runs there
    cached_tokens: float
    gpu_seconds: float
    answer_gpu_seconds: float


@dataclass(frozen=True, slots=True)
class ReplicaChoice:
    """The replica that takes a request, as predicted."""

    address: str
    wait_s: float  # before its prefill begins
    ttft_s: float
    tpot_s: float
    cached_tokens: float
    gpu_seconds: float  # of prefill and answer
    answer_gpu_seconds: float
    meets_tpot: bool  # False: no replica takes one more within its TPOT objective
    runners_up: tuple[ReplicaScore, ...] = ()


def pick(
    request: RoutedRequest,
    loads: ReplicaLoads,
    now: float,
    subset: Collection[str] | None = None,
) -> ReplicaChoice | RoutingRefusal:
    """Return the replica with the lowest score, among those of `subset` where it is given.

    The score is the predicted time to first token, the delay of the prompts that come behind this one, a
    share of the answer's time, and all of what the answer takes beyond the TPOT objective. Of equal scores,
    the replica that was sent a request least recently takes it: cold prefixes spread over the caches. Nothing
    is noted: the caller calls `loads.started`.
    """
    replicas: Collection[ReplicaLoad] = loads.replicas.values()
    if not replicas:
        return RoutingRefusal(RefusalCause.NO_REPLICA)
    if subset is not None:
        replicas = [loads.replicas[address] for address in subset if address in loads.replicas]
        if not replicas:
            return RoutingRefusal(RefusalCause.SUBSET_IS_EMPTY)
    loads.let_time_pass(now)
    best, *runners_up = nsmallest(1 + RUNNERS_UP, _scores(request, loads, replicas, now))
    return ReplicaChoice(
        best.address,
        best.wait_s,
        best.ttft_s,
        best.tpot_s,
        best.cached_tokens,
        best.gpu_seconds,
        best.answer_gpu_seconds,
        best.meets_tpot,
        tuple(runners_up),
    )


class _Expected(NamedTuple):
    """What a request will take, wherever it goes."""

    prompt_tokens: int
    answer_tokens: float
    context_tokens: float  # that it holds on average


def _scores(
    request: RoutedRequest, loads: ReplicaLoads, replicas: Collection[ReplicaLoad], now: float
) -> list[ReplicaScore]:
    matched = loads.prefixes.matched_blocks(request.blocks)
    answer_tokens, context_tokens = loads.answer_tokens(request), loads.context_tokens(request)
    expected = _Expected(request.prompt_tokens, answer_tokens, context_tokens)
    scores = []
    for load in replicas:
        cached = cached_tokens(request, matched[load.place]) if load.place in matched else 0.0
        scores.append(_score(expected, load, cached, now))
    return scores


def _score(expected: _Expected, load: ReplicaLoad, cached: float, now: float) -> ReplicaScore:
    """Score one replica.

    A prompt delays those behind it: in a steady queue as many come while it waits as wait before it
    (Little's law). Without that term a request leaves the replica that holds its prefix for any that is idle
    sooner, and under load each prefix is computed everywhere: what one request gains, those behind it lose.
    """
    rates, (prompt, answer, context) = load.rates, expected
    tpot_s = rates.step_s(load.running + 1, load.context_tokens + context) * load.step_ratio.at(now)
    prefill_s = rates.prefill_s(prompt - cached, cached) * load.prefill_ratio.at(now)
    wait_s = max(load.backlog_s(now), _wait_s(load, context, answer * tpot_s))
    ttft_s = wait_s + prefill_s + tpot_s
    answer_s = answer * (ANSWER_WEIGHT * tpot_s + max(0.0, tpot_s - rates.tpot_objective_s))
    answer_gpu_seconds = rates.gpus * answer * tpot_s / (load.running + 1)
    return ReplicaScore(
        rates.kv_tokens is not None and context > rates.kv_tokens,
        round(ttft_s + len(load.pending) * prefill_s + answer_s, _TIE_DIGITS),
        load.used_at,
        load.place,
        load.address,
        wait_s,
        ttft_s,
        tpot_s,
        tpot_s <= rates.tpot_objective_s,
        cached,
        rates.gpus * prefill_s + answer_gpu_seconds,
        answer_gpu_seconds,
    )


def _wait_s(load: ReplicaLoad, context: float, answer_s: float) -> float:
    """Seconds until a replica has a slot and KV blocks for one more request, which its running ones free."""
    rates = load.rates
    missing = (load.running + 1 - rates.most_running) / rates.most_running
    if rates.kv_tokens is not None:
        missing = max(missing, (load.context_tokens + context) / rates.kv_tokens - 1)
    return missing * (load.residence_s or answer_s) if missing > 0 else 0.0
