"""Requests served by one replica, in an open or a closed loop: their times, and those of the replica."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.load.replica_simulation import ReplicaSimulation
from tangram.capacity.load.traffic import SimulatedRequest
from tangram.capacity.steps.decode_runs import Steps


@dataclass(frozen=True, slots=True)
class SimResult:
    """Times of the requests, in their order, and the replica's time by kind of step. Seconds."""

    queue_s: tuple[float, ...]  # from arrival to admission
    ttft_s: tuple[float, ...]
    tpot_s: tuple[float, ...]  # 0 for an answer of one token, which has no gap
    e2e_s: tuple[float, ...]
    admitted: tuple[int, ...]  # requests in the order of their first admission
    duration_s: float  # from 0 to the end of the last request
    prefill_s: float  # in steps that computed prompt tokens, decodes beside them included
    decode_s: float  # in steps that only decoded
    steps: int
    prefill_tokens: int  # computed, again where a request was preempted
    preemptions: int
    mean_running: float  # over the whole duration
    peak_blocks: int  # KV blocks held at the fullest moment

    @property
    def utilisation(self) -> float:
        """Share of the time in which the replica worked."""
        return (self.prefill_s + self.decode_s) / self.duration_s if self.duration_s else 0.0


def simulate(
    model: Steps,
    limits: EngineLimits,
    requests: Sequence[SimulatedRequest],
    concurrency: int | None = None,
    steps_at_once: int | None = None,
) -> SimResult:
    """Serve `requests`, which are sorted by arrival; raise `ValueError` if one can never be served.

    With `concurrency`, arrivals are not looked at: that many requests are sent at 0, and another whenever one
    has finished, which its client hears when the next step has begun. `steps_at_once` bounds how many steps
    are taken together, for tests.
    """
    replica = ReplicaSimulation(model, limits, steps_at_once=steps_at_once)
    if concurrency is None:
        for request in requests:
            replica.send(request, request.arrival_s)
        replica.drain()
    else:
        _serve_closed_loop(replica, requests, concurrency)
    return _result(replica)


def _serve_closed_loop(
    replica: ReplicaSimulation, requests: Sequence[SimulatedRequest], concurrency: int
) -> None:
    unsent = deque(requests)
    ends = [0.0] * min(concurrency, len(unsent))  # of the last requests of the clients that send now
    next_ends: list[float] = []  # likewise, of the clients that hear of it when the next step has begun
    while True:
        for at in ends:
            replica.send(unsent.popleft(), at)
        ends = next_ends
        if replica.is_idle:
            for at in ends:
                replica.send(unsent.popleft(), at)
            ends = []
        finished = replica.finished
        if not replica.turn(math.inf, 1 if ends else replica.steps_at_once):
            return
        next_ends = [replica.now] * min(replica.finished - finished, len(unsent) - len(ends))


def _result(replica: ReplicaSimulation) -> SimResult:
    """Return what happened to a replica whose requests have finished."""
    whole = [end - start for start, end in zip(replica.arrival, replica.last, strict=True)]
    ttft = [first - start for start, first in zip(replica.arrival, replica.first, strict=True)]
    gaps = [request.output_tokens - 1 for request in replica.requests]
    tpot = [(e - t) / gap if gap else 0.0 for e, t, gap in zip(whole, ttft, gaps, strict=True)]
    return SimResult(
        queue_s=tuple(replica.queued),
        ttft_s=tuple(ttft),
        tpot_s=tuple(tpot),
        e2e_s=tuple(whole),
        admitted=tuple(replica.admitted),
        duration_s=replica.now,
        prefill_s=replica.prefill_time,
        decode_s=replica.decode_time,
        steps=replica.steps,
        prefill_tokens=replica.prefill_tokens,
        preemptions=replica.preemptions,
        mean_running=replica.running_time / replica.now if replica.now else 0.0,
        peak_blocks=replica.peak_blocks,
    )
