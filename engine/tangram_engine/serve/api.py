"""The OpenAI endpoints: one path from a body to an answer, streamed or whole, in two dialects."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from aiohttp import web

from tangram_engine.schedule.request import Request
from tangram_engine.serve.answers.answer_parser import AnswerFormat
from tangram_engine.serve.http.admission import BodyBytes, HeldBytes
from tangram_engine.serve.http.body import read_model
from tangram_engine.serve.http.errors import (
    APIError,
    bad_request,
    internal,
    model_not_found,
    timed_out,
    unavailable,
)
from tangram_engine.serve.http.jsonio import dumps_in_pieces
from tangram_engine.serve.http.params import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from tangram_engine.serve.http_responses import EventStream, send_whole
from tangram_engine.serve.replies import Chat, Completion, Dialect, usage, usage_so_far
from tangram_engine.serve.text.tokenizer import TextTools, TokenizerError
from tangram_http.connections import Connections

from .client import EngineClient
from .generation import Delta, Generation, Hold
from .lifecycle import Lifecycle
from .metrics import CountedRequest, EngineMetrics
from .prepare_requests import RequestPreparer

logger = logging.getLogger(__name__)

M = TypeVar("M")
_T = TypeVar("_T")
_TEXT_WAIT_S = 10.0  # for a text worker; beyond it the client had better ask another replica
_TOKEN_BYTES = 36  # of an id in a list; in a body it can have 2
_DECODED_BYTES = 16  # of a character that is decoded: as text, as JSON in pieces, and as JSON
_LOGPROB_BYTES = 200  # of a token or alternative: as objects, and as JSON without the token itself
MAX_DETOKENIZED = 4 << 20  # characters of one text of /detokenize
_THREAD_FROM = 2000  # tokens and alternatives: as JSON, a few milliseconds that no stream should wait


@dataclass(slots=True)
class Backend:
    """What answers need; complete once the engine is ready."""

    served_name: str
    root: str  # the checkpoint's directory, for /v1/models
    max_request_seconds: float
    lifecycle: Lifecycle
    metrics: EngineMetrics
    executor: Executor
    connections: Connections
    bodies: BodyBytes
    body_seconds: float  # for a whole body to arrive
    text_executor: Executor  # one thread per text worker, so that a slow text keeps no body or reply waiting
    text_slots: asyncio.Semaphore  # as many
    created: int  # unix time of the start, for /v1/models
    random_weights: bool = False  # --load-format dummy: answers are noise
    engine: EngineClient | None = None
    preparer: RequestPreparer | None = None
    vocabulary_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    vocabulary_sent: bool = False

    async def read(self, request: web.Request, model: type[M], held: HeldBytes) -> M:
        """The body of a request. Raises APIError."""
        return await read_model(request, model, self.executor, held, self.body_seconds)

    def parts(self) -> tuple[EngineClient, RequestPreparer]:
        """Engine and preparer; only called for accepted requests, which come after both are there."""
        if self.engine is None or self.preparer is None:
            raise RuntimeError("a request was accepted before the engine was ready")
        return self.engine, self.preparer

    async def in_text_thread(self, work: Callable[[], _T]) -> _T:
        """Run `work`, which waits for a text worker. Raises APIError (503) when none is free for long."""
        try:
            async with asyncio.timeout(_TEXT_WAIT_S):
                await self.text_slots.acquire()
        except TimeoutError:
            raise unavailable("Tokenization is busy. Please retry.", "text_workers_busy") from None
        try:
            return await asyncio.get_running_loop().run_in_executor(self.text_executor, work)
        finally:
            self.text_slots.release()

    async def send_vocabulary(self) -> None:
        """Send the engine what requests with a grammar need, before the first of them. Raises APIError."""
        async with self.vocabulary_lock:
            if not self.vocabulary_sent:
                engine, preparer = self.parts()
                engine.use_vocabulary(await self.in_text_thread(preparer.vocabulary))
                self.vocabulary_sent = True

    def check_model(self, name: str | None) -> None:
        """Raises APIError (404) for any name but the served one."""
        if name is not None and name != self.served_name:
            raise model_not_found(name)


class Endpoints:
    """The handlers that need the engine or its tokenizer."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        return await self._timed(request, CompletionRequest)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        return await self._timed(request, ChatRequest)

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        """POST /tokenize, as vLLM answers it."""
        backend = self._backend
        with backend.lifecycle.request(), backend.bodies.hold() as held:
            body = await backend.read(request, TokenizeRequest, held)
            backend.check_model(body.model)
            _, preparer = backend.parts()
            ids = await backend.in_text_thread(lambda: preparer.tokens(body))
            answer = {"count": len(ids), "max_model_len": preparer.info.max_model_len, "tokens": list(ids)}
            held.add(_TOKEN_BYTES * len(ids))
            return await self._send(request, answer)

    async def detokenize(self, request: web.Request) -> web.StreamResponse:
        """POST /detokenize."""
        backend = self._backend
        with backend.lifecycle.request(), backend.bodies.hold() as held:
            body = await backend.read(request, DetokenizeRequest, held)
            backend.check_model(body.model)
            held.add(_TOKEN_BYTES * len(body.tokens))
            _, preparer = backend.parts()
            return await self._send(request, {"prompt": await self._decoded(preparer, body.tokens, held)})

    async def _decoded(self, preparer: RequestPreparer, ids: list[int], held: HeldBytes) -> str:
        """The text of token ids, whose memory is booked before it is taken. Raises APIError."""
        tools, executor, loop = preparer.tools, self._backend.executor, asyncio.get_running_loop()
        characters = await loop.run_in_executor(executor, tools.most_characters, ids)
        if characters > MAX_DETOKENIZED:
            raise bad_request(
                f"tokens: they may stand for {characters} characters; at most {MAX_DETOKENIZED} are accepted",
                param="tokens",
            )
        held.add(_DECODED_BYTES * characters)
        try:
            text = await loop.run_in_executor(executor, partial(tools.decode, ids, skip_special_tokens=False))
        except TokenizerError as error:
            raise bad_request(f"tokens: {error}", param="tokens", code="tokenizer_error") from None
        held.add(
            _DECODED_BYTES * (len(text) - characters)
        )  # less, where the text is shorter than it might be
        return text

    async def _send(self, request: web.Request, answer: dict[str, Any]) -> web.Response:
        """Send JSON whose length a client chooses, and whose memory is booked."""
        backend = self._backend
        raw = await asyncio.get_running_loop().run_in_executor(backend.executor, dumps_in_pieces, answer)
        response = web.Response(body=raw, content_type="application/json", charset="utf-8")
        await self._deliver(request, response)
        return response

    async def _deliver(self, request: web.Request, response: web.StreamResponse) -> None:
        """Send a whole answer here and not by aiohttp, so that the drain and the time limit cover it."""
        response.headers["x-request-id"] = request["id"]
        if self._backend.lifecycle.leaving:
            response.force_close()
        await send_whole(request, response)

    async def _timed(
        self, request: web.Request, model: type[CompletionRequest | ChatRequest]
    ) -> web.StreamResponse:
        """Answer, and count the request once: as accepted, before its first token, or as refused."""
        counted = CountedRequest(self._backend.metrics)
        try:
            return await self._within_time(request, model, time.monotonic(), counted)
        except APIError as error:
            counted.refused(error)
            raise

    async def _within_time(
        self,
        request: web.Request,
        model: type[CompletionRequest | ChatRequest],
        arrival: float,
        counted: CountedRequest,
    ) -> web.StreamResponse:
        """Answer within the time limit. An error after the first event becomes the last event."""
        backend = self._backend
        with backend.lifecycle.request(), backend.bodies.hold() as held:
            headers = {"x-request-id": request["id"]}
            events = EventStream(request, headers, close=backend.lifecycle.leaving)
            try:
                async with _time_limit(backend.max_request_seconds):
                    response = await self._answer(request, model, events, arrival, held, counted)
                    if not response.prepared:
                        await self._deliver(request, response)
                    return response
            except ConnectionError:
                raise
            except Exception as error:
                if not events.started:  # else a second status line would follow the events
                    raise
                if not isinstance(error, APIError):
                    logger.exception("request %s failed", request["id"])
                await events.fail(error if isinstance(error, APIError) else internal())
                return events.response

    async def _answer(
        self,
        request: web.Request,
        model: type[CompletionRequest | ChatRequest],
        events: EventStream,
        arrival: float,
        held: HeldBytes,
        counted: CountedRequest,
    ) -> web.StreamResponse:
        backend = self._backend
        body = await backend.read(request, model, held)
        backend.check_model(body.model)
        if isinstance(body, CompletionRequest):
            held.add(_TOKEN_BYTES * sum(len(ids) for ids in body.prompts if isinstance(ids, list)))
        engine, preparer = backend.parts()
        count = body.choices * (len(body.prompts) if isinstance(body, CompletionRequest) else 1)
        try:
            places = backend.lifecycle.sequences(count)
            with places:
                requests, form = await backend.in_text_thread(lambda: _prepared(preparer, body, arrival))
                counted.accepted()
                if (grammar := requests[0].params.grammar) is not None:
                    held.add(len(grammar) * len(requests))
                    await backend.send_vocabulary()
                generation = Generation(
                    engine,
                    backend.metrics,
                    preparer.tools,
                    requests,
                    n=body.choices,
                    stops=body.stops,
                    skip_special_tokens=body.skip_special_tokens and not form.keeps_special_tokens,
                    include_stop=body.include_stop_str_in_output,
                )
                dialect: Dialect
                if isinstance(body, ChatRequest):
                    dialect = Chat(
                        backend.served_name, preparer.tools, usage_in_chunks=body.include_usage, form=form
                    )
                else:
                    dialect = Completion(
                        backend.served_name, preparer.tools, usage_in_chunks=body.include_usage
                    )
                if body.stream:
                    return await _stream(generation, dialect, events, body)
                book = partial(_book_logprobs, held, preparer.tools)
                return await _whole(generation, dialect, body, backend.executor, book)
        except APIError as error:
            if error.code == "queue_full":
                backend.metrics.refused("max_num_queued_reqs")
            raise


def _prepared(
    preparer: RequestPreparer, body: CompletionRequest | ChatRequest, arrival: float
) -> tuple[list[Request], AnswerFormat]:
    requests = preparer.requests(body, arrival)
    return requests, preparer.answer_format(body, requests[0].prompt)


@asynccontextmanager
async def _time_limit(seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise timed_out(seconds) from None


async def _stream(
    generation: Generation, dialect: Dialect, events: EventStream, body: CompletionRequest | ChatRequest
) -> web.StreamResponse:
    tokens: dict[int, int] = {}  # of each answer, so far

    def counts(index: int) -> dict[str, Any] | None:
        if not body.usage_in_each_chunk:
            return None
        return usage_so_far(generation.answers[index], tokens[index])

    def put(deltas: list[Delta]) -> Hold:
        chunks = []
        for delta in deltas:
            index = delta.index
            if index not in tokens:
                tokens[index] = 0
                chunks += dialect.opening(index, counts(index))
            tokens[index] += 1
            if chunk := dialect.chunk(delta, counts(index)):
                chunks.append(chunk)
        return events.send(*chunks) if chunks else None

    await generation.run(put)
    if body.include_usage:
        events.send(dialect.last_chunk(usage(generation.answers, body.choices)))
    await events.done()
    return events.response


def _book_logprobs(held: HeldBytes, tools: TextTools, deltas: list[Delta]) -> None:
    """Book what is kept of logprobs until the answer is whole. Raises APIError (503)."""
    for delta in deltas:
        for entry in delta.logprobs:
            tokens = [entry.token, *(token for token, _ in entry.top)]
            held.add(_LOGPROB_BYTES * len(tokens) + _DECODED_BYTES * tools.most_characters(tokens))


async def _whole(
    generation: Generation,
    dialect: Dialect,
    body: CompletionRequest | ChatRequest,
    executor: Executor,
    book: Callable[[list[Delta]], None],
) -> web.Response:
    parts: list[list[Delta]] = [[] for _ in generation.answers]

    def put(deltas: list[Delta]) -> None:
        book(deltas)
        for delta in deltas:
            parts[delta.index].append(delta)

    await generation.run(put)
    counts = usage(generation.answers, body.choices)
    if sum(map(len, parts)) * (1 + (body.wanted_logprobs() or 0)) < _THREAD_FROM:
        raw = dialect.whole(parts, counts)
    else:
        raw = await asyncio.get_running_loop().run_in_executor(executor, dialect.whole, parts, counts)
    return web.Response(body=raw, content_type="application/json", charset="utf-8")
