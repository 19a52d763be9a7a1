"""The gateway on loopback: Envoy with the chart's own configuration, a picker process, an API server with
LLMDeployments and EndpointSlices, and replicas that speak OpenAI's API at the pace that a request asks for.
"""

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml
from aiohttp import web

from e2e.cluster.apiserver import free_port
from tests.support.stand_in_api import StandInApi

ENVOY = Path(sys.prefix, "bin", "envoy")
START_S = 20.0


def wait_until(holds, seconds: float = START_S) -> float:
    """Return the seconds after which something holds."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds, f"not within {seconds} s"
        time.sleep(0.01)
    return time.monotonic() - began


@dataclass
class Replica:
    """Answers with its name, in `max_tokens` chunks, `user` seconds apart.

    While it `holds`, it sends nothing but first chunks.
    """

    name: str
    port: int = 0
    seen: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    holds: bool = False
    connections: set[asyncio.Transport] = field(default_factory=set)
    _runner: web.AppRunner | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application(client_max_size=2**25)
        app.router.add_post("/v1/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close the port, and cut every connection as a node does that is lost."""
        for transport in tuple(self.connections):
            transport.abort()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.connections.add(request.transport)
        body = await request.json()
        self.seen.append(body)
        self.headers.append(dict(request.headers))
        chunks = [self._chunk(body["model"], number) for number in range(body.get("max_tokens", 3))]
        if not body.get("stream"):
            await self._released()
            message = {"role": "assistant", "content": self.name}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return web.json_response(self._chunk(body["model"], 0) | {"choices": [choice]})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number, chunk in enumerate(chunks):
            if number:
                await self._released()
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            await asyncio.sleep(float(body.get("user", 0)))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _released(self) -> None:
        while self.holds:  # noqa: ASYNC110 - set from another thread
            await asyncio.sleep(0.01)

    def _chunk(self, model: str, number: int) -> dict[str, Any]:
        choice = {"index": 0, "delta": {"content": f"{self.name}-{number} "}, "finish_reason": None}
        return {
            "id": "c",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": model,
            "choices": [choice],
        }


class LoopThread:
    """An event loop in a thread, for the servers beside a test that waits."""

    def __enter__(self) -> "LoopThread":
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.run(_end_all_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.start(coroutine).result(START_S)

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


async def _end_all_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def llm_deployment(namespace: str, name: str, served_name: str = "") -> dict[str, Any]:
    model = {"uri": "image:///m"} | ({"servedName": served_name} if served_name else {})
    return {
        "metadata": {"namespace": namespace, "name": name, "uid": f"{namespace}-{name}"},
        "spec": {"model": model, "engine": {"maxRequestSeconds": 60}},
    }


def endpoint_slice(namespace: str, service: str, replica: Replica, **conditions: bool) -> dict[str, Any]:
    """Return a slice of one endpoint: replicas of a test differ by their port."""
    return {
        "metadata": {
            "namespace": namespace,
            "name": f"{service}-{replica.name}",
            "labels": {"kubernetes.io/service-name": service, "app.kubernetes.io/managed-by": "tangram"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": replica.port, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": True} | conditions}],
    }


class FrontDoor:
    """See the module. `with FrontDoor(bootstrap, folder) as door`."""

    def __init__(
        self, bootstrap: str, folder: Path, *picker_arguments: str, tls: ssl.SSLContext | None = None
    ) -> None:
        self.tls = tls
        self.folder, self.port, self.pages_port = folder, free_port(), free_port()
        self._bootstrap, self._picker_arguments = bootstrap, picker_arguments
        self.api = StandInApi({"llmdeployments": [], "endpointslices": []})
        self.picker: subprocess.Popen[bytes] | None = None
        self.envoy: subprocess.Popen[bytes] | None = None
        self._ends = ExitStack()
        self._servers = AsyncExitStack()

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    def __enter__(self) -> "FrontDoor":
        try:
            self._start()
        except BaseException:
            self._ends.close()
            raise
        return self

    def _start(self) -> None:
        self.loop = self._ends.enter_context(LoopThread())
        self.loop.run(self._servers.enter_async_context(self.api.serving()))
        self._ends.callback(lambda: self.loop.run(self._servers.aclose()))
        self.http = self._ends.enter_context(
            httpx.Client(base_url=self.url, timeout=20, verify=self.tls or True)
        )
        (self.folder / "kubeconfig").write_text(json.dumps(_kubeconfig(self.api.url)))
        text = self._bootstrap.replace("/run/tangram", str(self.folder)).replace(
            'address: "0.0.0.0", port_value: 8080', f"address: 127.0.0.1, port_value: {self.port}"
        )
        (self.folder / "envoy.yaml").write_text(text)
        self._ends.callback(lambda: self._end(self.picker))
        self.start_picker()
        options = ("--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning")
        self.envoy = self._run(
            str(ENVOY), "-c", str(self.folder / "envoy.yaml"), *options, "--drain-time-s", "1"
        )
        self._ends.callback(self._end, self.envoy)
        wait_until(lambda: self._status("/healthz") == 200)

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def start_picker(self) -> None:
        """Start a picker, and wait until it knows the models."""
        command = (sys.executable, "-P", "-m", "tangram.gateway", f"--listen=unix:{self.folder}/picker.sock")
        options = (f"--kubeconfig={self.folder}/kubeconfig", f"--pages-port={self.pages_port}")
        self.picker = self._run(*command, *options, *self._picker_arguments)
        wait_until(lambda: self._status(f"http://127.0.0.1:{self.pages_port}/readyz") == 200)

    def kill_picker(self) -> None:
        self._end(self.picker)

    def serve(self, namespace: str, name: str, *replicas: str, served_name: str = "") -> list[Replica]:
        """Add an LLMDeployment and ready replicas; return these once the picker knows them."""
        made = [Replica(each) for each in replicas]
        self.change("llmdeployments", llm_deployment(namespace, name, served_name))
        for replica in made:
            self.loop.run(replica.start())
            self._servers.push_async_callback(replica.stop)
            self.change("endpointslices", endpoint_slice(namespace, name, replica))
        wait_until(lambda: (served_name or name) in self.http.get("/v1/models").text)
        wait_until(lambda: self.gauge("tangram_gateway_ready_replicas") == self._ready())
        return made

    def change(self, plural: str, obj: dict[str, Any], event: str = "MODIFIED") -> None:
        self.loop.run(self.api.change(plural, obj, event))

    def gauge(self, name: str) -> float:
        page = httpx.get(f"http://127.0.0.1:{self.pages_port}/metrics").text
        return next(float(line.split()[1]) for line in page.splitlines() if line.startswith(f"{name} "))

    def ask(self, model: str, *, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        """Send a chat request."""
        request = {"model": model, "messages": [{"role": "user", "content": "hello"}], **body}
        return self.http.post("/v1/chat/completions", json=request, headers=headers)

    def _ready(self) -> int:
        return sum(each["endpoints"][0]["conditions"]["ready"] for each in self.api.objects["endpointslices"])

    def _status(self, url: str) -> int:
        try:
            return self.http.get(url).status_code
        except httpx.TransportError:
            return 0

    def _run(self, *command: str) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(["operator", "engine"])
        with (self.folder / f"{Path(command[0]).name}.log").open("ab") as log:
            environment = os.environ | {"PYTHONPATH": path}
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    @staticmethod
    def _end(process: subprocess.Popen[bytes] | None) -> None:
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait(10)


def _kubeconfig(server: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }


def bootstrap_of(objects: list[dict[str, Any]]) -> str:
    """Return Envoy's configuration of a rendered chart."""
    maps = [obj for obj in objects if obj["kind"] == "ConfigMap" and "envoy.yaml" in obj["data"]]
    text = maps[0]["data"]["envoy.yaml"]
    assert yaml.safe_load(text)["static_resources"]
    return text
