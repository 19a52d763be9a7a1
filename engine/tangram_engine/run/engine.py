"""The engine: add requests, step, read tokens. Single-threaded; owns torch."""

import logging
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from tangram_engine.cache import BlockManager
from tangram_engine.config import EngineConfig
from tangram_engine.kernels.ops import Ops
from tangram_engine.messages import StepStats, TokenOutput
from tangram_engine.run.late_kernels import LateKernels
from tangram_engine.run.load import load
from tangram_engine.run.runner import Launched
from tangram_engine.sample.biases import RequestBiases, joined
from tangram_engine.sample.grammar import Grammars, RefusedGrammar
from tangram_engine.sample.masks import AllowedTokens, LogitEdits
from tangram_engine.sample.prompt_logprobs import PromptLogprobs
from tangram_engine.sample.sampler import Sampled
from tangram_engine.sample.vocabulary import Vocabulary
from tangram_engine.schedule import BatchRow, Request, ScheduledBatch, Scheduler, Sequence
from tangram_engine.schedule.request import defect

logger = logging.getLogger(__name__)

_COMPILE_WAIT_S = 0.01  # then the process looks for messages


class LLMEngine:
    """Continuous batching over one model.

    A request that cannot go on ends with "error", and its blocks return; only a failure of a whole step
    raises, after which the engine must not be used again.

    `lag` is how many steps the host is behind the device. With 1, the default on a GPU, a step is scheduled
    and launched while the device computes the one before, whose ids are collected afterwards. With 0, the
    default on a CPU, which would gain nothing, a step's ids come with that step. `ops`: see `load`.
    """

    def __init__(self, config: EngineConfig, lag: int | None = None, ops: Ops | None = None) -> None:
        loaded = load(config, ops=ops)
        self._lag = lag if lag is not None else int(loaded.runner.device.type == "cuda")
        self._runner = loaded.runner
        self.info = loaded.info
        self._blocks = BlockManager(self.info.num_blocks, config.block_size)
        self._scheduler = Scheduler(loaded.limits, self._blocks)
        self._in_flight: deque[tuple[ScheduledBatch, Launched]] = deque()
        self._rejected: list[TokenOutput] = []
        self._grammars = Grammars(self.info.vocab_size)
        self._biases: dict[str, RequestBiases] = {}  # of requests that have some
        self._prompt_logprobs: dict[str, PromptLogprobs] = {}  # that the first token will carry
        self._compiling: dict[str, tuple[Request, Future[Any]]] = {}
        self._end_tokens = loaded.limits.eos_token_ids
        self._late_kernels = LateKernels()

    def add(self, request: Request) -> None:
        """Queue a request. One that cannot be run ends with "error" in the next step."""
        reason = defect(request, self.info.vocab_size, self.info.max_model_len)
        if reason is None and (request.id in self._scheduler or request.id in self._compiling):
            reason = "its id is in use"
        if reason is None and request.params.biased:
            params = request.params
            stops = frozenset(params.stop_token_ids).union(() if params.ignore_eos else self._end_tokens)
            self._biases[request.id] = RequestBiases(params, stops, self.info.vocab_size)
        if reason is None and request.params.grammar is not None:
            self._compiling[request.id] = request, self._grammars.compile(request.params.grammar)
        elif reason is None:
            self._scheduler.add(request)
        else:
            self._rejected.append(_failure(request.id, reason))

    def abort(self, request_id: str) -> bool:
        """Forget a request, without any output; False if it is not known. See `Scheduler.remove`."""
        self._end(request_id)
        return self._compiling.pop(request_id, None) is not None or self._scheduler.remove(request_id)

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Know the tokens, which requests with a grammar need; to be called before the first of them."""
        ends = tuple({*vocabulary.ends, *self._end_tokens})
        self._grammars.use(Vocabulary(vocabulary.tokens, vocabulary.special, ends))

    def has_work(self) -> bool:
        """Whether the next step has anything to compute, to collect or to report."""
        return self._scheduler.has_work() or bool(self._rejected or self._in_flight or self._compiling)

    def step(self) -> tuple[list[TokenOutput], StepStats]:
        """Launch one step and collect the one that is due: at most one new token for each running request."""
        begin = time.monotonic()
        if self._compiling:
            self._admit_compiled()
        outputs, self._rejected = self._rejected, []
        batch = self._scheduler.schedule(begin)
        if batch.rows:
            with torch.inference_mode(), self._failing(batch):
                constrain = partial(self._constrain, outputs) if self._grammars or self._biases else None
                self._in_flight.append((batch, self._runner.launch(batch.rows, constrain)))
        if self._in_flight and (len(self._in_flight) > self._lag or not batch.rows):
            outputs += self._collect(*self._in_flight.popleft())
        return outputs, self._stats(batch, time.monotonic() - begin)

    def audit(self) -> None:
        """Raise AssertionError unless every block is accounted for."""
        self._scheduler.audit()

    def audit_slices(self) -> Iterator[None]:
        """As `audit`, with yields at which the caller may stop for good: see `BlockManager.audit_slices`."""
        return self._scheduler.audit_slices()

    def _admit_compiled(self) -> None:
        """Queue the requests whose grammars are compiled. Without other work, wait a little for the first."""
        if not (self._scheduler.has_work() or self._in_flight or self._rejected):
            futures = [matcher for _, matcher in self._compiling.values()]
            wait(futures, _COMPILE_WAIT_S, return_when=FIRST_COMPLETED)
        for request, matcher in list(self._compiling.values()):
            if not matcher.done():
                continue
            del self._compiling[request.id]
            if (error := matcher.exception()) is not None:
                self._end(request.id)
                refused = isinstance(error, RefusedGrammar)
                self._rejected.append(
                    _without_token(request.id, "grammar")
                    if refused
                    else _failure(request.id, f"its grammar cannot be compiled: {error}")
                )
                continue
            self._grammars.begin(request.id, matcher.result())
            self._scheduler.add(request)

    def _constrain(self, outputs: list[TokenOutput], rows: list[BatchRow]) -> LogitEdits | None:
        """How the logits of these rows change. Grammars, and words of several tokens, need all ids by then.

        The device computes the forward pass of these rows meanwhile.
        """
        ids = [row.sequence.id for row in rows]
        looks_back = any(self._biases[name].recent for name in ids if name in self._biases)
        if looks_back or self._grammars.constrained(ids):
            while self._in_flight:
                outputs += self._collect(*self._in_flight.popleft())
        indices = self._grammars.constrained(ids)
        masks = [self._grammars.bits([ids[index] for index in indices])] if indices else []
        biased = []
        for index, row in enumerate(rows):
            if (biases := self._biases.get(row.sequence.id)) is not None:
                sequence = row.sequence  # the token of this step is one of the unknown ones
                begin = max(sequence.prompt_length, len(sequence.tokens) - biases.recent)
                last = sequence.tokens[begin:] if biases.recent else ()
                biased.append((index, biases, sequence.generated + sequence.unknown - 1, last))
                if biases.bits is not None:
                    indices.append(index)
                    masks.append(biases.bits[None])
        allowed = AllowedTokens(indices, np.concatenate(masks)) if masks else None
        added = joined(biased)
        return LogitEdits(allowed, added) if allowed is not None or added is not None else None

    def _collect(self, batch: ScheduledBatch, launched: Launched) -> list[TokenOutput]:
        with self._failing(batch):
            results = launched.result()
        sampled = list(zip((row.sequence for row in launched.sampling), results, strict=True))
        for chunk in launched.scored:
            if (whole := chunk.keep()) is not None and chunk.sequence.id in self._scheduler:
                self._prompt_logprobs[chunk.sequence.id] = whole
        finish = self._scheduler.commit(
            batch, {sequence.id: result.token for sequence, result in sampled if result is not None}
        )
        if self._grammars or self._biases:
            self._advance(finish, sampled)
        # Requests that were aborted meanwhile have no outcome: what was computed for them is dropped.
        outputs = [
            _output(sequence, result, finish[sequence.id])
            for sequence, result in sampled
            if sequence.id in finish
        ]
        return [*map(self._with_prompt_logprobs, outputs)] if self._prompt_logprobs else outputs

    def _with_prompt_logprobs(self, output: TokenOutput) -> TokenOutput:
        """The first token of an answer carries them, where they are known by now."""
        whole = self._prompt_logprobs.pop(output.request_id, None)
        return output if whole is None else output._replace(prompt_logprobs=whole)

    def _advance(self, finish: dict[str, str | None], sampled: list[tuple[Sequence, Sampled | None]]) -> None:
        """Give the new tokens to the matchers, and forget those of answers that have ended."""
        for sequence, result in sampled:
            if sequence.id not in finish:
                continue
            running = finish[sequence.id] is None
            if running and result is not None and not self._grammars.advance(sequence.id, result.token):
                finish[sequence.id] = "grammar"
                self._scheduler.remove(sequence.id)
            elif not running and self._grammars.failed(
                sequence.id
            ):  # then nothing but an end token was allowed
                finish[sequence.id] = "grammar"
            if finish[sequence.id] is not None:
                self._end(sequence.id)

    def _end(self, request_id: str) -> None:
        """Forget what constrains the answer of a request that has ended."""
        self._grammars.end(request_id)
        self._biases.pop(request_id, None)
        self._prompt_logprobs.pop(request_id, None)

    @contextmanager
    def _failing(self, batch: ScheduledBatch) -> Iterator[None]:
        """If the step fails, none of its blocks keeps a name."""
        try:
            yield
        except BaseException:
            self._scheduler.commit(batch, None)
            raise

    def _stats(self, batch: ScheduledBatch, seconds: float) -> StepStats:
        return StepStats(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            kv_used_blocks=self._blocks.used,
            kv_total_blocks=self._blocks.num_blocks,
            preemptions=batch.preemptions,
            batch_tokens=batch.tokens,
            prompt_tokens=batch.prompt_tokens,
            prefix_queries=batch.prefix_queries,
            prefix_hits=batch.prefix_hits,
            step_seconds=seconds,
            late_kernels=self._late_kernels.take(),
        )


def _output(sequence: Sequence, result: Sampled | None, finish: str | None) -> TokenOutput:
    if result is None:
        return _failure(sequence.id, "the model computed logits that are not finite")
    token, logprob, top = result
    return TokenOutput(  # by position: this is built for every token
        sequence.id, token, logprob, top, finish, sequence.cached, sequence.scheduled, sequence.preemptions
    )


def _failure(request_id: str, reason: str) -> TokenOutput:
    logger.error("request %s ends with an error: %s", request_id, reason)
    return _without_token(request_id, "error")


def _without_token(request_id: str, finish: str) -> TokenOutput:
    return TokenOutput(request_id, -1, None, (), finish, 0, 0.0, 0)
