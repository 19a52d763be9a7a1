"""Errors a client sees: always an HTTP status and OpenAI's error object, never a trace."""

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from aiohttp import web

from tangram_http.refusals import EarlyRefusal

from .jsonio import dumps

_MESSAGE_LIMIT = 1000  # characters; libraries quote values of a body in theirs
RETRY_SECONDS = 1  # what Retry-After says: the queue moves every step, so soon is sensible


@dataclass(eq=False)
class APIError(Exception):
    """A refusal. `kind` is OpenAI's error type, `param` the path of the field at fault."""

    status: int
    message: str
    _: KW_ONLY
    kind: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        message = self.message[:_MESSAGE_LIMIT]
        return {"error": {"message": message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self, body: dict[str, Any] | None = None) -> web.Response:
        """The error as a whole HTTP response, with OpenAI's error object or that of another dialect."""
        return web.Response(
            status=self.status,
            body=dumps(self.body() if body is None else body),
            content_type="application/json",
            headers=self.headers,
        )


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> APIError:
    """400: the client must change the request."""
    return APIError(400, message, param=param, code=code)


def model_not_found(name: str) -> APIError:
    """404 as OpenAI answers it."""
    return APIError(
        404, f"The model {name[:100]!r} does not exist here.", param="model", code="model_not_found"
    )


def context_length_exceeded(message: str, param: str) -> APIError:
    """400 for a prompt, or a prompt with its answer, that is longer than the context."""
    return bad_request(message, param=param, code="context_length_exceeded")


def overloaded(limit: int) -> APIError:
    """429: the queue is full; the client should come back."""
    return APIError(
        429,
        f"The server already holds {limit} requests, which is its limit. Please retry.",
        kind="rate_limit_error",
        code="queue_full",
        headers={"Retry-After": str(RETRY_SECONDS)},
    )


def too_many_sequences(limit: int) -> APIError:
    """429 for a request that an idle server could not hold either: to repeat it is of no use."""
    return APIError(
        429,
        f"The request has more sequences than the {limit} that the server holds at once.",
        kind="rate_limit_error",
        code="too_many_sequences",
        headers={"x-should-retry": "false"},
    )


def unavailable(message: str, code: str, *, close: bool = False) -> APIError:
    """503: loading, draining, failed or full; another replica may answer. `close` ends the connection."""
    headers = {"Retry-After": str(RETRY_SECONDS)} | ({"Connection": "close"} if close else {})
    return APIError(503, message, kind="server_error", code=code, headers=headers)


def timed_out(seconds: float) -> APIError:
    """504 with OpenAI's header against retries: a retry would only take as long again."""
    return APIError(
        504,
        f"The request was ended after {seconds:g} s, the longest this server lets one run.",
        kind="timeout_error",
        code="timeout",
        headers={"x-should-retry": "false"},
    )


def internal() -> APIError:
    """500: our own defect; the log has the trace, the client only this."""
    return APIError(500, "Internal server error.", kind="server_error", code="internal_error")


def early_refusal(refusal: EarlyRefusal) -> APIError:
    """The error object for a request that the listener refuses."""
    kind = "invalid_request_error" if refusal.status < 500 else "server_error"
    return APIError(refusal.status, refusal.message, kind=kind, code=refusal.code)


def early_refusal_body(refusal: EarlyRefusal) -> bytes:
    """The error object as the listener sends it."""
    return dumps(early_refusal(refusal).body())
