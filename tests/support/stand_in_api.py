"""An API server without etcd, for what a real one is too fast or too good for: collections in pages at a
chosen pace, watches that say nothing, and one Lease.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tangram.kube.kinds import key_of


@dataclass
class StandInApi:
    """Serve with `async with api.serving():`; `url` is its address then."""

    objects: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # by plural
    pace: Callable[[str], float] = lambda _plural: 0.0  # seconds before each page, by plural
    page: int = 500  # objects at most, whatever limit is asked for
    lists: Counter[str] = field(default_factory=Counter)  # begun, by plural
    requests: Counter[str] = field(default_factory=Counter)  # by method and plural
    lease: dict[str, Any] | None = None
    version: int = 1
    events: list[tuple[str, int, dict[str, Any]]] = field(default_factory=list)  # plural, version, of watches
    _told: asyncio.Condition = field(default_factory=asyncio.Condition)
    url: str = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["StandInApi"]:
        """Serve on loopback while the block runs."""
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        if "leases" in parts:
            return await self._leases(request)
        plural = next((part for part in reversed(parts) if part in self.objects), parts[-1])
        if request.query.get("watch") == "true":
            return await self._watch(request)
        self.requests[f"{request.method} {plural}"] += 1
        if request.method != "GET":
            return web.json_response({"reason": "Forbidden"}, status=403)
        return await self._list(request, plural)

    async def _list(self, request: web.Request, plural: str) -> web.Response:
        first, limit = int(request.query.get("continue") or 0), min(self.page, int(request.query["limit"]))
        self.lists[plural] += first == 0
        await asyncio.sleep(self.pace(plural))
        items = self.objects.get(plural, [])
        last = first + limit
        meta = {"resourceVersion": str(self.version)} | ({"continue": str(last)} if last < len(items) else {})
        return web.json_response({"metadata": meta, "items": items[first:last]})

    async def change(self, plural: str, obj: dict[str, Any], event: str = "MODIFIED") -> None:
        """Put an object in the place of the one of its name, or remove it, and tell the watches."""
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        others = [each for each in self.objects.get(plural, []) if key_of(each) != key_of(obj)]
        self.objects[plural] = others if event == "DELETED" else [*others, obj]
        self.events.append((plural, self.version, {"type": event, "object": obj}))
        async with self._told:
            self._told.notify_all()

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        version = int(request.query.get("resourceVersion") or 0)
        while True:
            news = [each for each in self.events if each[0] in request.path and each[1] > version]
            for _, version, event in news:  # noqa: B007 - the last one counts
                await response.write(json.dumps(event).encode() + b"\n")
            if not news:
                async with self._told:
                    await self._told.wait()

    async def _leases(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response(self.lease or {}, status=200 if self.lease else 404)
        self.version += 1
        written = await request.json()
        written["metadata"] |= {"uid": "lease", "resourceVersion": str(self.version)}
        self.lease = written
        return web.json_response(written)
