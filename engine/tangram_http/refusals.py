"""Answers to requests that no application sees: broken HTTP, and what is over a limit."""

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

RETRY_S = 1  # what Retry-After says of a 503


@dataclass(frozen=True, slots=True)
class EarlyRefusal:
    """The answer to a request that the listener refuses. The connection is closed after it."""

    status: int
    code: str  # one word for programs
    message: str


HEAD_TOO_LARGE = EarlyRefusal(
    431, "headers_too_large", "The request line and the headers are too large together."
)
HEAD_TOO_SLOW = EarlyRefusal(408, "headers_timeout", "The headers did not arrive in time.")
ALL_IN_USE = EarlyRefusal(503, "too_many_connections", "Every connection of this server is in use.")
UNKNOWN_CODING = EarlyRefusal(
    501, "unsupported_transfer_encoding", "The one transfer coding here is chunked."
)
CHUNKED_1_0 = EarlyRefusal(400, "bad_http", "HTTP/1.0 has no transfer codings.")
UNKNOWN_VERSION = EarlyRefusal(400, "bad_http", "Only HTTP/1.0 and HTTP/1.1 are spoken here.")
UNKNOWN_EXPECTATION = EarlyRefusal(417, "expectation_failed", "Only 100-continue can be expected.")
_BROKEN = EarlyRefusal(400, "bad_http", "The request is not valid HTTP/1.1.")


def broken_http(error: HttpProcessingError) -> EarlyRefusal:
    """Return the answer to what aiohttp could not parse, without a word of what the client sent."""
    return HEAD_TOO_LARGE if isinstance(error, LineTooLong) else _BROKEN


def _plain(refusal: EarlyRefusal) -> bytes:
    return f"{refusal.message}\n".encode()


class RefusalWriter:
    """Writes refusals in the format of one server: plain text, if it has none."""

    def __init__(
        self, body: Callable[[EarlyRefusal], bytes] = _plain, content_type: str = "text/plain; charset=utf-8"
    ) -> None:
        self._body = body
        self._content_type = content_type

    def response(self, refusal: EarlyRefusal) -> web.Response:
        """Return the answer to a request that has arrived; the connection ends with it."""
        response = web.Response(
            status=refusal.status, body=self._body(refusal), headers=self._headers(refusal)
        )
        response.force_close()
        return response

    def raw(self, refusal: EarlyRefusal) -> bytes:
        """Return the answer to a request that has not arrived whole, as bytes."""
        body = self._body(refusal)
        headers = self._headers(refusal) | {"Content-Length": str(len(body)), "Connection": "close"}
        lines = [f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode() + body

    def _headers(self, refusal: EarlyRefusal) -> dict[str, str]:
        retry = {"Retry-After": str(RETRY_S)} if refusal.status == HTTPStatus.SERVICE_UNAVAILABLE else {}
        return {"Content-Type": self._content_type, **retry}
