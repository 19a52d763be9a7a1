"""A request's body as a validated model, or the error object that says which field is wrong."""

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

import msgspec
from aiohttp import web

from tangram_engine.validation import locate

from .admission import HeldBytes
from .errors import APIError, bad_request
from .fields import FieldError
from .json_faults import describe
from .jsonio import Malformed, check, decode_value, with_whole_numbers_as_integers
from .params import CONTENT_KINDS, PROMPT_KINDS, MessageError

BODY_LIMIT = 4 << 20  # bytes
_THREAD_FROM = 16 << 10  # bytes; smaller bodies take the event loop a few milliseconds at worst
_PATH_LIMIT = 200  # characters of a path in an error; keys in it are the client's
_PART = re.compile(r"prompt(?=\.)|(messages\.\d+\.content)(?=\.)")  # lists that are named as a whole

M = TypeVar("M")


async def read_body(
    request: web.Request, read: Callable[[bytes], M], executor: Executor, held: HeldBytes, limit_s: float
) -> M:
    """Receive for at most `limit_s`, and read what has arrived. Raises APIError with the field's path."""
    raw = await _read(request, held, limit_s)
    if len(raw) < _THREAD_FROM:
        return read(raw)
    return await asyncio.get_running_loop().run_in_executor(executor, read, raw)


def parse(raw: bytes, model: type[M]) -> M:
    """Bytes to a model. Raises APIError."""
    try:
        check(raw)
        return _decode(raw, model)
    except Malformed as error:
        raise _no_json(*describe(raw, error)) from None
    except msgspec.ValidationError as error:
        raise explain(error) from None


def _decode(raw: bytes, model: type[M]) -> M:
    """A whole number may be written as a float, as vLLM accepts it."""
    try:
        return decode_value(raw, model)
    except msgspec.ValidationError as error:
        if "got `float`" not in str(error):
            raise
    return decode_value(with_whole_numbers_as_integers(raw), model)


async def _read(request: web.Request, held: HeldBytes, limit_s: float) -> bytes:
    codings = ",".join(request.headers.getall("Content-Encoding", [])).split(",")
    if {coding.strip().lower() for coding in codings} - {"", "identity"}:
        raise APIError(415, "Compressed request bodies are not accepted.", code="unsupported_encoding")
    if request.content_type != "application/json":
        raise APIError(415, "Content-Type must be application/json.", code="unsupported_media_type")
    if request.content_length is not None and request.content_length > BODY_LIMIT:
        raise _too_large()
    chunks = bytearray()
    try:
        async with asyncio.timeout(limit_s):
            async for chunk in request.content.iter_any():
                if len(chunks) + len(chunk) > BODY_LIMIT:
                    raise _too_large()
                held.add(len(chunk))
                chunks += chunk
    except TimeoutError:
        raise APIError(
            408, "The body did not arrive in time.", code="body_timeout", headers={"Connection": "close"}
        ) from None
    return bytes(chunks)


def _too_large() -> APIError:
    return APIError(
        413,
        f"The body is larger than {BODY_LIMIT} bytes.",
        code="body_too_large",
        headers={"Connection": "close"},
    )


def explain(error: msgspec.ValidationError, parent: str = "") -> APIError:
    """The problem, by the path a client would write: messages.0.content."""
    (path, message), cause, code = locate(error), error.__cause__, "invalid_value"
    if isinstance(cause, MessageError):
        return explain(cause.error, f"messages.{cause.index}")
    path = f"{parent}.{path}".strip(".")
    if isinstance(cause, FieldError):
        path, code = f"{path}.{cause.field}".lstrip("."), cause.code
    elif part := _PART.match(path):
        path, message = part[0], CONTENT_KINDS if part[1] else PROMPT_KINDS
    elif cause is None and not path:
        return _no_json("the body must be a JSON object")
    return refusal(path, message, code)


def refusal(path: str, message: str, code: str) -> APIError:
    """The error of the field with this path."""
    path = path[:_PATH_LIMIT]
    named = path and not message.startswith(path)
    return bad_request(f"{path}: {message}" if named else message, param=path or None, code=code)


def _no_json(reason: str, path: str = "") -> APIError:
    path = path[:_PATH_LIMIT]
    where = f"{path}: " if path else ""
    message = f"The body is refused as JSON: {where}{reason}."
    return bad_request(message, param=path or None, code="invalid_json")
