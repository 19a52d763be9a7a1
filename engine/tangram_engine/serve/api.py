"""The endpoints that need the engine: one path from a body to an answer, whole or in events."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from aiohttp import web

from tangram_engine.schedule.request import Request
from tangram_engine.serve.answers.answer_parser import AnswerFormat
from tangram_engine.serve.answers.deltas import Delta
from tangram_engine.serve.answers.prompt_details import details_asked_for
from tangram_engine.serve.dialects import messages_reply, responses_reply
from tangram_engine.serve.dialects.messages_request import read_counted_messages, read_messages
from tangram_engine.serve.dialects.reply import AnyRequest, GenerationRoute, Reply, ReplyContext
from tangram_engine.serve.dialects.responses_request import read_responses
from tangram_engine.serve.dialects.translation import TranslatedRequest
from tangram_engine.serve.http.admission import (
    DECODED_BYTES,
    LOGPROB_BYTES,
    TOKEN_BYTES,
    BodyBytes,
    HeldBytes,
)
from tangram_engine.serve.http.body import parse, read_body
from tangram_engine.serve.http.errors import (
    APIError,
    bad_request,
    internal,
    model_not_found,
    timed_out,
    unavailable,
)
from tangram_engine.serve.http.jsonio import dumps, dumps_in_pieces
from tangram_engine.serve.http.params import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from tangram_engine.serve.http_responses import EventStream, send_whole
from tangram_engine.serve.replies import Chat, Completion, usage, usage_so_far
from tangram_engine.serve.text.tokenizer import TextTools, TokenizerError
from tangram_http.connections import Connections

from .client import EngineClient
from .generation import Generation, Hold
from .lifecycle import Lifecycle
from .metrics import CountedRequest, EngineMetrics
from .prepare_requests import RequestPreparer

logger = logging.getLogger(__name__)

M = TypeVar("M")
_T = TypeVar("_T")
_TEXT_WAIT_S = 10.0  # for a text worker; beyond it the client had better ask another replica
MAX_DETOKENIZED = 4 << 20  # characters of one text of /detokenize
_ECHOES = 3  # of what a reply repeats of its request: two at the beginning of a stream, one at its end
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

    async def read(self, request: web.Request, read: Callable[[bytes], M], held: HeldBytes) -> M:
        """The body of a request. Raises APIError."""
        return await read_body(request, read, self.executor, held, self.body_seconds)

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

    def generate(self, route: GenerationRoute) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """The handler of a route."""

        async def handle(request: web.Request) -> web.StreamResponse:
            return await self._timed(request, route)

        return handle

    async def count_tokens(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/messages/count_tokens."""
        backend = self._backend
        with backend.lifecycle.request(), backend.bodies.hold() as held:
            counted = await backend.read(request, read_counted_messages, held)
            body = counted.body
            backend.check_model(body.model)
            _, preparer = backend.parts()
            with _errors_named(counted):
                ids = await backend.in_text_thread(lambda: preparer.chat_prompt(body))
            return await self._send(request, {"input_tokens": len(ids)})

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        """POST /tokenize, as vLLM answers it."""
        backend = self._backend
        with backend.lifecycle.request(), backend.bodies.hold() as held:
            body = await backend.read(request, partial(parse, model=TokenizeRequest), held)
            backend.check_model(body.model)
            _, preparer = backend.parts()
            ids = await backend.in_text_thread(lambda: preparer.tokens(body))
            answer = {"count": len(ids), "max_model_len": preparer.info.max_model_len, "tokens": list(ids)}
            held.add(TOKEN_BYTES * len(ids))
            return await self._send(request, answer)

    async def detokenize(self, request: web.Request) -> web.StreamResponse:
        """POST /detokenize."""
        backend = self._backend
        with backend.lifecycle.request(), backend.bodies.hold() as held:
            body = await backend.read(request, partial(parse, model=DetokenizeRequest), held)
            backend.check_model(body.model)
            held.add(TOKEN_BYTES * len(body.tokens))
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
        held.add(DECODED_BYTES * characters)
        try:
            text = await loop.run_in_executor(executor, partial(tools.decode, ids, skip_special_tokens=False))
        except TokenizerError as error:
            raise bad_request(f"tokens: {error}", param="tokens", code="tokenizer_error") from None
        held.add(DECODED_BYTES * (len(text) - characters))  # less, where the text is shorter than it might be
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

    async def _timed(self, request: web.Request, route: GenerationRoute) -> web.StreamResponse:
        """Answer, and count the request once: as accepted, before its first token, or as refused."""
        counted = CountedRequest(self._backend.metrics)
        try:
            return await self._within_time(request, route, time.monotonic(), counted)
        except APIError as error:
            counted.refused(error)
            raise

    async def _within_time(
        self,
        request: web.Request,
        route: GenerationRoute,
        arrival: float,
        counted: CountedRequest,
    ) -> web.StreamResponse:
        """Answer within the time limit. An error after the first event becomes the last event."""
        backend = self._backend
        with backend.lifecycle.request(), backend.bodies.hold() as held:
            headers = {"x-request-id": request["id"]}
            events = EventStream(request, headers, close=backend.lifecycle.leaving, named=route.names_events)
            try:
                async with _time_limit(backend.max_request_seconds):
                    response = await self._answer(request, route, events, arrival, held, counted)
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
                told = error if isinstance(error, APIError) else internal()
                await events.fail(route.failure(told, events.sent))
                return events.response

    async def _answer(
        self,
        request: web.Request,
        route: GenerationRoute,
        events: EventStream,
        arrival: float,
        held: HeldBytes,
        counted: CountedRequest,
    ) -> web.StreamResponse:
        backend = self._backend
        translated = await backend.read(request, route.read, held)
        body = translated.body
        held.add(_ECHOES * len(translated.echo))
        backend.check_model(body.model)
        if isinstance(body, CompletionRequest):
            held.add(TOKEN_BYTES * sum(len(ids) for ids in body.prompts if isinstance(ids, list)))
        _, preparer = backend.parts()
        count = body.choices * (len(body.prompts) if isinstance(body, CompletionRequest) else 1)
        try:
            places = backend.lifecycle.sequences(count)
            with places:
                with _errors_named(translated):
                    prepared = await backend.in_text_thread(lambda: _prepared(preparer, body, arrival))
                counted.accepted()
                if (grammar := prepared.requests[0].params.grammar) is not None:
                    held.add(len(grammar) * len(prepared.requests))
                    await backend.send_vocabulary()
                return await self._generate(route, translated, prepared, events, held)
        except APIError as error:
            if error.code == "queue_full":
                backend.metrics.refused("max_num_queued_reqs")
            raise

    async def _generate(
        self,
        route: GenerationRoute,
        translated: AnyRequest,
        prepared: "_Prepared",
        events: EventStream,
        held: HeldBytes,
    ) -> web.StreamResponse:
        """Run the sequences of one request, and write their tokens as the reply of its route."""
        backend, body, form = self._backend, translated.body, prepared.form
        engine, preparer = backend.parts()
        generation = Generation(
            engine,
            backend.metrics,
            preparer.tools,
            prepared.requests,
            n=body.choices,
            stops=body.stops,
            skip_special_tokens=body.skip_special_tokens and not form.keeps_special_tokens,
            include_stop=body.include_stop_str_in_output,
            prompt_alone=body.prompt_alone,
            keep_ids=bool(body.return_token_ids),
        )
        tools, limit = preparer.tools, preparer.info.max_model_len
        details = details_asked_for(body, generation.answers, tools, prepared.echo)
        if details is not None:
            details.book(held)
        reply = route.reply(ReplyContext(backend.served_name, translated, form, tools, limit, details))
        book = partial(_book_logprobs, held, tools, reply.repeats_logprobs if body.stream else 1)
        if body.stream:
            return await _stream(generation, reply, events, body, book)
        entries = details.entries if details is not None else 0
        return await _whole(generation, reply, body, backend.executor, book, entries)


@contextmanager
def _errors_named(translated: AnyRequest) -> Iterator[None]:
    """Name the fields of the request that is computed as the client wrote them."""
    try:
        yield
    except APIError as error:
        raise translated.names.renamed(error) from None


class _Prepared(NamedTuple):
    """The requests of a body, how to read the answers, and the texts that these are to begin with."""

    requests: list[Request]
    form: AnswerFormat
    echo: list[str] | None


def _prepared(preparer: RequestPreparer, body: CompletionRequest | ChatRequest, arrival: float) -> _Prepared:
    requests = preparer.requests(body, arrival)
    return _Prepared(requests, preparer.answer_format(body, requests[0].prompt), preparer.echo(body))


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
    generation: Generation,
    reply: Reply,
    events: EventStream,
    body: CompletionRequest | ChatRequest,
    book: Callable[[list[Delta]], None],
) -> web.StreamResponse:
    tokens: dict[int, int] = {}  # of each answer, so far

    def counts(index: int) -> dict[str, Any] | None:
        if not body.usage_in_each_chunk:
            return None
        return usage_so_far(generation.answers[index], tokens[index])

    def put(deltas: list[Delta]) -> Hold:
        chunks: list[bytes] = []
        book(deltas)
        for delta in deltas:
            index = delta.index
            if index not in tokens:
                tokens[index] = 0
                answer = generation.answers[index]
                chunks += reply.opening(
                    index, usage_so_far(answer, 0) if reply.opens_with_usage else counts(index)
                )
            tokens[index] += 1
            chunks += reply.events(delta, counts(index))
        return events.send(*chunks) if chunks else None

    await generation.run(put)
    if last := reply.ending(usage(generation.answers, body.choices)):
        events.send(*last)
    await events.done()
    return events.response


def _book_logprobs(held: HeldBytes, tools: TextTools, times: int, deltas: list[Delta]) -> None:
    """Book what is kept of logprobs until the answer is whole, so many times. Raises APIError (503)."""
    for delta in deltas if times else ():
        for entry in delta.logprobs:
            tokens = [entry.token, *(token for token, _ in entry.top)]
            held.add(times * (LOGPROB_BYTES * len(tokens) + DECODED_BYTES * tools.most_characters(tokens)))


async def _whole(
    generation: Generation,
    reply: Reply,
    body: CompletionRequest | ChatRequest,
    executor: Executor,
    book: Callable[[list[Delta]], None],
    prompt_entries: int,
) -> web.Response:
    parts: list[list[Delta]] = [[] for _ in generation.answers]

    def put(deltas: list[Delta]) -> None:
        book(deltas)
        for delta in deltas:
            parts[delta.index].append(delta)

    await generation.run(put)
    counts = usage(generation.answers, body.choices)
    entries = sum(map(len, parts)) * (1 + (body.wanted_logprobs() or 0))
    if entries + prompt_entries < _THREAD_FROM:
        raw = reply.whole(parts, counts)
    else:
        raw = await asyncio.get_running_loop().run_in_executor(executor, reply.whole, parts, counts)
    return web.Response(body=raw, content_type="application/json", charset="utf-8")


def _as_sent(model: type[CompletionRequest | ChatRequest]) -> Callable[[bytes], AnyRequest]:
    """How bodies are read that are what is computed."""
    return lambda raw: TranslatedRequest(parse(raw, model))


def _completion(context: ReplyContext) -> Completion:
    usage_in_chunks, details = context.request.body.include_usage, context.details
    return Completion(context.served_name, context.tools, usage_in_chunks=usage_in_chunks, details=details)


def _chat(context: ReplyContext) -> Chat:
    name, tools, details = context.served_name, context.tools, context.details
    usage_in_chunks = context.request.body.include_usage
    return Chat(name, tools, usage_in_chunks=usage_in_chunks, details=details, form=context.form)


def _failure(error: APIError, events: int) -> bytes:
    del events
    return dumps(error.body())


GENERATION_ROUTES = (
    GenerationRoute("/v1/completions", _as_sent(CompletionRequest), _completion, _failure),
    GenerationRoute("/v1/chat/completions", _as_sent(ChatRequest), _chat, _failure),
    GenerationRoute(
        "/v1/responses",
        read_responses,
        responses_reply.ResponsesReply,
        responses_reply.failure,
        names_events=True,
    ),
    GenerationRoute(
        "/v1/messages", read_messages, messages_reply.MessagesReply, messages_reply.failure, names_events=True
    ),
)
