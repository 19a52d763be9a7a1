"""One replica, step by step: continuous batching as engines of today do it.

First come, first served. A step takes one token of every request that decodes and fills the rest of its token
budget with prompts, in chunks. A request is admitted when a slot is free and the blocks of its whole prompt
are; when decoding runs out of blocks, the request that came last gives its own back and is computed again.
While the batch stays the same, its steps are taken all at once (`decode_runs`).
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from tangram.capacity.load.traffic import SimulatedRequest
from tangram.capacity.steps.decode_runs import DecodeTimes, Steps
from tangram.fleet import DEFAULT_RUNNING_REQUESTS

# Closer than this is at the same time: durations are summed step by step or run by run, and rounded.
_INSTANT_S = 1e-6


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What an engine may do in one step and hold at one time."""

    # Requests that decode or prefill at the same time (--max-num-seqs).
    max_running: int = DEFAULT_RUNNING_REQUESTS
    max_batched_tokens: int = 8192  # tokens of one step, prompts and decodes together
    kv_tokens: int | None = None  # room of the KV cache in tokens; None: never the limit
    block_tokens: int = 16  # tokens of one KV block

    @property
    def kv_blocks(self) -> int | None:
        """Blocks of the KV cache, None if it is never the limit."""
        return None if self.kv_tokens is None else self.kv_tokens // self.block_tokens

    def slots(self, tokens: float) -> float:
        """Requests that run at the same time if each holds `tokens` tokens on average; at least 0."""
        most = float(min(self.max_running, self.max_batched_tokens))
        return most if self.kv_tokens is None else min(most, self.kv_tokens / max(tokens, 1.0))


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
    for request in requests:
        _check(request, limits)
    replica = _Replica(model, limits, requests, concurrency, steps_at_once)
    while replica.turn():
        pass
    return replica.result()


def _check(request: SimulatedRequest, limits: EngineLimits) -> None:
    if request.input_tokens < 1 or request.output_tokens < 1:
        raise ValueError("a request has at least one token of prompt and one of answer")
    needed = -(-(request.input_tokens + request.output_tokens - 1) // limits.block_tokens)
    if limits.kv_blocks is not None and needed > limits.kv_blocks:
        raise ValueError(f"a request needs {needed} KV blocks, the cache has {limits.kv_blocks}")


class _Replica:
    """The state of the simulation. Requests are known by their place in `requests`."""

    def __init__(
        self,
        model: Steps,
        limits: EngineLimits,
        requests: Sequence[SimulatedRequest],
        concurrency: int | None,
        steps_at_once: int | None,
    ) -> None:
        self.model, self.limits, self.requests = model, limits, requests
        self.times = DecodeTimes(model)
        self.closed = concurrency is not None
        self.steps_at_once = steps_at_once or 1 << 62
        self.slots = min(limits.max_running, limits.max_batched_tokens)
        self.free = limits.kv_blocks if limits.kv_blocks is not None else 1 << 62
        self.all_blocks = self.free

        self.now = 0.0
        self.next = 0  # first request that has not come yet
        self.waiting: deque[int] = deque()
        self.running: dict[int, None] = {}  # in the order of admission; the last is preempted first
        self.prefilling: dict[int, int] = {}  # request -> prompt tokens computed
        self.epochs: dict[int, int] = {}  # decoding request -> which of its entries in `finishes` holds
        self.finishes: list[tuple[int, int, int]] = []  # (decode step, request, epoch), a heap
        self.decode_steps = 0
        self.context = 0  # tokens that the decoding requests attend to in the next step, all together
        self.phases = [0] * limits.block_tokens  # decoding requests by the step, mod block, that takes one

        count = len(requests)
        self.generated = [0] * count
        self.phase = [0] * count
        self.epoch = [0] * count
        self.arrival = [0.0] * count if self.closed else [request.arrival_s for request in requests]
        self.first = [math.nan] * count
        self.last = [math.nan] * count
        self.queued = [math.nan] * count
        self.admitted: list[int] = []
        self.steps = self.prefill_tokens = self.preemptions = 0
        self.prefill_time = self.decode_time = self.running_time = 0.0
        self.peak_blocks = 0
        # Of a closed loop: requests that ended in the last step, and those whose clients have heard of it.
        self.left, self.heard = 0, min(concurrency or 0, count)
        self.sent = self.heard

    # -- arrivals ------------------------------------------------------------------------------------------

    def _come(self) -> None:
        self.waiting.append(self.next)
        self.next += 1

    def _arrivals(self) -> None:
        for _ in range(self.heard):
            self._come()
        self.heard, self.left = self.left, 0
        came = self.now + _INSTANT_S
        while not self.closed and self.next < len(self.requests) and self.arrival[self.next] <= came:
            self._come()

    def turn(self) -> bool:
        """Take one mixed step or a run of decode steps, or wait for a request; False when all is done."""
        self._arrivals()
        if not self.running and not self.waiting:
            if self.next >= len(self.requests):
                return False
            if not self.closed:
                self.now = self.arrival[self.next]
            self._arrivals()
        preempted = self._make_room()
        chunks = self._schedule(preempted)
        if chunks:
            self._mixed_step(chunks)
        else:
            # Preempted requests may fit again a step later, and ended ones are replaced a step later.
            self._decode_run(1 if preempted or self.heard else self.steps_at_once)
        return True

    # -- KV blocks -----------------------------------------------------------------------------------------

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_tokens)

    def _blocks_in(self, steps: int) -> int:
        """Blocks that the decoding requests take in the next `steps` steps."""
        size = self.limits.block_tokens
        cycles, rest = divmod(steps, size)
        start = self.decode_steps
        return cycles * len(self.epochs) + sum(self.phases[(start + i) % size] for i in range(rest))

    def _make_room(self) -> bool:
        """Preempt from the youngest until the next decode step finds its blocks."""
        preempted = False
        while self._blocks_in(1) > self.free:
            self._preempt(next(reversed(self.running)))
            preempted = True
        return preempted

    def _preempt(self, request: int) -> None:
        if request in self.epochs:
            self._stop_decoding(request)
        self.free += self._held(request)
        self.prefilling.pop(request, None)
        del self.running[request]
        self.waiting.appendleft(request)
        self.preemptions += 1

    def _held(self, request: int) -> int:
        """Blocks of a running request: its whole prompt from the start, and one token per decode step."""
        tokens = self.requests[request].input_tokens + self.generated[request]
        return self._blocks_of(tokens if request in self.prefilling else tokens - 1)

    # -- scheduling ----------------------------------------------------------------------------------------

    def _schedule(self, preempted: bool) -> list[tuple[int, int]]:
        """Return (request, prompt tokens) of the next step; the rest of the budget is decodes."""
        budget = self.limits.max_batched_tokens - len(self.epochs)
        chunks = []
        for request, done in self.prefilling.items():
            chunk = min(budget, self._target(request) - done)
            if chunk <= 0:
                break
            chunks.append((request, chunk))
            budget -= chunk
        while budget > 0 and not preempted and self._can_admit():
            request = self._admit()
            chunk = min(budget, self._target(request))
            chunks.append((request, chunk))
            budget -= chunk
        return chunks

    def _target(self, request: int) -> int:
        """Tokens to compute before the next one is sampled: after a preemption, the answer so far too."""
        return self.requests[request].input_tokens + self.generated[request]

    def _can_admit(self) -> bool:
        if not self.waiting or len(self.running) >= self.slots:
            return False
        # The decodes of this step take theirs first.
        return self._blocks_of(self._target(self.waiting[0])) + self._blocks_in(1) <= self.free

    def _admit(self) -> int:
        request = self.waiting.popleft()
        self.free -= self._blocks_of(self._target(request))
        self.prefilling[request] = 0
        self.running[request] = None
        if not self.epoch[request]:
            self.admitted.append(request)
            self.queued[request] = max(0.0, self.now - self.arrival[request])
        self.epoch[request] += 1
        return request

    # -- time ----------------------------------------------------------------------------------------------

    def _mixed_step(self, chunks: list[tuple[int, int]]) -> None:
        tokens = sum(chunk for _, chunk in chunks)
        pairs = sum(chunk * (self.prefilling[request] + chunk / 2) for request, chunk in chunks)
        decoding = len(self.epochs)
        mean = self.context / decoding if decoding else 0.0
        seconds = self.model.step_s(decoding, mean, tokens, pairs / tokens).total
        self.prefill_time += seconds
        self.prefill_tokens += tokens
        self._pass(1, seconds)
        for request, chunk in chunks:
            self._computed(request, chunk)

    def _decode_run(self, most: int) -> None:
        """Take at most `most` steps, until a request finishes, can be admitted, or lacks a block."""
        decoding = len(self.epochs)
        most = self._steps_with_blocks(min(self.finishes[0][0] - self.decode_steps, most))
        until = math.inf
        open_door = not self.waiting and len(self.running) < self.slots
        if open_door and not self.closed and self.next < len(self.requests):
            until = self.arrival[self.next] - self.now - _INSTANT_S
        steps, seconds = self.times.run(decoding, self.context / decoding, most, until)
        self.decode_time += seconds
        self._pass(steps, seconds)

    def _steps_with_blocks(self, most: int) -> int:
        if self._blocks_in(most) <= self.free:
            return most
        low, high = 1, most  # one step has its blocks: `_make_room` ensures it
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._blocks_in(middle) <= self.free else (low, middle)
        return low

    def _pass(self, steps: int, seconds: float) -> None:
        """Let `steps` decode steps happen: clock, blocks, contexts, finished requests."""
        decoding = len(self.epochs)
        self.now += seconds
        self.running_time += seconds * len(self.running)
        self.steps += steps
        self.free -= self._blocks_in(steps)
        self.peak_blocks = max(self.peak_blocks, self.all_blocks - self.free)
        self.context += steps * decoding
        self.decode_steps += steps
        while self.finishes and self.finishes[0][0] <= self.decode_steps:
            _, request, epoch = heappop(self.finishes)
            if self.epochs.get(request) == epoch:
                self._finish_decoding(request)
        while self.finishes and self.epochs.get(self.finishes[0][1]) != self.finishes[0][2]:
            heappop(self.finishes)  # of requests preempted since

    # -- requests ------------------------------------------------------------------------------------------

    def _computed(self, request: int, chunk: int) -> None:
        """Count a chunk of a prompt; the last one yields a token."""
        self.prefilling[request] += chunk
        if self.prefilling[request] < self._target(request):
            return
        held = self._held(request)
        del self.prefilling[request]
        self.generated[request] += 1
        if self.generated[request] == 1:
            self.first[request] = self.now
        left = self.requests[request].output_tokens - self.generated[request]
        if left <= 0:
            self.free += held
            self._leave(request)
            return
        self._start_decoding(request, left)

    def _start_decoding(self, request: int, left: int) -> None:
        size = self.limits.block_tokens
        tokens = self.requests[request].input_tokens + self.generated[request]
        # A step takes a block when the tokens held before it, one less than `tokens`, fill theirs.
        self.phase[request] = (self.decode_steps - tokens + 1) % size
        self.phases[self.phase[request]] += 1
        self.context += tokens
        self.epochs[request] = self.epoch[request]
        heappush(self.finishes, (self.decode_steps + left, request, self.epoch[request]))
        # Until it stops, `generated` counts from the decode step at which it began.
        self.generated[request] -= self.decode_steps

    def _stop_decoding(self, request: int) -> None:
        self.phases[self.phase[request]] -= 1
        self.context -= self.requests[request].input_tokens + self.generated[request] + self.decode_steps
        self.generated[request] += self.decode_steps
        del self.epochs[request]

    def _finish_decoding(self, request: int) -> None:
        self._stop_decoding(request)
        self.free += self._held(request)
        self._leave(request)

    def _leave(self, request: int) -> None:
        del self.running[request]
        self.last[request] = self.now
        if self.closed and self.sent < len(self.requests):
            self.arrival[self.sent] = self.now
            self.sent += 1
            self.left += 1

    def result(self) -> SimResult:
        """Return what happened."""
        whole = [end - start for start, end in zip(self.arrival, self.last, strict=True)]
        ttft = [first - start for start, first in zip(self.arrival, self.first, strict=True)]
        gaps = [request.output_tokens - 1 for request in self.requests]
        tpot = [(e - t) / gap if gap else 0.0 for e, t, gap in zip(whole, ttft, gaps, strict=True)]
        return SimResult(
            queue_s=tuple(self.queued),
            ttft_s=tuple(ttft),
            tpot_s=tuple(tpot),
            e2e_s=tuple(whole),
            admitted=tuple(self.admitted),
            duration_s=self.now,
            prefill_s=self.prefill_time,
            decode_s=self.decode_time,
            steps=self.steps,
            prefill_tokens=self.prefill_tokens,
            preemptions=self.preemptions,
            mean_running=self.running_time / self.now if self.now else 0.0,
            peak_blocks=self.peak_blocks,
        )
