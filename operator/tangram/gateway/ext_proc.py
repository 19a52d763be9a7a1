"""The picker as Envoy calls it: external processing of requests, and the access log that reports their ends.

A stream of external processing ends as soon as the request has its replica, so that what runs survives the
picker: Envoy cuts a response whose processing fails. The end of a request comes with the access log.
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
from tangram.gateway.router import RequestRouter

# What engines answer; not the paths by which they are administered.
PATHS = frozenset(
    f"/v1/{path}"
    for path in (
        *("chat/completions", "completions", "embeddings", "responses", "messages"),
        *("rerank", "score", "classify", "pooling", "tokenize", "detokenize"),
    )
)
MODELS_PATH = "/v1/models"


@dataclass(slots=True)
class _Request:
    """A request as far as it was read."""

    body: bytearray = field(default_factory=bytearray)
    subset: frozenset[str] | None = None
    has_trailers: bool = False


class Picker(ExternalProcessorServicer):  # type: ignore[misc]
    """Chooses a replica for each request, or answers it."""

    def __init__(
        self, router: RequestRouter, metrics: GatewayMetrics, limits: BodyLimits | None = None
    ) -> None:
        self._router, self._metrics, self._limits = router, metrics, limits or BodyLimits()
        self.bodies = BodyMemory(self._limits.bytes_in_flight)

    async def Process(  # noqa: N802 - the name of the protocol
        self, requests: AsyncIterator[ProcessingRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[ProcessingResponse]:
        """Process one request."""
        del context
        request = _Request()
        try:
            answer = await self._read(requests, request)
            for response in self._responses(request) if answer is None else (self._answered(answer),):
                yield response
        finally:
            self.bodies.give_back(len(request.body))

    async def _read(
        self, requests: AsyncIterator[ProcessingRequest], request: _Request
    ) -> GatewayAnswer | None:
        """Read a request until it is complete; return the answer to one that cannot have a replica."""
        try:
            async with asyncio.timeout(self._limits.seconds):
                async for message in requests:
                    kind = message.WhichOneof("request")
                    if kind == "request_headers":
                        request.subset = messages.subset_of(message)
                        if (answer := self._by_path(message)) is not None:
                            return answer
                    elif kind == "request_trailers":
                        request.has_trailers = True
                        return None
                    elif kind == "request_body":
                        if (answer := self._add(request, message.request_body.body)) is not None:
                            return answer
                        if message.request_body.end_of_stream:
                            return None
        except TimeoutError:
            return answers.invalid_request("the body did not end in time", status=408)
        return answers.invalid_request("the request was not complete")

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

    def _responses(self, request: _Request) -> list[ProcessingResponse]:
        """Choose the replica of a complete request."""
        with self._metrics.decision():
            route = self._router.route(bytes(request.body), request.subset)
        if isinstance(route, GatewayAnswer):
            return [self._answered(route)]
        self._metrics.count("routed")
        sent_on = [messages.routed(route), *messages.pieces(route.body, ends_stream=not request.has_trailers)]
        return [*sent_on, messages.trailers()] if request.has_trailers else sent_on

    def _answered(self, answer: GatewayAnswer) -> ProcessingResponse:
        self._metrics.count(answer.reason)
        return messages.answered(answer)


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
