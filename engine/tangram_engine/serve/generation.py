"""From token outputs to text: the sequences of one HTTP request, merged in the order their tokens arrive."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from tangram_engine.messages import TokenOutput
from tangram_engine.sample.prompt_logprobs import PromptLogprobs
from tangram_engine.schedule.request import Request
from tangram_engine.serve.answers.deltas import Delta, TokenLogprob
from tangram_engine.serve.http.errors import APIError, bad_request, unavailable
from tangram_engine.serve.text.detokenize import Detokenizer, StopScanner, StopStrings
from tangram_engine.serve.text.tokenizer import TextTools, TokenizerError

from .client import EngineClient, EngineDied
from .metrics import EngineMetrics


@dataclass(slots=True)
class GeneratedSequence:
    """One sequence on its way: detokenizer, stop scanner and the numbers that metrics need."""

    index: int
    request: Request
    detokenizer: Detokenizer
    scanner: StopScanner
    include_stop: bool = False  # whether the stop string, or the stop token's text, is part of the answer
    tokens: int = 0
    cached: int = 0
    preemptions: int = 0
    scheduled: float = 0.0  # time.monotonic() of its first step
    first: float = 0.0  # of the first token's arrival here, likewise of the last
    last: float = 0.0
    done: bool = False
    prompt_logprobs: PromptLogprobs | None = None
    token_ids: list[int] | None = None  # of the answer; None: not kept
    _decoded: int = 0  # characters out of the detokenizer
    _shown: int = 0  # of these, shown
    _unplaced: list[TokenOutput] = field(default_factory=list)  # tokens whose text is not known yet
    _placed: deque[tuple[int, TokenLogprob]] = field(default_factory=deque)  # with the end of their text

    def accept(self, output: TokenOutput) -> Delta:
        """Take one token. Nothing of a stop string, nor a token that reaches into one, gets out."""
        text = ""
        if self.token_ids is not None:
            self.token_ids.append(output.token)
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
        return Delta(self.index, text, self._released(), finish, self.scanner.matched)

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
        # As in vLLM, no stop string is looked for in the text of the first `min_tokens` tokens.
        searched = self.tokens > self.request.params.min_tokens
        shown = self.scanner.push(decoded) if searched else decoded
        self._shown += len(shown)
        return shown

    def _released(self) -> tuple[TokenLogprob, ...]:
        """Logprobs of the tokens whose text is out completely."""
        released = []
        while self._placed and self._placed[0][0] <= self._shown:
            released.append(self._placed.popleft()[1])
        return tuple(released)


@dataclass(slots=True)
class PromptAlone(GeneratedSequence):
    """The prompt of a request for no token: the one that the engine made is nothing of the answer."""

    def accept(self, output: TokenOutput) -> Delta:
        """See GeneratedSequence."""
        del output
        self.tokens, self.done = 0, True
        return Delta(self.index, "", (), "length")


# What to await before more is put; None: nothing.
Hold = Callable[[], Awaitable[None]] | None


class Generation:
    """All sequences of one HTTP request, for one `run`.

    A token becomes text, and an event of a stream, in the very call that hands it over: waking a task at
    every token of every stream would cost more than all the rest. The request's task runs where it has to
    wait: for the first token, for a client that reads slowly, and for the end.
    """

    def __init__(
        self,
        engine: EngineClient,
        metrics: EngineMetrics,
        tools: TextTools,
        requests: Sequence[Request],
        *,
        n: int,
        stops: Sequence[str],
        skip_special_tokens: bool,
        include_stop: bool = False,
        prompt_alone: bool = False,
        keep_ids: bool = False,
    ) -> None:
        self._engine = engine
        self._metrics = metrics
        self._n = n
        self._put: Callable[[list[Delta]], Hold]
        self._hold: Hold = None
        self._arrived: list[tuple[list[TokenOutput], float]] = []
        self._failure: Exception | None = None
        self._death: EngineDied | None = None
        self._turn = asyncio.Event()  # `run` has something to do
        decode = partial(tools.decode, skip_special_tokens=skip_special_tokens)
        drops = partial(tools.drops, skip_special_tokens=skip_special_tokens)
        stop_strings = StopStrings(stops)
        kind = PromptAlone if prompt_alone else GeneratedSequence
        self.answers = [
            kind(
                index,
                request,
                Detokenizer(decode, request.prompt, drops),
                StopScanner(stop_strings, include=include_stop),
                include_stop=include_stop,
                token_ids=[] if keep_ids else None,
            )
            for index, request in enumerate(requests)
        ]
        self._by_id = {answer.request.id: answer for answer in self.answers}
        self._running = len(self.answers)

    async def run(self, put: Callable[[list[Delta]], Hold]) -> None:
        """Give every token of every answer to `put`, until all are done; together, what has arrived together.

        Ended early, it aborts whatever still runs. Raises what `put` raises, and APIError.
        """
        self._put = put
        try:
            for answer in self.answers:
                self._engine.submit(answer.request, self)
            while self._running or self._hold is not None or self._failure is not None:
                if self._hold is not None:
                    await self._hold()
                    self._hold = None
                    self._pass_on()
                elif failure := self._failure or self._death:
                    raise failure
                else:
                    await self._turn.wait()
                    self._turn.clear()
        except EngineDied as error:
            self._end("error")
            raise unavailable(str(error), "engine_died") from None
        finally:
            self._end("abort")

    def receive(self, outputs: list[TokenOutput], now: float) -> None:
        """See Receiver."""
        self._arrived.append((outputs, now))
        self._pass_on()

    def lose(self, death: EngineDied) -> None:
        """See Receiver."""
        self._death = death
        self._turn.set()

    def _pass_on(self) -> None:
        if self._hold is not None or self._failure is not None or not self._arrived:
            return
        arrived, self._arrived = self._arrived, []
        try:
            deltas = [
                self._book(answer, output, now)
                for outputs, now in arrived
                for output in outputs
                if not (answer := self._by_id[output.request_id]).done
            ]
            self._hold = self._put(deltas)
        except Exception as error:  # noqa: BLE001  (raised in `run`)
            self._failure = error
        if self._hold is not None or self._failure is not None or not self._running:
            self._turn.set()

    def _book(self, answer: GeneratedSequence, output: TokenOutput, now: float) -> Delta:
        if output.finish in {"abort", "error", "grammar"}:
            answer.done = True
            self._running -= 1
            self._metrics.ended("error" if output.finish == "grammar" else output.finish)
            if output.finish == "grammar":
                message = (
                    "What the answer has to be names a token that the model does not have, or became too"
                    " complex on the way; a smaller schema may help."
                )
                raise bad_request(message, code="grammar_error")
            raise APIError(
                500, "The engine could not go on with this request.", kind="server_error", code="engine_error"
            )
        self._time(answer, output, now)
        try:
            delta = answer.accept(output)
        except TokenizerError as error:
            raise APIError(500, f"{error}.", kind="server_error", code="tokenizer_error") from None
        if answer.done:
            self._running -= 1
            self._engine.abort(answer.request.id)  # a stop string: the engine does not know of it
            self._finished(answer, delta.finish or "stop")
        return delta

    def _time(self, answer: GeneratedSequence, output: TokenOutput, now: float) -> None:
        answer.tokens += 1
        self._metrics.generation_tokens.value += 1
        if answer.tokens == 1:
            answer.first = now
            answer.cached = output.cached_tokens
            answer.prompt_logprobs = output.prompt_logprobs
            answer.scheduled = output.scheduled
            self._metrics.ttft.observe(now - answer.request.arrival)
            self._metrics.prefilled(len(answer.request.prompt), output.cached_tokens)
        else:
            self._metrics.itl.observe(now - answer.last)
        answer.last = now
        answer.preemptions = output.preemptions

    def _finished(self, answer: GeneratedSequence, reason: str) -> None:
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
        if not self._running:
            metrics.params_n.observe(self._n)
            metrics.max_generation_length.observe(max(other.tokens for other in self.answers))

    def _end(self, reason: str) -> None:
        for answer in self.answers:
            if not answer.done:
                answer.done = True
                self._engine.abort(answer.request.id)
                self._metrics.ended(reason)
