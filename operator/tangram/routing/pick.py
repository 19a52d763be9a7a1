"""The replica on which a request has its first token soonest, as predicted."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from tangram.routing.replica import ReplicaLoad, ReplicaLoads, cached_tokens_of
from tangram.routing.request import RoutedRequest

# Predictions that differ by less are equal: noise must not send all cold requests to one replica.
TIE_S = 0.001
TIE_SHARE = 0.02
RUNNERS_UP = 2


class RefusalCause(StrEnum):
    """Why a request is not sent."""

    NO_REPLICA = "no replica"  # there is none: 503
    SUBSET_IS_EMPTY = "no replica in the subset"  # the gateway allows none of ours: 503
    TOO_LONG = "too long"  # for every replica, or for the tenant: 400
    SHED = "shed"  # its deadline would be missed: 429
    HELD_LIMIT = "too many requests held"  # by count or bytes: 429


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that is not sent."""

    cause: RefusalCause
    retry_after_s: float | None = None  # None: trying again does not help


@dataclass(frozen=True, slots=True)
class ReplicaScore:
    """One replica, as a request would find it."""

    score_s: float  # what picks are by: `ttft_s` and the delay of the requests behind
    address: str
    ttft_s: float
    tpot_s: float
    cached_tokens: float
    meets_tpot: bool  # the TPOT objective of what runs there, this request included


@dataclass(frozen=True, slots=True)
class Choice:
    """The replica that takes a request."""

    address: str
    ttft_s: float  # predicted
    tpot_s: float
    cached_tokens: float
    meets_tpot: bool  # False: no replica takes one more within its TPOT objective
    runners_up: tuple[ReplicaScore, ...] = ()


def pick(
    request: RoutedRequest,
    loads: ReplicaLoads,
    now: float,
    subset: Collection[str] | None = None,
) -> Choice | Refusal:
    """Return the replica with the lowest score, among those of `subset` where it is given.

    Replicas whose TPOT objective holds with one more request go before all others. Of equal scores, the replica
    that was sent a request least recently takes it. Nothing is noted: the caller calls `loads.started`.
    """
    raise NotImplementedError
