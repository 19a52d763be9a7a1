"""The webhook's port: takes AdmissionReviews within bounds and hands them to kopf.

It is one of kopf's servers, `settings.admission.server`. kopf's own `WebhookServer` bounds neither
connections nor their time, parses JSON at any depth, and takes requests of any client.
"""

import asyncio
import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from tangram.kube.kinds import Object
from tangram.kube.response_body import parse_json
from tangram.shell.admission.certificate import WebhookCertificate
from tangram.shell.admission.processor_share import ProcessorShare
from tangram_http.connections import ConnectionLimits
from tangram_http.pages import serve_pages
from tangram_http.sockets import listening_socket
from tangram_http.tls_listener import TLSPort

log = logging.getLogger(__name__)

MAX_REVIEW_BYTES = 4 << 20  # an object and the one before it: etcd stores 1.5 MiB of each
MAX_DEPTH = 64  # of the JSON; an LLMDeployment in a review nests 12 deep
MAX_BODIES = 4  # that are read at once; the others wait
READ_S = 2.0  # for a body, the wait included
CERTIFICATE_CHECK_S = 10.0
LIMITS = ConnectionLimits(
    connections=64, head_bytes=16 << 10, header_seconds=3.0, stall_seconds=3.0, answer_seconds=6.0
)
MAX_LOGGED = 300  # characters of an error
SHARE, BURST_S = 0.25, 2.0  # of one core: some hundred reviews at once, then some ten a second

AnswerReview = Callable[..., Awaitable[Any]]
"""kopf's: takes an AdmissionReview, returns it with a response."""
Count = Callable[[str], None]
"""Counts a review by its outcome."""


class ReviewServer:
    """Serves while kopf iterates over it, as soon as there is a certificate."""

    def __init__(self, host: str, port: int, certificate: WebhookCertificate, count: Count) -> None:
        self._host, self._port, self._certificate, self._count = host, port, certificate, count
        self._bodies = asyncio.Semaphore(MAX_BODIES)

    async def __call__(self, answer: AnswerReview) -> AsyncIterator[Any]:
        """Serve until cancelled. What it yields would be the client configuration, which the chart owns."""
        certificate = self._certificate
        certificate.refresh()
        while certificate.context is None:
            await asyncio.sleep(CERTIFICATE_CHECK_S)
            certificate.refresh()
        share = ProcessorShare(SHARE, BURST_S, time.monotonic, time.thread_time)
        app = self._application(answer, share)
        listening = listening_socket(self._host, self._port)
        # Handshakes cost more than what they bring.
        tls = TLSPort(certificate.in_force, share.has_left)
        server = await serve_pages(app, listening, LIMITS, tls)
        try:
            yield {}
            while True:
                await asyncio.sleep(CERTIFICATE_CHECK_S)
                certificate.refresh()
        finally:
            await server.close()

    def _application(self, answer: AnswerReview, share: ProcessorShare) -> web.Application:
        async def reviewed(request: web.Request) -> web.StreamResponse:
            path = request.match_info["path"]
            if not hmac.compare_digest(path.encode(), self._certificate.path.encode()):
                raise web.HTTPNotFound
            if not share.has_left():
                self._count("busy")
                raise web.HTTPServiceUnavailable
            try:
                return web.json_response(await answer(parsed_review(await self._body(request))))
            except web.HTTPRequestEntityTooLarge:
                self._count("invalid")
                raise
            except Exception as error:  # noqa: BLE001 - kopf's errors about reviews are not public
                log.warning("no review: %s", repr(error)[:MAX_LOGGED])
                self._count("invalid")
                raise web.HTTPBadRequest from None

        app = web.Application(client_max_size=MAX_REVIEW_BYTES)
        app.add_routes([web.post("/{path}", reviewed)])
        return app

    async def _body(self, request: web.Request) -> bytes:
        async with asyncio.timeout(READ_S), self._bodies:
            return await request.read()


def parsed_review(body: bytes) -> Object:
    """Return an AdmissionReview without managedFields of its objects. Raises ValueError where it is none."""
    try:
        review: Object = parse_json(body)
    except RecursionError as error:
        raise ValueError("nests too deep") from error
    request = review.get("request") if isinstance(review, dict) else None
    if not isinstance(request, dict):
        raise ValueError("no AdmissionReview")  # noqa: TRY004 - of the text
    for field in ("object", "oldObject"):
        obj = request.get(field)
        if isinstance(obj, dict) and isinstance(meta := obj.get("metadata"), dict):
            meta.pop("managedFields", None)  # long, and compared by kopf
    if _is_deep(review):
        raise ValueError("nests too deep")
    return review


def _is_deep(document: Any) -> bool:
    level, depth = [document], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            return True
        level = [
            part
            for node in level
            if isinstance(node, dict | list)
            for part in (node.values() if isinstance(node, dict) else node)
        ]
    return False
