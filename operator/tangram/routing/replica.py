"""The load of each replica, as one picker knows it: by the requests that it sent, and what became of them."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from tangram.routing.correction import RatioEstimate
from tangram.routing.prefix_index import MOST_ENTRIES, PrefixIndex
from tangram.routing.request import RoutedRequest

ANSWER_TOKENS = 256.0  # until answers have ended
_NEW_ANSWER = 0.02  # weight of a new answer in means: they remember about the last fifty


@dataclass(frozen=True, slots=True)
class ReplicaRates:
    """How fast a replica is, as predicted: seconds are linear in what they depend on. See `rates`."""

    prefill_tokens_per_s: float
    step_base_s: float  # of a decode step
    step_per_running_s: float = 0.0
    step_per_context_token_s: float = 0.0  # of all running requests together
    prefill_per_pair_s: float = 0.0  # attention: per prompt token and token before it
    most_running: int = 256
    kv_tokens: int | None = None  # room of the KV cache; None: never the limit
    tpot_objective_s: float = math.inf
    gpus: float = 1.0  # dominant share of a GPU, times GPUs: what a second of the replica costs

    def __post_init__(self) -> None:
        """Raise `ValueError` for rates that no replica has: a NaN would never be picked, or always."""
        times = (
            self.step_base_s,
            self.step_per_running_s,
            self.step_per_context_token_s,
            self.prefill_per_pair_s,
        )
        if not (0 < self.prefill_tokens_per_s < math.inf and 0 < self.gpus < math.inf):
            raise ValueError("prefill_tokens_per_s and gpus are positive numbers")
        if not all(0 <= seconds < math.inf for seconds in times) or not self.tpot_objective_s > 0:
            raise ValueError("step times are not negative, and the TPOT objective is positive")
        if self.most_running < 1 or (self.kv_tokens is not None and self.kv_tokens < 1):
            raise ValueError("a replica has room for one request at least")

    def prefill_s(self, tokens: float, cached: float = 0.0) -> float:
        """Seconds to compute `tokens` of a prompt behind `cached` ones, alone."""
        return tokens / self.prefill_tokens_per_s + self.prefill_per_pair_s * tokens * (cached + tokens / 2)

    def step_s(self, running: float, context_tokens: float = 0.0) -> float:
        """Seconds of a decode step of `running` requests that hold `context_tokens` together.

        What has no slot or no KV block waits, and is in no step.
        """
        if self.kv_tokens is not None and context_tokens > self.kv_tokens:
            running, context_tokens = running * self.kv_tokens / context_tokens, self.kv_tokens
        if running > self.most_running:
            running, context_tokens = self.most_running, context_tokens * self.most_running / running
        return (
            self.step_base_s
            + self.step_per_running_s * running
            + self.step_per_context_token_s * context_tokens
        )


@dataclass(slots=True, eq=False)
class ReplicaLoad:
    """What runs and waits on one replica. Sums are kept, so that a pick reads a few numbers."""

    address: str
    place: int  # in the prefix index
    rates: ReplicaRates
    pending: deque["StartedRequest"] = field(default_factory=deque)  # no first token yet, as they were sent
    pending_s: float = 0.0  # predicted prefill of those
    service_began_at: float = 0.0  # of the first pending one
    running: int = 0  # requests sent and not ended
    context_tokens: float = 0.0  # that these hold, half of their expected answers included
    used_at: float = -math.inf  # last request sent
    residence_s: float = 0.0  # mean of requests from first token to end; 0: none has ended
    prefill_ratio: RatioEstimate = field(default_factory=RatioEstimate)
    step_ratio: RatioEstimate = field(default_factory=RatioEstimate)

    @property
    def is_full(self) -> bool:
        """Whether requests wait for a slot or for KV blocks."""
        kv_tokens = self.rates.kv_tokens
        return self.running > self.rates.most_running or (
            kv_tokens is not None and self.context_tokens > kv_tokens
        )

    def backlog_s(self, now: float) -> float:
        """Seconds until the prompts that were sent are computed.

        A first token that is overdue is expected to take as long again: a replica that has stopped, and that
        nothing reports yet, must not look like one whose queue has ended.
        """
        if not self.pending:
            return 0.0
        ratio = self.prefill_ratio.at(now)
        first_s = self.pending[0].prefill_s * ratio
        return self.pending_s * ratio - first_s + abs(first_s - (now - self.service_began_at))


@dataclass(slots=True, eq=False)
class StartedRequest:
    """A request that was sent to a replica; the caller passes it back with what it sees."""

    request: RoutedRequest
    load: ReplicaLoad
    at: float
    cached_tokens: float  # as predicted
    prefill_s: float  # of its uncached tokens, as predicted, uncorrected
    context_tokens: float  # that it holds on average
    first_token_at: float | None = None
    has_ended: bool = False


class ReplicaLoads:
    """Loads of the replicas of one served model. A cache: a picker that starts anew is right after a while.

    `sees_first_tokens`: whether the caller reports them. If not, a prompt counts as computed when its
    predicted time is over, and predictions stay uncorrected.
    """

    def __init__(self, most_entries: int = MOST_ENTRIES, sees_first_tokens: bool = True) -> None:
        self.replicas: dict[str, ReplicaLoad] = {}
        self.prefixes = PrefixIndex(most_entries)
        self.sees_first_tokens = sees_first_tokens
        self.gpus = 0.0  # of all replicas
        self.mean_answer_tokens = ANSWER_TOKENS

    def set_replicas(self, rates: Mapping[str, ReplicaRates]) -> None:
        """Replace the replicas. Those that stay keep their loads; of those that went nothing is kept."""
        for address in self.replicas.keys() - rates.keys():
            self.prefixes.remove(self.replicas.pop(address).place)
        free = iter(sorted(set(range(len(rates))) - {load.place for load in self.replicas.values()}))
        added = []
        for address, of_replica in rates.items():
            if known := self.replicas.get(address):
                known.rates = of_replica
            else:
                added.append(next(free))
                self.replicas[address] = ReplicaLoad(address, added[-1], of_replica)
        self.prefixes.add(*added)
        self.gpus = sum(of_replica.gpus for of_replica in rates.values())

    def started(self, address: str, request: RoutedRequest, now: float) -> StartedRequest:
        """Note that a request was sent to a replica. Raises `KeyError` for one that is not there."""
        load = self.replicas[address]
        cached = cached_tokens(request, self.prefixes.matched_blocks(request.blocks).get(load.place, 0))
        prefill_s = load.rates.prefill_s(request.prompt_tokens - cached, cached)
        sent = StartedRequest(request, load, now, cached, prefill_s, self.context_tokens(request))
        if not load.pending:
            load.service_began_at = now
        load.pending.append(sent)
        load.pending_s += prefill_s
        load.running += 1
        load.context_tokens += sent.context_tokens
        load.used_at = now
        kv_tokens = load.rates.kv_tokens
        most_blocks = None if kv_tokens is None else int(kv_tokens / request.block_tokens)
        self.prefixes.store(load.place, request.blocks, most_blocks)
        return sent

    def first_token(self, sent: StartedRequest, now: float) -> None:
        """Note that a request has its first token: its prompt is computed."""
        load = sent.load
        if sent.first_token_at is not None or not self._is_here(load):
            return
        if not load.is_full:  # else it waited for a slot or for blocks, too
            observed_s = now - max(sent.at, load.service_began_at)
            expected_s = sent.prefill_s + load.rates.step_s(load.running, load.context_tokens)
            load.prefill_ratio.observe(observed_s, expected_s, now)
        self._computed(sent, now)

    def ended(self, sent: StartedRequest, now: float, answer_tokens: int | None = None) -> None:
        """Note that a request has ended, however it did. `answer_tokens`: as its usage says."""
        load = sent.load
        if sent.has_ended:
            return
        sent.has_ended = True
        if not self._is_here(load):
            return
        if sent.first_token_at is None:
            self._computed(sent, now)
        else:
            self._learn_from_answer(sent, now - sent.first_token_at, answer_tokens, now)
        load.running -= 1
        load.context_tokens = load.context_tokens - sent.context_tokens if load.running else 0.0

    def answer_tokens(self, request: RoutedRequest) -> float:
        """Return how long the answer is expected to be: as the last ones, unless the client allows less."""
        return min(float(request.most_tokens), self.mean_answer_tokens)

    def context_tokens(self, request: RoutedRequest) -> float:
        """Return how many tokens a request holds on average while it runs."""
        return request.prompt_tokens + self.answer_tokens(request) / 2

    def let_time_pass(self, now: float) -> None:
        """Where first tokens are not seen: end the prefills whose predicted time is over."""
        if self.sees_first_tokens:
            return
        for load in self.replicas.values():
            while load.pending:
                done_at = load.service_began_at + load.pending[0].prefill_s
                if done_at > now:
                    break
                self._computed(load.pending[0], done_at)

    def _is_here(self, load: ReplicaLoad) -> bool:
        return self.replicas.get(load.address) is load

    def _computed(self, sent: StartedRequest, now: float) -> None:
        load = sent.load
        sent.first_token_at = now
        load.pending.remove(sent)
        load.pending_s = load.pending_s - sent.prefill_s if load.pending else 0.0
        load.service_began_at = now

    def _learn_from_answer(
        self, sent: StartedRequest, decoded_s: float, answer_tokens: int | None, now: float
    ) -> None:
        load = sent.load
        load.residence_s += (decoded_s - load.residence_s) * (_NEW_ANSWER if load.residence_s else 1.0)
        if answer_tokens is None:
            return
        self.mean_answer_tokens += (answer_tokens - self.mean_answer_tokens) * _NEW_ANSWER
        step_s = load.rates.step_s(load.running, load.context_tokens)
        load.step_ratio.observe(decoded_s, step_s * (answer_tokens - 1), now)


def cached_tokens(request: RoutedRequest, blocks: int) -> float:
    """Return the tokens of the first `blocks` blocks; the last token of a prompt is always computed."""
    return min(blocks * request.block_tokens, request.prompt_tokens - 1.0)
