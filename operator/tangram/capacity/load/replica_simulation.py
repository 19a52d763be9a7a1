"""One replica, step by step: continuous batching as engines of today do it. It takes requests while it runs.

First come, first served. A step takes one token of every request that decodes and fills the rest of its token
budget with prompts, in chunks. A request is admitted when a slot is free and the blocks of its whole prompt
are; when decoding runs out of blocks, the request that came last gives its own back and is computed again.
While the batch stays the same, its steps are taken all at once (`decode_runs`).
"""

import math
from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush

from tangram.capacity.load.engine_events import EngineEvent, EngineEventKind, EngineEvents
from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.load.prefix_cache import PrefixCache
from tangram.capacity.load.traffic import SimulatedRequest
from tangram.capacity.steps.decode_runs import DecodeTimes, Steps

# Closer than this is at the same time: durations are summed step by step or run by run, and rounded.
_INSTANT_S = 1e-6
ANY_STEPS = 1 << 62


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """What an engine reports about itself after a step."""

    running: int
    waiting: int
    kv_usage: float  # share of the KV blocks that running requests hold; 0 where the cache is never the limit


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Instants of one request, in seconds; NaN: not yet. One that expired finishes without a first token."""

    arrival_s: float
    admitted_s: float
    first_token_s: float
    finished_s: float
    preemptions: int


class ReplicaSimulation:
    """The state of one replica. Requests are numbered in the order in which they are sent.

    A step that has begun is taken whole: `now`, where the next one begins, may be later than the instant that
    the replica was advanced to. `times` may be shared by replicas of one model. A request that has waited for
    longer than `max_wait_s` expires. `steps_at_once` bounds how many steps are taken together, for tests.
    """

    def __init__(
        self,
        model: Steps,
        limits: EngineLimits,
        times: DecodeTimes | None = None,
        events: EngineEvents | None = None,
        prefixes: PrefixCache | None = None,
        max_wait_s: float = math.inf,
        steps_at_once: int | None = None,
    ) -> None:
        self.model, self.limits, self.events, self.prefixes = model, limits, events, prefixes
        self.times = times or DecodeTimes(model)
        self.max_wait_s = max_wait_s
        self.steps_at_once = steps_at_once or ANY_STEPS
        self.slots = min(limits.max_running, limits.max_batched_tokens)
        self.free = limits.kv_blocks if limits.kv_blocks is not None else ANY_STEPS
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

        self.requests: list[SimulatedRequest] = []
        self.generated: list[int] = []
        self.phase: list[int] = []
        self.epoch: list[int] = []  # admissions
        self.arrival: list[float] = []
        self.first: list[float] = []
        self.last: list[float] = []
        self.queued: list[float] = []
        self.preempted_at: dict[int, float] = {}  # preempted request that has no token since -> its last one
        self.admitted: list[int] = []
        self.steps = self.prefill_tokens = self.preemptions = self.finished = 0
        self.prefill_time = self.decode_time = self.running_time = 0.0
        self.peak_blocks = 0
        self._gauges = 0, 0, 0  # running, waiting, blocks in the last step

    # -- from outside ----------------------------------------------------------------------------------------

    def send(self, request: SimulatedRequest, at: float) -> int:
        """Add a request that arrives at `at`, not before those sent earlier. Return its number.

        Raises `ValueError` if it can never be served.
        """
        check_servable(request, self.limits)
        self.requests.append(request)
        self.generated.append(0)
        self.phase.append(0)
        self.epoch.append(0)
        self.arrival.append(at)
        self.first.append(math.nan)
        self.last.append(math.nan)
        self.queued.append(math.nan)
        return len(self.requests) - 1

    def advance(self, until: float) -> None:
        """Take every step that begins before `until`. What is sent later arrives at `until` or later."""
        while self.now < until and self.turn(until, self.steps_at_once):
            pass

    def drain(self) -> float:
        """Take every step until all requests have finished. Return when the last one did."""
        self.advance(math.inf)
        return self.now

    @property
    def outstanding(self) -> int:
        """Requests that were sent and have not finished."""
        return len(self.requests) - self.finished

    @property
    def is_idle(self) -> bool:
        """Whether every request that was sent has finished."""
        return not self.outstanding

    def unfinished(self) -> list[int]:
        """Return the requests that have not finished: those that are lost if the replica is lost now."""
        return [number for number, at in enumerate(self.last) if math.isnan(at)]

    def request_times(self, request: int) -> RequestTimes:
        """Return the instants of a request."""
        arrival, epoch = self.arrival[request], self.epoch[request]
        preemptions = max(0, epoch - 1) + (request in self.preempted_at and request not in self.running)
        return RequestTimes(
            arrival, arrival + self.queued[request], self.first[request], self.last[request], preemptions
        )

    def gauges(self, at: float) -> EngineGauges:
        """Return what the engine last reported before `at`, up to which the replica was advanced."""
        running, waiting, blocks = self._gauges if self.now >= at else (0, 0, 0)
        usage = blocks / self.all_blocks if self.limits.kv_blocks else 0.0
        return EngineGauges(running, waiting, usage)

    # -- arrivals ------------------------------------------------------------------------------------------

    def _arrivals(self) -> None:
        came, count = self.now + _INSTANT_S, len(self.arrival)
        while self.next < count and self.arrival[self.next] <= came:
            self.waiting.append(self.next)
            self.next += 1
        if self.max_wait_s < math.inf:
            self._expire()

    def _expire(self) -> None:
        """End requests that have waited for too long; one that was admitted before goes on."""
        while self.waiting:
            request = self.waiting[0]
            if self.epoch[request] or self.now - self.arrival[request] <= self.max_wait_s:
                return
            self.waiting.popleft()
            self.last[request] = self.now
            self.finished += 1

    def turn(self, until: float, most: int) -> bool:
        """Take one mixed step or a run of at most `most` decode steps, or wait for a request.

        False where there is nothing to do before `until`.
        """
        self._arrivals()
        if not self.running and not self.waiting:
            if self.next >= len(self.requests) or self.arrival[self.next] >= until:
                return False
            self.now = self.arrival[self.next]
            self._arrivals()
        preempted = self._make_room()
        chunks = self._schedule(preempted)
        if chunks:
            self._mixed_step(chunks)
        else:
            self._decode_run(1 if preempted else most, until)  # preempted requests may fit a step later
        return True

    # -- KV blocks -----------------------------------------------------------------------------------------

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_tokens)

    def _blocks_in(self, steps: int) -> int:
        """Blocks that the decoding requests take in the next `steps` steps."""
        phases = self.phases
        size = len(phases)
        start = self.decode_steps % size
        if steps == 1:
            return phases[start]
        cycles, rest = divmod(steps, size)
        end = start + rest
        blocks = sum(phases[start:end]) if end <= size else sum(phases[start:]) + sum(phases[: end - size])
        return cycles * len(self.epochs) + blocks

    def _make_room(self) -> bool:
        """Preempt from the youngest until the next decode step finds its blocks."""
        preempted = False
        phases, size = self.phases, len(self.phases)
        while phases[self.decode_steps % size] > self.free:
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
        self.preempted_at.setdefault(request, self.now)

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
            chunk = min(budget, self._target(request) - self.prefilling[request])
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
        self.prefilling[request] = self._cached_tokens(request)
        self.running[request] = None
        if not self.epoch[request]:
            self.admitted.append(request)
            self.queued[request] = max(0.0, self.now - self.arrival[request])
        self.epoch[request] += 1
        return request

    def _cached_tokens(self, request: int) -> int:
        """Tokens of a prompt that need not be computed; the last one always is, to sample from."""
        if self.prefixes is None:
            return 0
        sent = self.requests[request]
        return min(self.prefixes.cached_tokens(sent.prefix_blocks), sent.input_tokens - 1)

    # -- time ----------------------------------------------------------------------------------------------

    def _mixed_step(self, chunks: list[tuple[int, int]]) -> None:
        tokens, pairs = 0, 0.0  # a loop: mostly there is one chunk
        for request, chunk in chunks:
            tokens += chunk
            pairs += chunk * (self.prefilling[request] + chunk / 2)
        decoding = len(self.epochs)
        mean = self.context / decoding if decoding else 0.0
        seconds = self.model.step_s(decoding, mean, tokens, pairs / tokens).total
        self.prefill_time += seconds
        self.prefill_tokens += tokens
        if self.events is not None and decoding:
            self._record(self.now + seconds, EngineEventKind.TOKEN_GAPS, decoding, seconds)
        self._pass(1, seconds)
        for request, chunk in chunks:
            self._computed(request, chunk)

    def _decode_run(self, most: int, until: float) -> None:
        """Take at most `most` steps, until a request finishes, is admitted, or lacks a block, or `until`."""
        decoding = len(self.epochs)
        most = self._steps_with_blocks(min(self.finishes[0][0] - self.decode_steps, most))
        left_s = until - self.now
        open_door = not self.waiting and len(self.running) < self.slots
        if open_door and self.next < len(self.requests):
            left_s = min(left_s, self.arrival[self.next] - self.now - _INSTANT_S)
        steps, seconds = self.times.run(decoding, self.context / decoding, most, left_s)
        self.decode_time += seconds
        if self.events is not None:
            self._record_run(steps, seconds, decoding, until)
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
        blocks = self.all_blocks - self.free
        self.peak_blocks = max(self.peak_blocks, blocks)
        self._gauges = len(self.running), len(self.waiting), blocks
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
        self._token_after_prefill(request)
        left = self.requests[request].output_tokens - self.generated[request]
        if left <= 0:
            self.free += held
            self._leave(request)
            return
        self._start_decoding(request, left)

    def _token_after_prefill(self, request: int) -> None:
        since = self.preempted_at.pop(request, None) if self.preempted_at else None
        if self.generated[request] == 1:
            self.first[request] = self.now
            self._record(self.now, EngineEventKind.FIRST_TOKEN, request)
        elif since is not None:
            self._record(self.now, EngineEventKind.TOKEN_GAPS, 1, self.now - since)
        if self.prefixes is not None:
            self.prefixes.store(self.requests[request].prefix_blocks)

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
        self.finished += 1
        self._record(self.now, EngineEventKind.FINISHED, request)

    # -- events ----------------------------------------------------------------------------------------------

    def _record(self, at: float, kind: EngineEventKind, request: int, seconds: float = 0.0) -> None:
        if self.events is not None:
            self.events.unread.append(EngineEvent(at, kind, request, seconds))

    def _record_run(self, steps: int, seconds: float, decoding: int, until: float) -> None:
        """Record the gaps of a run of decode steps, each of the mean length, as of its end.

        The last step may end after `until`: its gaps are an event of their own.
        """
        end, gap = self.now + seconds, seconds / steps
        if end > until and steps > 1:
            before = min(until, end - gap)  # the last step of a run is its longest
            self._record(before, EngineEventKind.TOKEN_GAPS, decoding * (steps - 1), gap)
            steps = 1
        self._record(end, EngineEventKind.TOKEN_GAPS, decoding * steps, gap)


def check_servable(request: SimulatedRequest, limits: EngineLimits) -> None:
    """Raise `ValueError` if an engine with these limits can never serve this request."""
    if request.input_tokens < 1 or request.output_tokens < 1:
        raise ValueError("a request has at least one token of prompt and one of answer")
    needed = -(-(request.input_tokens + request.output_tokens - 1) // limits.block_tokens)
    if limits.kv_blocks is not None and needed > limits.kv_blocks:
        raise ValueError(f"a request needs {needed} KV blocks, the cache has {limits.kv_blocks}")
