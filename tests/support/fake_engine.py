"""An engine without a model: it repeats the prompt's tokens, keeps KV accounts, and fails when told to.

Same interface as LLMEngine, so that server tests run in milliseconds and can see faults that a real engine
must never have. The answer to a prompt is known in advance: token i is prompt[i mod len(prompt)].
"""

import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from tangram_engine.checkpoint import CheckpointError, RefusalReason
from tangram_engine.config import EngineConfig
from tangram_engine.messages import EngineInfo, StepStats, TokenOutput
from tangram_engine.sample.prompt_logprobs import PromptLogprobs
from tangram_engine.sample.vocabulary import Vocabulary
from tangram_engine.schedule.request import Request
from tangram_engine.start_error import StartError

EOS = 1
CUDA_ERROR = """CUDA error: an illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
"""
AUDIT_SLICE_S = 0.001


@dataclass(frozen=True)
class Behaviour:
    """What the fake does. Token ids that trigger a fault do so when they stand in a prompt."""

    step_seconds: float = 0.0
    load_seconds: float = 0.0
    num_blocks: int = 1024
    max_model_len: int = 512
    vocab_size: int = 320
    start_error: str | None = None  # raise StartError with this message while loading
    refuse: str | None = None  # raise CheckpointError with this message while loading
    crash_token: int | None = None  # raise in the step after such a prompt arrived
    error_token: int | None = None  # end such a request with finish "error"
    audit_seconds: float = 0.0
    unbalanced: bool = False  # the audit fails once a request has been there


@dataclass
class _Running:
    request: Request
    cached: int
    scheduled: float
    tokens: int = 0


@dataclass
class FakeEngine:
    """See the module."""

    config: EngineConfig
    behaviour: Behaviour
    waiting: list[Request] = field(default_factory=list)
    running: dict[str, _Running] = field(default_factory=dict)
    seen: set[tuple[bytes, tuple[int, ...]]] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.behaviour.refuse is not None:
            raise CheckpointError(RefusalReason.INVALID, self.behaviour.refuse)
        if self.behaviour.start_error is not None:
            raise StartError(self.behaviour.start_error)
        time.sleep(self.behaviour.load_seconds)
        self.info = EngineInfo(
            block_size=self.config.block_size,
            num_blocks=self.behaviour.num_blocks,
            max_model_len=self.config.max_model_len or self.behaviour.max_model_len,
            max_num_seqs=self.config.max_num_seqs,
            max_num_batched_tokens=self.config.max_num_batched_tokens or 512,
            vocab_size=self.behaviour.vocab_size,
            dtype="float32",
            device="fake",
            load_seconds=0.25,
            warmup_seconds=0.5,
        )

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def abort(self, request_id: str) -> bool:
        before = len(self.waiting)
        self.waiting = [request for request in self.waiting if request.id != request_id]
        return self.running.pop(request_id, None) is not None or len(self.waiting) < before

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """What this engine says is known in advance: a grammar changes nothing."""

    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def step(self) -> tuple[list[TokenOutput], StepStats]:
        started = self._admit(time.monotonic())
        time.sleep(self.behaviour.step_seconds)
        outputs = [self._advance(state) for state in list(self.running.values())]
        return outputs, StepStats(
            running=len(self.running),
            waiting=len(self.waiting),
            kv_used_blocks=sum(self._blocks(state) for state in self.running.values()),
            kv_total_blocks=self.behaviour.num_blocks,
            preemptions=0,
            batch_tokens=len(outputs) + sum(len(s.request.prompt) - 1 - s.cached for s in started),
            prompt_tokens=sum(len(state.request.prompt) - state.cached for state in started),
            prefix_queries=sum(len(state.request.prompt) for state in started),
            prefix_hits=sum(state.cached for state in started),
            step_seconds=self.behaviour.step_seconds,
        )

    def audit_slices(self) -> Iterator[None]:
        for _ in range(round(self.behaviour.audit_seconds / AUDIT_SLICE_S)):
            time.sleep(AUDIT_SLICE_S)
            yield
        assert not self.running
        assert not self.waiting
        assert not (self.behaviour.unbalanced and self.seen), "block 7: 1 references, 0 holders"

    def _admit(self, now: float) -> list[_Running]:
        started = []
        while self.waiting and len(self.running) < self.config.max_num_seqs:
            request = self.waiting.pop(0)
            if self.behaviour.crash_token in request.prompt:
                raise RuntimeError(CUDA_ERROR)
            size = self.config.block_size
            content = (request.cache_root, request.prompt)
            cached = (len(request.prompt) - 1) // size * size if content in self.seen else 0
            self.seen.add(content)
            state = self.running[request.id] = _Running(request, cached, now)
            started.append(state)
        return started

    def _blocks(self, state: _Running) -> int:
        return -(-(len(state.request.prompt) + state.tokens) // self.config.block_size)

    def _advance(self, state: _Running) -> TokenOutput:
        request, params = state.request, state.request.params
        if self.behaviour.error_token in request.prompt:
            del self.running[request.id]
            return TokenOutput(request.id, -1, None, (), "error", 0, 0.0, 0)
        token = request.prompt[state.tokens % len(request.prompt)]
        state.tokens += 1
        finish = None
        if (token == EOS and not params.ignore_eos) or token in params.stop_token_ids:
            finish = "stop"
        elif state.tokens >= params.max_tokens:
            finish = "length"
        if finish is not None:
            del self.running[request.id]
        logprob, top = None, ()
        if params.logprobs is not None:
            logprob = -0.25
            top = tuple(((token + i) % self.behaviour.vocab_size, -0.25 - i) for i in range(params.logprobs))
        scores = _prompt_logprobs(request) if state.tokens == 1 else None
        return TokenOutput(request.id, token, logprob, top, finish, state.cached, state.scheduled, 0, scores)


def _prompt_logprobs(request: Request) -> PromptLogprobs | None:
    """Of the token at position p: -p, with the rank 2; the most likely ones are the ids from 0, with -1."""
    most, behind = request.params.prompt_logprobs, range(1, len(request.prompt))
    if most is None or not behind:
        return None
    values, ranks = array("f", [-position for position in behind]), array("i", [2] * len(behind))
    ids, likely = array("i", [*range(most)] * len(behind)), array("f", [-1.0] * (most * len(behind)))
    return PromptLogprobs(*(column.tobytes() for column in (values, ranks, ids, likely)))


def build(config: EngineConfig, behaviour: Behaviour) -> FakeEngine:
    """For functools.partial: an engine factory that can be pickled by name."""
    return FakeEngine(config, behaviour)
