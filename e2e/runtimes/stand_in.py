"""A process that behaves like an engine: `python -m e2e.runtimes.stand_in KIND WORD...`.

It reads the command line as the engine does (an unknown flag ends it with status 2), starts in phases,
streams tokens, shows its load in the names of the engine, and ends by SIGTERM as the engine does:

- vLLM finishes the requests that run, for --shutdown-timeout seconds; by default they never
  end: the engine is gone, and clients wait until the process is killed.
- SGLang answers its health route with 503, and ends once nothing runs.
- NIM is vLLM behind /v1, with its flags in NIM_PASSTHROUGH_ARGS; its live route answers while it loads.

Requests beyond the engine's limit wait. STAND_IN_LOAD_S and STAND_IN_TOKEN_S change times, STAND_IN_HOST and
STAND_IN_PORT the address, for tests on one machine.
"""

import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest

from tangram.runtimes.flag_tables import flag_table, known_versions

USAGE_ERROR = 2  # of argparse
_ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "nim": "vLLM"}
_NAMES = {
    "vllm": {
        "running": "vllm:num_requests_running",
        "waiting": "vllm:num_requests_waiting",
        "kv": "vllm:kv_cache_usage_perc",
        "ttft": "vllm:time_to_first_token_seconds",
        "itl": "vllm:inter_token_latency_seconds",
        "tpot": "vllm:request_time_per_output_token_seconds",
        "prompt": "vllm:request_prompt_tokens",
        "answer": "vllm:request_generation_tokens",
    },
    "sglang": {
        "running": "sglang:num_running_reqs",
        "waiting": "sglang:num_queue_reqs",
        "kv": "sglang:token_usage",
        "ttft": "sglang:time_to_first_token_seconds",
        "itl": "sglang:inter_token_latency_seconds",
        "tpot": "sglang:request_time_per_output_token_seconds",
        "prompt": "sglang:prompt_tokens_histogram",
        "answer": "sglang:generation_tokens_histogram",
    },
}
_STREAMED = ("ttft", "tpot")  # SGLang parts these by is_streaming
_LENGTHS = (1, 10, 100, 1000, 10_000)


def options_of(kind: str, words: list[str]) -> dict[str, list[str]]:
    """Return the values of each flag. Raises ValueError as argparse of the engine refuses a command line."""
    table = flag_table(_ENGINES[kind], known_versions(_ENGINES[kind])[0])
    assert table is not None
    options: dict[str, list[str]] = {}
    values: list[str] | None = None
    for word in words:
        if word.startswith("-") and not word.lstrip("-")[:1].isdigit():
            name, mark, value = word.partition("=")
            if problem := table.problem(name):
                raise ValueError(f"error: unrecognized arguments: {word} ({problem})")
            values = options.setdefault(table.spelling(name), [])
            values += [value] if mark else []
        elif values is not None:
            values.append(word)
    return options


@dataclass
class StandIn:
    """One server."""

    kind: str
    options: dict[str, list[str]]
    load_s: float
    token_s: float
    ready: bool = False
    draining: bool = False
    running: int = 0
    waiting: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self.dialect = "sglang" if self.kind == "sglang" else "vllm"
        self.model = self._model()
        self.slots = asyncio.Semaphore(self._most_running())
        names, ttft, itl = _NAMES[self.dialect], *self._edges()
        # The scheduler and the front end label their metrics differently.
        self.gauge_labels, self.labels = self._labels()
        self.gauges = {
            key: Gauge(names[key], key, list(self.gauge_labels), registry=self.registry)
            for key in ("running", "waiting", "kv")
        }
        edges = {"ttft": ttft, "itl": itl, "tpot": itl, "prompt": _LENGTHS, "answer": _LENGTHS}
        self.histograms = {
            key: Histogram(
                names[key], key, self._label_names(key), buckets=edges[key], registry=self.registry
            )
            for key in edges
        }
        for gauge in self.gauges.values():
            gauge.labels(**self.gauge_labels).set(0)

    def _model(self) -> str:
        served = self.options.get("--served-model-name") or [os.environ.get("NIM_SERVED_MODEL_NAME", "")]
        return served[0]

    def _most_running(self) -> int:
        flag = "--max-running-requests" if self.dialect == "sglang" else "--max-num-seqs"
        return int(self.options[flag][0])

    def _edges(self) -> tuple[list[float], list[float]]:
        if self.dialect == "sglang":
            return tuple(  # type: ignore[return-value]
                [float(edge) for edge in self.options[f"--bucket-{name}"]]
                for name in ("time-to-first-token", "inter-token-latency")
            )
        buckets = json.loads(self.options["--custom-histogram-buckets"][0])
        return buckets["time_to_first_token"], buckets["inter_token_latency"]

    def _labels(self) -> tuple[dict[str, str], dict[str, str]]:
        if self.dialect == "vllm":
            return ({"model_name": self.model, "engine": "0"},) * 2
        front = {"model_name": self.model, "engine_type": "unified"}
        return front | {"tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}, front

    def _label_names(self, key: str) -> list[str]:
        streamed = ["is_streaming"] if self.dialect == "sglang" and key in _STREAMED else []
        return [*self.labels, *streamed]

    def observe(self, key: str, value: float, *, stream: bool) -> None:
        """Count one observation of a histogram."""
        labels = dict(self.labels)
        if "is_streaming" in self._label_names(key):
            labels["is_streaming"] = str(stream).lower()
        self.histograms[key].labels(**labels).observe(value)

    # -- routes

    async def live(self, _request: web.Request) -> web.Response:
        """Answer the liveness route."""
        if self.kind == "nim":
            return web.Response()
        return await self.health(_request)

    async def health(self, _request: web.Request) -> web.Response:
        """Answer the readiness route."""
        hidden = not self.ready or (self.draining and self.dialect == "sglang")
        return web.Response(status=503 if hidden else 200)

    async def metrics(self, _request: web.Request) -> web.Response:
        """Show the metrics page."""
        for key, count in (("running", self.running), ("waiting", self.waiting)):
            self.gauges[key].labels(**self.gauge_labels).set(count)
        return web.Response(body=generate_latest(self.registry), content_type="text/plain")

    async def version(self, _request: web.Request) -> web.Response:
        """Say the version of the engine, as vLLM and NIM do."""
        newest = known_versions(_ENGINES[self.kind])[0]
        return web.json_response({"release": newest} if self.kind == "nim" else {"version": newest})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Stream as many tokens as the request asks for."""
        body = await request.json()
        stream, tokens = bool(body.get("stream", True)), int(body["max_tokens"])
        arrived_s = asyncio.get_running_loop().time()
        self.waiting += 1
        try:
            await self.slots.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            return await self._answer(request, tokens, arrived_s, stream=stream)
        finally:
            self.running -= 1
            self.slots.release()

    async def _answer(
        self, request: web.Request, tokens: int, arrived_s: float, *, stream: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(tokens):
            await asyncio.sleep(self.token_s)
            waited_s = self.token_s if number else asyncio.get_running_loop().time() - arrived_s
            self.observe("itl" if number else "ttft", waited_s, stream=stream)
            await response.write(self._event(number == tokens - 1))
        self.observe("tpot", self.token_s, stream=stream)
        self.observe("prompt", 8, stream=stream)
        self.observe("answer", tokens, stream=stream)
        await response.write(b"data: [DONE]\n\n")
        return response

    def _event(self, is_last: bool) -> bytes:
        choice = {"index": 0, "delta": {"content": "token "}, "finish_reason": "length" if is_last else None}
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": self.model}
        return b"data: " + json.dumps({**chunk, "choices": [choice]}).encode() + b"\n\n"

    def routes(self) -> Iterator[web.RouteDef]:
        """Yield the routes, which NIM has behind /v1."""
        paths = {"vllm": ("/health", "/health", "/metrics"), "sglang": ("/health", "/health", "/metrics")}
        live, ready, metrics = paths.get(self.kind, ("/v1/health/live", "/v1/health/ready", "/v1/metrics"))
        yield web.get(ready, self.health)
        if live != ready:
            yield web.get(live, self.live)
        yield web.get(metrics, self.metrics)
        yield web.get("/v1/version" if self.kind == "nim" else "/version", self.version)
        yield web.post("/v1/chat/completions", self.complete)

    # -- life

    async def serve(self, host: str, port: int) -> None:
        """Load, serve, and end by SIGTERM."""
        application = web.Application()
        application.add_routes(list(self.routes()))
        runner = web.AppRunner(application)
        await runner.setup()
        if self.kind == "vllm":  # its port opens once the model is loaded
            await asyncio.sleep(self.load_s)
        await web.TCPSite(runner, host, port).start()
        if self.kind != "vllm":
            await asyncio.sleep(self.load_s)
        self.ready = True
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.ended.set)
        await self.ended.wait()
        self.draining = True
        await self._drained()
        os._exit(0)

    async def _drained(self) -> None:
        limit = float(self.options.get("--shutdown-timeout", ["0"])[0]) if self.dialect == "vllm" else 1e9
        until = asyncio.get_running_loop().time() + limit
        while self.running and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110 - many requests end
            await asyncio.sleep(0.01)


def main(arguments: list[str]) -> int:
    """Run the stand-in of a kind with the words of its command line."""
    kind, *words = arguments
    if kind == "nim":
        words = shlex.split(os.environ["NIM_PASSTHROUGH_ARGS"])
    try:
        options = options_of(kind, words)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return USAGE_ERROR
    load_s, token_s = (float(os.environ.get(f"STAND_IN_{name}_S", "0.01")) for name in ("LOAD", "TOKEN"))
    host, port = (os.environ.get(f"STAND_IN_{name}") for name in ("HOST", "PORT"))
    port = port or options.get("--port", [os.environ.get("NIM_SERVER_PORT", "8000")])[0]
    asyncio.run(StandIn(kind, options, load_s, token_s).serve(host or "0.0.0.0", int(port)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
