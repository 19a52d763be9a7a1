"""An API server for kopf: it discovers, lists and watches, with the faults that a test puts in."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tangram.kube.client import ApiClient
from tangram.kube.kinds import GROUP, Kind
from tangram.shell.intake.mirror import IntakeMirror
from tangram.shell.intake.supervision import KopfSupervisor

DEEP = b'{"a":' * 10_000 + b"1" + b"}" * 10_000


@dataclass
class KopfApi:
    """Serve with `async with api.serving():`; `url` is its address then."""

    kinds: tuple[Kind, ...]
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)  # by name, of the first kind
    refused: dict[str, int] = field(default_factory=dict)  # status by path, or by the end of one
    watch_begins_with: bytes = b""
    raw_item: bytes = b""  # one more object in each LIST of whole objects
    version: int = 10
    requests: Counter[str] = field(default_factory=Counter)  # by method and path; watches apart
    requested: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""
    watches: list[web.StreamResponse] = field(default_factory=list)  # that are open

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["KopfApi"]:
        """Serve on loopback while the block runs."""
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    def put(self, name: str, **meta: Any) -> bytes:
        """Write an object; return its event, which no open watch has sent yet."""
        self.version += 1
        meta = {"name": name, "namespace": "n", "uid": name, "resourceVersion": str(self.version)} | meta
        self.objects[name] = {"metadata": meta, "spec": {}}
        return event(self.objects[name])

    async def send(self, line: bytes) -> None:
        """Send an event to every watch."""
        for watch in self.watches:
            with suppress(ConnectionError):
                await watch.write(line)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path, plural = request.path, request.path.rsplit("/", 1)[-1]
        watched = "watch " if request.query.get("watch") else ""
        self.requests[f"{watched}{request.method} {path}"] += 1
        self.requested.set()
        status = next((code for end, code in self.refused.items() if path.endswith(end)), 0)
        if status:
            return web.json_response({"kind": "Status", "code": status}, status=status)
        if watched:
            return await self._watch(request, plural)
        served = [{"name": k.plural, "kind": k.kind, "namespaced": k.namespaced} for k in self.kinds]
        core = [{"name": name, "kind": name, "namespaced": False} for name in ("namespaces", "events")]
        resources = [
            r | {"singularName": "", "verbs": ["list", "watch"]} for r in (core, served)[GROUP in path]
        ]
        version = {"groupVersion": f"{GROUP}/v1alpha1", "version": "v1alpha1"}
        groups = [{"name": GROUP, "versions": [version], "preferredVersion": version}]
        items = json.dumps([*self.objects.values()] if plural == self.kinds[0].plural else []).encode()
        if self.raw_item and "Partial" not in request.headers.get("Accept", ""):
            items = b"[" + b",".join(filter(None, (items[1:-1], self.raw_item))) + b"]"
        body = {"groups": groups, "versions": ["v1"], "resources": resources}
        text = json.dumps(body | {"metadata": {"resourceVersion": str(self.version)}})
        return web.Response(
            body=text[:-1].encode() + b',"items":' + items + b"}", content_type="application/json"
        )

    async def _watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        if plural != self.kinds[0].plural:
            await asyncio.sleep(3600)
        self.watches.append(response)
        try:
            await response.write(self.watch_begins_with or b"\n")
            for obj in self.objects.values():
                if int(obj["metadata"]["resourceVersion"]) > int(request.query["resourceVersion"]):
                    await response.write(event(obj))
            await asyncio.sleep(0.2 if self.watch_begins_with else 3600)
        finally:
            self.watches.remove(response)
        return response


def event(obj: dict[str, Any], kind: str = "MODIFIED") -> bytes:
    """Return a line of a watch."""
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


@asynccontextmanager
async def supervised(
    api: KopfApi, supervisor: KopfSupervisor, mirrors: Iterable[IntakeMirror], client: ApiClient
) -> AsyncIterator[None]:
    """Run kopf and its mirrors while the block runs; it then has stopped in time, and written nothing."""
    tasks = [asyncio.create_task(work) for work in (*(m.run() for m in mirrors), supervisor.run())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await supervisor.end()
        await client.close()
    assert supervisor.ended, "kopf stops in time"
    assert all(" GET " in f" {request}" for request in api.requests), "kopf writes nothing"
