"""A request's body as a validated model, or the error object that says which field is wrong."""

import asyncio
from concurrent.futures import Executor
from functools import cache
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from .admission import HeldBytes
from .errors import APIError, bad_request
from .jsonio import Malformed
from .params import Unsupported
from .request_json import InvalidField, RequestDecoder

BODY_LIMIT = 4 << 20  # bytes
_THREAD_FROM = 16 << 10  # bytes; smaller bodies take the event loop a few milliseconds at worst
_PATH_LIMIT = 200  # characters of a path in an error; keys in it are the client's

M = TypeVar("M", bound=BaseModel)


async def read_model(
    request: web.Request, model: type[M], executor: Executor, held: HeldBytes, limit_s: float
) -> M:
    """Read for at most `limit_s`, parse and validate. Raises APIError with the field's path."""
    raw = await _read(request, held, limit_s)
    if len(raw) < _THREAD_FROM:
        return parse(raw, model)
    return await asyncio.get_running_loop().run_in_executor(executor, parse, raw, model)


def parse(raw: bytes, model: type[M]) -> M:
    """Bytes to a model. Raises APIError."""
    try:
        return model.model_validate(_decoder(model).decode(raw))
    except Malformed as error:
        raise bad_request(f"The body is refused as JSON: {error}.", code="invalid_json") from None
    except InvalidField as error:
        raise _invalid(error.path, str(error)) from None
    except ValidationError as error:
        raise _explain(error) from None


@cache
def _decoder(model: type[BaseModel]) -> RequestDecoder:
    return RequestDecoder(model)


async def _read(request: web.Request, held: HeldBytes, limit_s: float) -> bytes:
    if request.headers.get("Content-Encoding", "identity").strip().lower() not in {"", "identity"}:
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


def _explain(error: ValidationError) -> APIError:
    """The first problem, by the path a client would write: messages.0.content."""
    problem = error.errors(include_url=False, include_input=False)[0]
    cause: Any = problem.get("ctx", {}).get("error")
    path = ".".join(str(part) for part in problem["loc"])
    if isinstance(cause, Unsupported):
        path = f"{path}.{cause.field}" if path else cause.field
        return bad_request(f"{cause}.", param=path, code="unsupported_parameter")
    return _invalid(path, problem["msg"].removeprefix("Value error, "))


def _invalid(path: str, message: str) -> APIError:
    path = path[:_PATH_LIMIT]
    return bad_request(f"{path}: {message}" if path else message, param=path or None, code="invalid_value")
