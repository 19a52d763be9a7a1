"""Answers of the gateway itself, in OpenAI's form. Pure."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

RETRY_AFTER_S = 2  # a replica that starts to serve, or ends, is seen within a second
MAX_NAMED = 8  # models that one message names
MAX_SHOWN = 128  # characters of a client's text in a message


@dataclass(frozen=True, slots=True)
class GatewayAnswer:
    """One complete response."""

    status: int
    body: bytes
    reason: str  # label of metrics: one of a fixed set
    headers: Mapping[str, str] = field(default_factory=dict)


def found(entries: Mapping[str, Any]) -> GatewayAnswer:
    """Return the answer to a question about models."""
    return GatewayAnswer(200, json.dumps(entries).encode(), "models")


def invalid_request(message: str, *, param: str | None = None, status: int = 400) -> GatewayAnswer:
    """Return that the request itself is at fault."""
    return _error(status, message, "invalid_request_error", "invalid_request", param)


def unknown_path(path: str) -> GatewayAnswer:
    """Return that this path is none of the API's."""
    return _error(404, f"there is no {_shown(path)} here", "invalid_request_error", "unknown_path")


def unknown_model(model: str) -> GatewayAnswer:
    """Return that no LLMDeployment serves this name."""
    message = f"the model {_shown(model)} does not exist; GET /v1/models lists those that do"
    return _error(404, message, "invalid_request_error", "model_not_found", "model")


def ambiguous_model(model: str, qualified: Iterable[str]) -> GatewayAnswer:
    """Return that LLMDeployments of several namespaces serve this name."""
    names = sorted(qualified)
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    message = f"several models are called {_shown(model)}: name {' or '.join(names[:MAX_NAMED])}{more}"
    return _error(409, message, "invalid_request_error", "model_ambiguous", "model")


def no_replica(model: str) -> GatewayAnswer:
    """Return that no replica of the model is ready."""
    return _busy(f"no replica of the model {_shown(model)} is ready", "no_replica")


def not_ready() -> GatewayAnswer:
    """Return that the models of the cluster are not known yet."""
    return _busy("the gateway does not know the models of the cluster yet", "not_synced")


def too_many_body_bytes() -> GatewayAnswer:
    """Return that the bodies of other requests fill the memory."""
    return _busy("the gateway holds as many request bodies as it may", "body_bytes")


def _busy(message: str, reason: str) -> GatewayAnswer:
    return _error(503, message, "service_unavailable", reason, retry_after_s=RETRY_AFTER_S)


def _error(
    status: int,
    message: str,
    kind: str,
    reason: str,
    param: str | None = None,
    retry_after_s: int | None = None,
) -> GatewayAnswer:
    error = {"message": message, "type": kind, "param": param, "code": reason}
    headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}
    return GatewayAnswer(status, json.dumps({"error": error}).encode(), reason, headers)


def _shown(text: str) -> str:
    """Quote a text of the client, shortened."""
    return repr(text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…")
