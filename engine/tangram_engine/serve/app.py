"""Routes and what surrounds every request: request id, API key, error objects, counting."""

import asyncio
import logging
import re
import uuid
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from tangram_engine import __version__
from tangram_engine.serve.api_keys import APIKeys
from tangram_engine.serve.dialects import messages_reply
from tangram_engine.serve.http.cross_origin import AllowedOrigins
from tangram_engine.serve.http.errors import APIError, internal
from tangram_http.refusals import EarlyRefusal

from .api import GENERATION_ROUTES, Backend, Endpoints
from .lifecycle import State
from .metrics import EngineMetrics

logger = logging.getLogger(__name__)

# Open to all, and answered while every connection is in use.
PROBES = frozenset({"/health", "/ready", "/ping", "/metrics", "/version"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_CHALLENGE = 'Bearer realm="tangram"'  # RFC 6750, section 3
_GENERATION_PATHS = frozenset(route.path for route in GENERATION_ROUTES)
_MESSAGES = "/v1/messages"  # and what is below it: Anthropic's API
_CLIENT_CLOSED = 499  # nginx's number for a client that left


def build_app(
    backend: Backend, api_keys: APIKeys | None, origins: AllowedOrigins | None = None
) -> web.Application:
    """The application. Only the routes listed here exist."""
    middlewares = [_surround(backend), _check_key(api_keys)]
    if origins is not None:
        middlewares.insert(1, _answer_preflights(origins))  # they have no key
    app = web.Application(middlewares=middlewares)
    if origins is not None:
        app.on_response_prepare.append(_add_headers(origins))
    endpoints = Endpoints(backend)
    status = StatusEndpoints(backend)
    app.add_routes(
        [
            *(web.post(route.path, endpoints.generate(route)) for route in GENERATION_ROUTES),
            web.post(f"{_MESSAGES}/count_tokens", endpoints.count_tokens),
            web.post("/tokenize", endpoints.tokenize),
            web.post("/detokenize", endpoints.detokenize),
            web.get("/v1/models", status.models),
            web.get("/v1/models/{name:.+}", status.model),
            web.get("/health", status.health),
            web.get("/ping", status.health),
            web.get("/ready", status.ready),
            web.get("/version", status.version),
            web.get("/load", status.load),
            web.get("/metrics", status.metrics),
        ]
    )
    return app


class StatusEndpoints:
    """What can be answered at any time, without the engine."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def health(self, request: web.Request) -> web.Response:
        """GET /health: both processes go on. Never asks the GPU, and stays green during a drain."""
        if self._backend.lifecycle.state is State.FAILED:
            return web.json_response({"status": "failed", "reason": "The engine process failed."}, status=503)
        hung = self._backend.lifecycle.hung
        if hung is not None:
            return web.json_response({"status": "hung", "reason": hung}, status=503)
        return web.json_response({"status": "ok"})

    async def ready(self, request: web.Request) -> web.Response:
        """GET /ready: the model is warm and this replica takes traffic."""
        lifecycle = self._backend.lifecycle
        return web.json_response(
            {"status": "hung" if lifecycle.hung else lifecycle.state.value},
            status=200 if lifecycle.ready else 503,
            headers={} if lifecycle.ready else {"Retry-After": "1"},
        )

    async def version(self, request: web.Request) -> web.Response:
        """GET /version."""
        return web.json_response({"version": __version__})

    async def load(self, request: web.Request) -> web.Response:
        """GET /load: requests being answered, under vLLM's name."""
        return web.json_response({"server_load": self._backend.lifecycle.active})

    async def models(self, request: web.Request) -> web.Response:
        """GET /v1/models."""
        return web.json_response({"object": "list", "data": [self._card()]})

    async def model(self, request: web.Request) -> web.Response:
        """GET /v1/models/NAME."""
        self._backend.check_model(request.match_info["name"])
        return web.json_response(self._card())

    async def metrics(self, request: web.Request) -> web.Response:
        """GET /metrics, in Prometheus' text format whatever the scraper prefers.

        The client library's OpenMetrics writer turns `vllm:x` into `vllm_x` for scrapers that do not ask
        for UTF-8 names (every Prometheus 2), and then no query finds them. `name[]` restricts the page to
        series of these names, as it does where the client library serves pages itself.
        """
        backend = self._backend
        if backend.engine is not None:
            # Sequences that were sent and are not in the running batch, wherever they are just now.
            backend.metrics.set_waiting(backend.engine.in_flight)
        backend.metrics.connections.set(len(backend.connections))
        backend.metrics.body_bytes.set(backend.bodies.in_flight)
        registry, names = backend.metrics.registry, request.query.getall("name[]", [])
        text = generate_latest(registry.restricted_registry(names) if names else registry)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    def _card(self) -> dict[str, object]:
        preparer = self._backend.preparer
        card = {
            "id": self._backend.served_name,
            "object": "model",
            "created": self._backend.created,
            "owned_by": "tangram",
            "root": self._backend.root,  # vLLM's: the checkpoint, where `id` is the name it is served by
            "parent": None,
            "max_model_len": preparer.info.max_model_len if preparer else None,
        }
        return card | ({"random_weights": True} if self._backend.random_weights else {})


def _surround(backend: Backend) -> Middleware:
    """Outermost: whatever happens inside, the client gets a proper answer and the request is counted."""

    @web.middleware
    async def surround(request: web.Request, handler: Handler) -> web.StreamResponse:
        request_id = request.headers.get("x-request-id", "")
        request["id"] = request_id if _REQUEST_ID.fullmatch(request_id) else uuid.uuid4().hex
        try:
            response = await _guarded(request, handler)
        except (asyncio.CancelledError, ConnectionError):
            _count(backend, request, _CLIENT_CLOSED)
            raise
        if not response.prepared:
            response.headers["x-request-id"] = request["id"]
            if backend.lifecycle.leaving:
                response.force_close()
        _count(backend, request, response.status)
        return response

    return surround


def _is_messages(request: web.BaseRequest) -> bool:
    return request.path == _MESSAGES or request.path.startswith(f"{_MESSAGES}/")


async def _guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
    answer = await _answer_or_error(request, handler)
    if not isinstance(answer, APIError):
        return answer
    body = messages_reply.error_body(answer, request["id"]) if _is_messages(request) else None
    return answer.response(body)


async def _answer_or_error(request: web.Request, handler: Handler) -> web.StreamResponse | APIError:
    try:
        return await handler(request)
    except APIError as error:
        return error
    except web.HTTPNotFound:
        return APIError(404, f"There is no {request.path[:200]} here.", code="not_found")
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        return APIError(405, f"Use {allowed} here.", code="method_not_allowed", headers={"Allow": allowed})
    except web.HTTPException as error:
        return APIError(error.status, error.reason, code="http_error")
    except ConnectionError:
        raise
    except Exception:
        logger.exception("request %s failed", request["id"])
        return internal()


def _count(backend: Backend, request: web.Request, status: int) -> None:
    resource = request.match_info.route.resource
    handler = resource.canonical if resource is not None else "none"
    if handler not in PROBES:
        backend.metrics.http.labels(handler, request.method, str(status)).inc()


def count_early_refusal(
    metrics: EngineMetrics, api_keys: APIKeys | None
) -> Callable[[web.BaseRequest, EarlyRefusal], None]:
    """Return what counts requests for tokens that are refused before a handler sees them."""

    def count(request: web.BaseRequest, refusal: EarlyRefusal) -> None:
        if request.method != "POST" or request.path not in _GENERATION_PATHS:
            return
        # Without this, clients without a key could make the operator add replicas.
        if _has_key(request, api_keys):
            metrics.rejected(refusal.status, refusal.code)

    return count


def _answer_preflights(origins: AllowedOrigins) -> Middleware:
    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        return origins.preflight(request) or await handler(request)

    return answer


def _add_headers(
    origins: AllowedOrigins,
) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    async def add(request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(origins.headers(request))

    return add


def _has_key(request: web.BaseRequest, api_keys: APIKeys | None) -> bool:
    token = _key(request)
    return api_keys is None or (token is not None and api_keys.accepts(token))


def _check_key(api_keys: APIKeys | None) -> Middleware:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in PROBES and not _has_key(request, api_keys):
            challenge = (
                _CHALLENGE if _bearer_token(request) is None else f'{_CHALLENGE}, error="invalid_token"'
            )
            raise APIError(
                401,
                "A valid API key is required: Authorization: Bearer KEY.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": challenge},
            )
        return await handler(request)

    return check


def _key(request: web.BaseRequest) -> bytes | None:
    """The key of a request: Anthropic's clients send it in a header of its own."""
    values = request.headers.getall("x-api-key", [])
    if _is_messages(request) and len(values) == 1 and "Authorization" not in request.headers:
        return values[0].encode("utf-8", "surrogateescape")
    return _bearer_token(request)


def _bearer_token(request: web.BaseRequest) -> bytes | None:
    """The token of the one Authorization header; None without one, or with another scheme.

    Schemes are compared without regard to case (RFC 9110, section 11.1).
    """
    values = request.headers.getall("Authorization", [])
    if len(values) != 1:
        return None
    scheme, _, token = values[0].partition(" ")
    # aiohttp keeps bytes that are not UTF-8 as surrogates.
    return token.strip().encode("utf-8", "surrogateescape") if scheme.lower() == "bearer" else None
