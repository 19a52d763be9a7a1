"""A proxy between the operator and the API server that injects the faults of networks and servers.

Rules are data: match (verb, plural, subresource, name, the n-th time) -> act. A recorder keeps every
request. Upstream is the real API server, reached with the admin's client certificate; the operator uses
plain HTTP on loopback.
"""

import asyncio
import json
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import aiohttp
import yaml
from aiohttp import web

from tangram.kube.credentials import ssl_context
from tangram.kube.kubeconfig import load_kubeconfig

Act = Literal[
    "status",  # respond with `code` without forwarding
    "kill-before",  # kill the operator, do not forward
    "kill-after",  # forward, then kill the operator before it receives the response
    "kill-replied",  # forward, respond, then kill the operator
    "reset",  # close the connection without a response
    "lose-answer",  # forward, then close the connection without a response
    "delay",  # wait `seconds`, then forward
    "stall",  # accept, never respond
    "truncate",  # forward; return half of the body
    "garbage",  # return an HTML page with status 200
    "watch-error",  # end the watch with an ERROR event of `code`
    "watch-drop",  # drop the n-th event of matching watches
    "watch-close",  # end the watch cleanly after the first event
    "watch-silent",  # keep the watch open and send nothing more
    "watch-double",  # send every event twice
]

WRITES = ("create", "update", "apply", "patch", "delete")
_PATH = re.compile(
    r"^/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)(?:/namespaces/(?P<ns>[^/]+)(?=/))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[^/]+))?$"
)


@dataclass(frozen=True)
class Request:
    """One request as the API server understands it."""

    verb: str  # get list watch create update apply patch delete
    plural: str
    namespace: str
    name: str
    subresource: str

    @property
    def write(self) -> bool:
        """Whether it changes an object."""
        return self.verb in WRITES

    def __str__(self) -> str:
        """Text for test ids and failures."""
        return "-".join(part for part in (self.verb, self.plural, self.subresource, self.name) if part)


@dataclass
class Rule:
    """A fault and the requests that it applies to. `nth` counts matches from 1; 0: every match."""

    act: Act
    verb: str = ""
    plural: str = ""
    name: str = ""
    subresource: str | None = None
    nth: int = 1
    code: int = 500
    seconds: float = 0.0
    retry_after: str = ""
    hits: int = 0

    def matches(self, request: Request) -> bool:
        """Count a match; say whether to act on it."""
        fits = (
            self.verb in ("", request.verb)
            and self.plural in ("", request.plural)
            and self.name in ("", request.name)
            and self.subresource in (None, request.subresource)
        )
        self.hits += fits
        return fits and self.nth in (0, self.hits)


@dataclass
class FaultProxy:
    """Serve with `async with proxy.serving():`; `url` is the API server for the operator then."""

    kubeconfig: Path
    folder: Path
    kill: Callable[[], None] = lambda: None
    rules: list[Rule] = field(default_factory=list)
    trace: list[tuple[Request, int]] = field(default_factory=list)
    down: bool = False  # refuse everything, as if the API server were gone
    url: str = ""
    _session: aiohttp.ClientSession | None = None
    _open: set[asyncio.Transport] = field(default_factory=set)

    @property
    def operator_kubeconfig(self) -> Path:
        """A kubeconfig with this proxy as its server."""
        path = self.folder / "proxied.kubeconfig"
        cluster = {"name": "proxy", "cluster": {"server": self.url}}
        context = {"name": "proxy", "context": {"cluster": "proxy", "user": "nobody"}}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [cluster],
            "contexts": [context],
            "users": [{"name": "nobody", "user": {}}],
            "current-context": "proxy",
        }
        path.write_text(yaml.safe_dump(document))
        return path

    def writes(self, *, but: tuple[str, ...] = ("leases",)) -> list[Request]:
        """Every write so far that reached the proxy."""
        return [request for request, _ in self.trace if request.write and request.plural not in but]

    async def quiet(self, seconds: float = 3.0, within_s: float = 60.0) -> None:
        """Wait until nothing but the lease has been written for `seconds`."""
        deadline, writes, since = time.monotonic() + within_s, -1, time.monotonic()
        while time.monotonic() - since < seconds:
            if len(self.writes()) != writes:
                writes, since = len(self.writes()), time.monotonic()
            assert time.monotonic() < deadline, f"still writing: {[str(w) for w in self.writes()[-5:]]}"
            await asyncio.sleep(0.1)

    def cut(self) -> None:
        """Reset every open connection."""
        for transport in list(self._open):
            transport.abort()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FaultProxy"]:
        """Listen on a free port of the loopback until the block ends."""
        credentials = load_kubeconfig(str(self.kubeconfig))
        tls: ssl.SSLContext | None = ssl_context(credentials)
        connector = aiohttp.TCPConnector(ssl=tls or True, limit=0)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        self._upstream = credentials.server
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}"
        try:
            yield self
        finally:
            self.cut()
            await runner.cleanup()
            await self._session.close()

    async def _handle(self, incoming: web.Request) -> web.StreamResponse:
        transport = incoming.transport
        assert isinstance(transport, asyncio.Transport)
        if self.down:
            transport.abort()
            return web.Response()
        self._open.add(transport)
        try:
            request = understand(incoming)
            rule = next((rule for rule in self.rules if rule.matches(request)), None)
            return await self._act(incoming, request, rule)
        except (ConnectionResetError, aiohttp.ClientConnectionError):
            return _abort(incoming)  # one of the two sides went away
        finally:
            self._open.discard(transport)

    async def _act(self, incoming: web.Request, request: Request, rule: Rule | None) -> web.StreamResponse:
        act = rule.act if rule else None
        if rule and act == "delay":
            await asyncio.sleep(rule.seconds)
        if rule and act == "status":
            self.trace.append((request, rule.code))
            return _status(rule.code, rule.retry_after)
        if act in ("kill-before", "reset"):
            self.trace.append((request, 0))
            if act == "kill-before":
                self.kill()
            return _abort(incoming)
        if act == "stall":
            self.trace.append((request, 0))
            await asyncio.sleep(3600)
        if act == "garbage":
            self.trace.append((request, 200))
            return web.Response(text="<html>It works!</html>", content_type="text/html")
        if request.verb == "watch":
            return await self._watch(incoming, request, rule)
        return await self._forward(incoming, request, act)

    async def _forward(self, incoming: web.Request, request: Request, act: str | None) -> web.StreamResponse:
        async with self._upstream_request(incoming, await incoming.read()) as answer:
            body = await answer.read()
        self.trace.append((request, answer.status))
        if act in ("kill-after", "lose-answer"):
            if act == "kill-after":
                self.kill()
            return _abort(incoming)
        if act == "truncate":
            body = body[: len(body) // 2]
        response = web.Response(status=answer.status, body=body, headers=_headers(answer))
        if act == "kill-replied":
            await response.prepare(incoming)
            await response.write_eof()
            await asyncio.sleep(0)
            self.kill()
        return response

    async def _watch(self, incoming: web.Request, request: Request, rule: Rule | None) -> web.StreamResponse:
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._upstream_request(incoming, b"", timeout) as answer:
            self.trace.append((request, answer.status))
            response = web.StreamResponse(status=answer.status, headers=_headers(answer))
            await response.prepare(incoming)
            line_number = 0
            async for line in answer.content:
                line_number += 1
                for forwarded in await _forwarded(line, line_number, rule):
                    await response.write(forwarded)
                if rule and rule.act in ("watch-error", "watch-close"):
                    break
            await response.write_eof()
            return response

    def _upstream_request(
        self, incoming: web.Request, body: bytes, timeout: aiohttp.ClientTimeout | None = None
    ) -> Any:
        assert self._session is not None
        keep = ("Content-Type", "Accept")
        headers = {name: incoming.headers[name] for name in keep if name in incoming.headers}
        return self._session.request(
            incoming.method,
            self._upstream + incoming.path_qs,
            data=body or None,
            headers=headers,
            timeout=timeout or aiohttp.ClientTimeout(total=60),
        )


async def _forwarded(line: bytes, line_number: int, rule: Rule | None) -> list[bytes]:
    """Return the lines that are forwarded for one line of a watch."""
    if rule is None:
        return [line]
    if rule.act == "watch-error":
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": rule.code,
            "reason": "Injected",
        }
        return [json.dumps({"type": "ERROR", "object": status}).encode() + b"\n"]
    if rule.act == "watch-drop":
        return []
    if rule.act == "watch-silent":
        await asyncio.sleep(3600)
    return [line, line] if rule.act == "watch-double" else [line]


def understand(incoming: web.Request) -> Request:
    """Return verb, kind and name of an HTTP request."""
    match = _PATH.match(incoming.path)
    if match is None:
        return Request("get", "", "", "", incoming.path)
    method, name = incoming.method, match["name"] or ""
    verbs = {"POST": "create", "PUT": "update", "DELETE": "delete"}
    if method == "GET":
        verb = "watch" if incoming.query.get("watch") == "true" else "get" if name else "list"
    elif method == "PATCH":
        verb = "apply" if "apply" in incoming.headers.get("Content-Type", "") else "patch"
    else:
        verb = verbs[method]
    return Request(verb, match["plural"], match["ns"] or "", name, match["sub"] or "")


def _headers(answer: aiohttp.ClientResponse) -> dict[str, str]:
    keep = ("Content-Type", "Content-Encoding", "Retry-After")
    return {name: answer.headers[name] for name in keep if name in answer.headers}


def _status(code: int, retry_after: str) -> web.Response:
    document = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "Injected"}
    headers = {"Retry-After": retry_after} if retry_after else {}
    return web.json_response(document | {"message": f"injected {code}"}, status=code, headers=headers)


def _abort(incoming: web.Request) -> web.Response:
    if incoming.transport is not None:
        incoming.transport.abort()
    return web.Response()
