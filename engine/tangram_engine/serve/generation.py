"""From token outputs to text: the sequences of one HTTP request, merged in the order their tokens arrive."""

from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from functools import partial

from tangram_engine.messages import TokenOutput
from tangram_engine.schedule.request import Request

from .client import EngineClient, EngineDied, Inbox
from .detokenize import Detokenizer, StopScanner, StopStrings
from .errors import APIError, unavailable
from .metrics import Metrics
from .tokenizer import TextTools, TokenizerError


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token of an answer with its alternatives; `offset` is where its text begins in the answer."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    offset: int


@dataclass(slots=True)  # not frozen: building one takes half the time, and every token builds one
class Delta:
    """What one token added to one answer. `finish` is set on the last: "stop" or "length"."""

    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: str | None = None


@dataclass(slots=True)
class Answer:
    """One sequence on its way: detokenizer, stop scanner and the numbers that metrics need."""

    index: int
    request: Request
    detokenizer: Detokenizer
    scanner: StopScanner
    include_stop: bool = (
        False  # what ends the answer is part of it: the stop string, or the stop token's text
    )
    tokens: int = 0
    cached: int = 0
    preemptions: int = 0
    scheduled: float = 0.0  # time.monotonic() of its first step
    first: float = 0.0  # of the first token's arrival here, likewise of the last
    last: float = 0.0
    done: bool = False
    _decoded: int = 0  # characters out of the detokenizer
    _shown: int = 0  # of these, shown
    _unplaced: list[TokenOutput] = field(default_factory=list)  # tokens whose text is not known yet
    _placed: deque[tuple[int, TokenLogprob]] = field(default_factory=deque)  # with the end of their text

    def accept(self, output: TokenOutput) -> Delta:
        """Take one token. Nothing of a stop string, nor a token that reaches into one, gets out."""
        text = ""
        # The token that ended it is an end-of-sequence token: text only where that was asked for.
        if output.finish != "stop" or self.include_stop:
            self._unplaced.append(output)
            text = self._place(self.detokenizer.push(output.token))
        finish = output.finish
        if finish is not None and self.scanner.matched is None:
            text += self._place(self.detokenizer.flush(), last=True)
        if self.scanner.matched is not None:
            finish = "stop"
        elif finish is not None:
            tail = self.scanner.flush()
            self._shown += len(tail)
            text += tail
        self.done = finish is not None
        return Delta(self.index, text, self._released(), finish)

    def _place(self, decoded: str, *, last: bool = False) -> str:
        """Book newly decoded text with the tokens it came from; return what of it may be shown."""
        if decoded or last:
            start = self._decoded
            self._decoded += len(decoded)
            for output in self._unplaced:
                if output.logprob is not None:
                    entry = TokenLogprob(output.token, output.logprob, output.top_logprobs, start)
                    self._placed.append((self._decoded, entry))
            self._unplaced.clear()
        shown = self.scanner.push(decoded)
        self._shown += len(shown)
        return shown

    def _released(self) -> tuple[TokenLogprob, ...]:
        """Logprobs of the tokens whose text is out completely."""
        released = []
        while self._placed and self._placed[0][0] <= self._shown:
            released.append(self._placed.popleft()[1])
        return tuple(released)


class Generation:
    """All sequences of one HTTP request. Iterate `deltas` once; closing it aborts whatever still runs."""

    def __init__(
        self,
        engine: EngineClient,
        metrics: Metrics,
        tools: TextTools,
        requests: Sequence[Request],
        *,
        n: int,
        stops: Sequence[str],
        skip_special_tokens: bool,
        include_stop: bool = False,
    ) -> None:
        self._engine = engine
        self._metrics = metrics
        self._n = n
        decode = partial(tools.decode, skip_special_tokens=skip_special_tokens)
        stop_strings = StopStrings(stops)
        self.answers = [
            Answer(
                index,
                request,
                Detokenizer(decode, request.prompt),
                StopScanner(stop_strings, include=include_stop),
                include_stop=include_stop,
            )
            for index, request in enumerate(requests)
        ]

    async def deltas(self) -> AsyncGenerator[list[Delta]]:
        """Every token of every answer, until all are done; together, what has arrived together.

        Raises APIError when the engine fails.
        """
        inbox = Inbox()
        by_id = {answer.request.id: answer for answer in self.answers}
        try:
            for answer in self.answers:
                self._engine.submit(answer.request, inbox)
            while not all(answer.done for answer in self.answers):
                batch: list[Delta] = []
                death: EngineDied | None = None
                for arrival in await inbox.take():
                    if isinstance(arrival, EngineDied):
                        death = arrival
                    elif not (answer := by_id[arrival[0].request_id]).done:
                        batch.append(self._book(answer, *arrival))
                if batch:
                    yield batch
                if death is not None:
                    raise death
        except EngineDied as error:
            self._end("error")
            raise unavailable(str(error), "engine_died") from None
        finally:
            self._end("abort")

    def _book(self, answer: Answer, output: TokenOutput, now: float) -> Delta:
        if output.finish in {"abort", "error"}:
            answer.done = True
            self._metrics.ended(output.finish)
            raise APIError(
                500, "The engine could not go on with this request.", kind="server_error", code="engine_error"
            )
        self._time(answer, output, now)
        try:
            delta = answer.accept(output)
        except TokenizerError as error:
            raise APIError(500, f"{error}.", kind="server_error", code="tokenizer_error") from None
        if answer.done:
            self._engine.abort(answer.request.id)  # a stop string: the engine does not know of it
            self._finished(answer, delta.finish or "stop")
        return delta

    def _time(self, answer: Answer, output: TokenOutput, now: float) -> None:
        answer.tokens += 1
        self._metrics.generation_tokens.value += 1
        if answer.tokens == 1:
            answer.first = now
            answer.cached = output.cached_tokens
            answer.scheduled = output.scheduled
            self._metrics.ttft.observe(now - answer.request.arrival)
            self._metrics.prefilled(len(answer.request.prompt), output.cached_tokens)
        else:
            self._metrics.itl.observe(now - answer.last)
        answer.last = now
        answer.preemptions = output.preemptions

    def _finished(self, answer: Answer, reason: str) -> None:
        metrics = self._metrics
        metrics.ended(reason)
        metrics.e2e.observe(answer.last - answer.request.arrival)
        # Queue and inference add up to e2e, prefill and decode to inference; preemptions lie within.
        metrics.queue.observe(answer.scheduled - answer.request.arrival)
        metrics.inference.observe(answer.last - answer.scheduled)
        metrics.prefill.observe(answer.first - answer.scheduled)
        metrics.decode.observe(answer.last - answer.first)
        metrics.request_preemptions.observe(answer.preemptions)
        if answer.tokens > 1:
            metrics.tpot.observe((answer.last - answer.first) / (answer.tokens - 1))
        metrics.prompt_length.observe(len(answer.request.prompt))
        metrics.generation_length.observe(answer.tokens)
        metrics.params_max_tokens.observe(answer.request.params.max_tokens)
        if all(other.done for other in self.answers):
            metrics.params_n.observe(self._n)
            metrics.max_generation_length.observe(max(other.tokens for other in self.answers))

    def _end(self, reason: str) -> None:
        for answer in self.answers:
            if not answer.done:
                answer.done = True
                self._engine.abort(answer.request.id)
                self._metrics.ended(reason)
