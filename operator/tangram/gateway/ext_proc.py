"""The picker as Envoy calls it: external processing of requests, and the access log with their ends.

With the chart's Envoy, a stream of external processing ends as soon as the request has its replica, so that
what runs survives the picker: Envoy cuts a response whose processing fails. The access log has the end of the
request. Gateways of others have no such log: there the stream stays open, and the request ends with it.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from urllib.parse import unquote

import grpc
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage, StreamAccessLogsResponse
from envoy.service.accesslog.v3.als_pb2_grpc import AccessLogServiceServicer
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import ExternalProcessorServicer

from tangram.gateway import answers, messages
from tangram.gateway.answers import GatewayAnswer
from tangram.gateway.body_limits import BodyLimits, BodyMemory
from tangram.gateway.metrics import GatewayMetrics
from tangram.gateway.router import RequestRouter, Route

# What engines answer; not the paths by which they are administered.
PATHS = frozenset(
    f"/v1/{path}"
    for path in (
        *("chat/completions", "completions", "embeddings", "responses", "messages"),
        *("rerank", "score", "classify", "pooling", "tokenize", "detokenize"),
    )
)
MODELS_PATH = "/v1/models"
RESPONSE_PARTS = ("response_headers", "response_body", "response_trailers")


@dataclass(slots=True)
class _Request:
    """A request as far as it was read."""

    body: bytearray = field(default_factory=bytearray)
    subset: frozenset[str] | None = None
    has_trailers: bool = False
    is_complete: bool = False
    response: ProcessingRequest | None = None  # of the gateway itself, to a request that it did not show
    number: int | None = None  # while it runs, and its stream is what notes its end


class Picker(ExternalProcessorServicer):  # type: ignore[misc]
    """Chooses a replica for each request, or answers it."""

    def __init__(
        self,
        router: RequestRouter,
        metrics: GatewayMetrics,
        limits: BodyLimits | None = None,
        *,
        stays_until_end: bool = False,
    ) -> None:
        """`stays_until_end`: a stream stays open until its request has ended."""
        self._router, self._metrics, self._limits = router, metrics, limits or BodyLimits()
        self._stays_until_end = stays_until_end
        self.bodies = BodyMemory(self._limits.bytes_in_flight)

    async def Process(  # noqa: N802 - the name of the protocol
        self, requests: AsyncIterator[ProcessingRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[ProcessingResponse]:
        """Process one request."""
        del context
        request = _Request()
        try:
            async for response in self._process(requests, request):
                yield response
        finally:
            self._release(request)
            if request.number is not None:
                self._router.end(request.number)

    async def _process(
        self, requests: AsyncIterator[ProcessingRequest], request: _Request
    ) -> AsyncIterator[ProcessingResponse]:
        answer = await self._read(requests, request)
        if request.response is not None:
            yield messages.unchanged(request.response)
        else:
            decision = answer or self._decide(request)
            if isinstance(decision, GatewayAnswer):
                self._metrics.count(decision.reason)
                yield messages.answered(decision)
                return
            self._metrics.count("routed")
            request.number = decision.request_number
            responses = messages.sent_on(decision, has_trailers=request.has_trailers)
            last = next(responses)
            for response in responses:
                yield last
                last = response
            # Envoy ends the stream with the last response, perhaps before this goes on: the access log has
            # the end of the request.
            if not self._stays_until_end:
                request.number = None
            yield last
            if not self._stays_until_end:
                return
            del decision
            self._release(request)
        async for message in requests:
            if message.WhichOneof("request") in RESPONSE_PARTS:
                yield messages.unchanged(message)

    async def _read(
        self, requests: AsyncIterator[ProcessingRequest], request: _Request
    ) -> GatewayAnswer | None:
        """Read a request until it is complete; return the answer to one that cannot have a replica."""
        try:
            async with asyncio.timeout(self._limits.seconds):
                async for message in requests:
                    answer = self._take(request, message)
                    if answer is not None or request.is_complete:
                        return answer
        except TimeoutError:
            return answers.invalid_request("the body did not end in time", status=408)
        return answers.invalid_request("the request was not complete")

    def _take(self, request: _Request, message: ProcessingRequest) -> GatewayAnswer | None:
        """Add a message to the request."""
        match message.WhichOneof("request"):
            case "request_headers":
                request.subset = messages.subset_of(message)
                return self._by_path(message)
            case "request_body":
                request.is_complete = message.request_body.end_of_stream
                return self._add(request, message.request_body.body)
            case "request_trailers":
                request.has_trailers = request.is_complete = True
            case _:
                request.response, request.is_complete = message, True
        return None

    def _by_path(self, message: ProcessingRequest) -> GatewayAnswer | None:
        """Return the answer to a request without a body, or for a path that no engine has."""
        headers = message.request_headers
        method, path = messages.header(headers, ":method"), messages.header(headers, ":path").split("?")[0]
        if method == "GET" and (path == MODELS_PATH or path.startswith(f"{MODELS_PATH}/")):
            if not self._router.is_synced:
                return answers.not_ready()
            name = unquote(path.removeprefix(MODELS_PATH).removeprefix("/"))
            return self._router.models.described(name) if name else self._router.models.listing()
        if method != "POST" or path not in PATHS:
            return answers.unknown_path(path)
        return answers.invalid_request("the request has no body") if headers.end_of_stream else None

    def _add(self, request: _Request, piece: bytes) -> GatewayAnswer | None:
        """Add a piece to the body, where the limits allow it."""
        if len(request.body) + len(piece) > self._limits.body_bytes:
            message = f"the body has more than {self._limits.body_bytes} bytes"
            return answers.invalid_request(message, status=413)
        if not self.bodies.take(len(piece)):
            return answers.too_many_body_bytes()
        request.body += piece
        return None

    def _release(self, request: _Request) -> None:
        self.bodies.give_back(len(request.body))
        request.body.clear()

    def _decide(self, request: _Request) -> Route | GatewayAnswer:
        """Choose the replica of a complete request."""
        with self._metrics.decision():
            return self._router.route(bytes(request.body), request.subset)


class AccessLog(AccessLogServiceServicer):  # type: ignore[misc]
    """Takes Envoy's access log, in which each request ends."""

    def __init__(self, router: RequestRouter) -> None:
        self._router = router

    async def StreamAccessLogs(  # noqa: N802 - the name of the protocol
        self, batches: AsyncIterator[StreamAccessLogsMessage], context: grpc.aio.ServicerContext
    ) -> StreamAccessLogsResponse:
        """Note the end of each request."""
        del context
        async for batch in batches:
            for number in messages.request_numbers(batch.http_logs.log_entry):
                self._router.end(number)
        return StreamAccessLogsResponse()
