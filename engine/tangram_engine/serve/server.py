"""One replica from start to exit: HTTP at once, traffic when the engine is warm, drain on SIGTERM."""

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from tangram_engine.checkpoint import CheckpointError, RefusalReason, read_checkpoint, read_shapes
from tangram_engine.config import DUMMY, EngineConfig
from tangram_engine.messages import EngineInfo
from tangram_engine.serve.api_keys import APIKeyFileError, APIKeys
from tangram_engine.serve.http.admission import BodyBytes
from tangram_engine.serve.http.cross_origin import AllowedOrigins
from tangram_engine.serve.http.defaults import SamplingDefaults, read_defaults
from tangram_engine.serve.http.errors import early_refusal_body
from tangram_engine.serve.text.client import WORKERS, TextClient
from tangram_engine.serve.text.tokenizer import TextTools, load_tokenizer
from tangram_http.connections import ConnectionLimits, Connections
from tangram_http.listener import Listener
from tangram_http.log_limit import LimitedLogHandler
from tangram_http.refusals import EarlyRefusal, RefusalWriter
from tangram_http.sockets import listening_socket, within_descriptors

from .api import Backend
from .app import PROBES, build_app, count_early_refusal
from .client import EngineClient
from .heartbeat import Heartbeat
from .lifecycle import Lifecycle, State
from .metrics import EngineMetrics
from .prepare_requests import RequestPreparer
from .worker import EngineFactory, llm_engine

logger = logging.getLogger(__name__)

EXIT_ENGINE_DIED = 1
EXIT_API_KEYS = 2  # as for a command line that is wrong
EXIT_CHECKPOINT = 3
_LINGER_S = 2.0  # in which the rest of a refused body is read, so that the client sees the refusal
_MAX_HEADERS = 64
_READ_BYTES = 16 << 10  # of a body, held by aiohttp before it stops reading
_FAREWELL_S = 2.0  # for handlers to tell their clients that the engine died
# The event loop gives up the interpreter at every read and write, and waits this long to get it back from a
# thread that decodes a body. Python's 5 ms, times a hundred clients, delay a turn by half a second.
_SWITCH_S = 0.0005
_THREADS = 2  # for bodies and replies; more would take cores from the engine


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The flags of `tangram-engine serve` that matter to the server."""

    served_name: str
    host: str = ""  # every address, of IPv6 and of IPv4
    port: int = 8000
    max_queued_requests: int = 256
    max_request_seconds: float = 600.0
    drain_seconds: float = 5.0
    generation_config: str = "auto"  # auto: sampling defaults from the checkpoint; vllm: none
    step_timeout_seconds: float = 60.0  # vLLM: VLLM_ENGINE_ITERATION_TIMEOUT_S
    api_key_file: Path | None = None
    tool_call_parser: str = "auto"  # a name of `PARSERS`; auto: by the chat template
    reasoning_parser: str = "auto"  # think | none; auto: by the chat template
    allowed_origins: Collection[str] = ()  # of web pages; none: browsers let no page of another origin call
    max_body_bytes_in_flight: int = 256 << 20  # beside FREE_BODY_BYTES of each request
    body_seconds: float = 20.0  # from the end of the headers to the end of the body
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)


class Server:
    """Wires the parts together. `run` is the whole life. Raises APIKeyFileError."""

    def __init__(self, options: ServeOptions, config: EngineConfig, factory: EngineFactory) -> None:
        self._options = options
        self._config = config
        self._metrics = EngineMetrics(options.served_name)
        self._api_keys = APIKeys(options.api_key_file, self._metrics) if options.api_key_file else None
        self._origins = AllowedOrigins(options.allowed_origins) if options.allowed_origins else None
        self._lifecycle = Lifecycle(config.max_num_seqs + options.max_queued_requests)
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="json")
        self._text_executor = ThreadPoolExecutor(WORKERS, thread_name_prefix="text")
        self._text: TextClient | None = None
        self._engine = EngineClient(
            config, factory, self._metrics.step, self._heartbeat, options.step_timeout_seconds
        )
        self._stop = asyncio.Event()
        self._defaults = SamplingDefaults()
        self._backend = Backend(
            served_name=options.served_name,
            root=str(config.model),
            max_request_seconds=options.max_request_seconds,
            lifecycle=self._lifecycle,
            metrics=self._metrics,
            executor=self._executor,
            connections=Connections(
                within_descriptors(options.limits),
                self._metrics.refused,
                writer=RefusalWriter(early_refusal_body, "application/json"),
            ),
            bodies=BodyBytes(options.max_body_bytes_in_flight, self._metrics.refused),
            body_seconds=options.body_seconds,
            text_executor=self._text_executor,
            text_slots=asyncio.Semaphore(WORKERS),
            created=int(time.time()),
            random_weights=config.load_format == DUMMY,
        )

    async def run(self) -> int:
        """The exit status: 0 after a drain, 1 when the engine died, 3 when the checkpoint is refused."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._stop.set)
        runner = await self._listen()
        try:
            tools = await loop.run_in_executor(self._text_executor, self._load_text)
            self._defaults = read_defaults(self._config.model, self._options.generation_config)
            await self._engine.start()
            return await self._live(tools)
        except CheckpointError as error:
            logger.error("%s", error)  # noqa: TRY400  (a person's error, not ours: no trace)
            return EXIT_CHECKPOINT
        finally:
            if self._api_keys is not None:
                self._api_keys.close()
            await self._listener.close()
            await runner.cleanup()
            await self._engine.close()
            if self._text is not None:
                await asyncio.to_thread(self._text.close)
            for executor in (self._executor, self._text_executor):
                executor.shutdown(wait=False, cancel_futures=True)

    def _load_text(self) -> TextTools:
        """Start the text process; then load what it could load, to decode. Raises CheckpointError."""
        model = self._config.model
        read = read_shapes if self._config.load_format == DUMMY else read_checkpoint
        vocab_size = read(model).spec.vocab_size
        self._text = TextClient(model, vocab_size)
        self._text.start()
        return load_tokenizer(model)

    async def _listen(self) -> web.AppRunner:
        runner = web.AppRunner(
            build_app(self._backend, self._api_keys, self._origins),
            handler_cancellation=True,  # a client that leaves ends its handler, which frees its blocks
            shutdown_timeout=_FAREWELL_S,
        )
        await runner.setup()
        if runner.server is None:
            raise RuntimeError("aiohttp's runner has no server after its setup")
        self._listener = Listener(
            runner.server,
            self._backend.connections,
            PROBES,
            self._refuse_early,
            access_log=None,
            keepalive_timeout=self._options.limits.idle_seconds,
            auto_decompress=False,
            lingering_time=_LINGER_S,
            max_headers=_MAX_HEADERS,
            read_bufsize=_READ_BYTES,
        )
        await self._listener.start(listening_socket(self._options.host, self._options.port))
        if self._api_keys is not None:
            self._api_keys.watch()
        where = self._options.host or "every address,"
        logger.info("listening on %s port %d", where, self._options.port)
        return runner

    def _refuse_early(self, request: web.BaseRequest, refusal: EarlyRefusal) -> web.Response:
        """Book and answer a request that the application does not see."""
        count_early_refusal(self._metrics, self._api_keys)(request, refusal)
        response = self._backend.connections.writer.response(refusal)
        if self._origins is not None:
            response.headers.update(self._origins.headers(request))
        return response

    async def _live(self, tools: TextTools) -> int:
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait((self._engine.ready, self._engine.dead, stop), return_when=asyncio.FIRST_COMPLETED)
        if stop.done():  # first: a signal to the whole group may have ended a loading engine, too
            return 0
        if self._engine.dead.done():
            return await self._fail()
        self._serve(tools, self._engine.ready.result())
        await asyncio.wait((self._engine.dead, stop), return_when=asyncio.FIRST_COMPLETED)
        if self._engine.dead.done():
            return await self._fail()
        logger.info("draining: accepting for %g s more", self._options.drain_seconds)
        drain = asyncio.create_task(self._lifecycle.drain(self._options.drain_seconds))
        hung = asyncio.create_task(self._engine.hung.wait())
        await asyncio.wait((self._engine.dead, drain, hung), return_when=asyncio.FIRST_COMPLETED)
        hung.cancel()
        if not drain.done():
            drain.cancel()
            self._engine.abandon()  # what a hung engine was asked for would only come to the time limit
            return await self._fail()
        logger.info("drained")
        return 0

    def _serve(self, tools: TextTools, info: EngineInfo) -> None:
        self._metrics.engine_ready(info)
        self._backend.engine = self._engine
        if self._text is None:
            raise RuntimeError("the engine is served before the text process has started")
        features, options = self._text.features, self._options
        self._backend.preparer = RequestPreparer(
            self._text,
            tools,
            info,
            self._defaults,
            call_format={"auto": features.call_format, "none": None}.get(
                options.tool_call_parser, options.tool_call_parser
            ),
            thinks={"auto": features.thinks, "think": True, "none": False}[options.reasoning_parser],
        )
        self._lifecycle.state = State.SERVING
        logger.info(
            "ready: %s on %s, layers in %s, context %d tokens, %d KV blocks of %d, "
            "load %.2f s, warm-up %.2f s",
            info.dtype, info.device, info.quantize or info.dtype,
            info.max_model_len, info.num_blocks, info.block_size,
            info.load_seconds, info.warmup_seconds,
        )  # fmt: skip

    def _heartbeat(self, beat: Heartbeat) -> None:
        self._metrics.silence.set(beat.silent_s)
        silence = f"The engine process has not answered for {beat.silent_s:g} s"
        self._lifecycle.hung = f"{silence}; a step may take {beat.limit_s:g} s." if beat.hung else None

    async def _fail(self) -> int:
        """Let the handlers report the error, then exit: only a restart is safe."""
        self._lifecycle.state = State.FAILED
        await self._lifecycle.wait_idle(_FAREWELL_S)
        return EXIT_CHECKPOINT if self._engine.failure in set(RefusalReason) else EXIT_ENGINE_DIED


def serve(options: ServeOptions, config: EngineConfig, factory: EngineFactory = llm_engine) -> int:
    """Run one replica until a signal stops it or its engine dies; the process's exit status."""
    shown = "%(asctime)s server %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=shown, handlers=[LimitedLogHandler()])
    sys.setswitchinterval(_SWITCH_S)

    async def main() -> int:
        try:
            server = Server(options, config, factory)
        except APIKeyFileError as error:
            logger.error("--api-key-file: %s", error)  # noqa: TRY400  (a person's error, not ours: no trace)
            return EXIT_API_KEYS
        return await server.run()

    return asyncio.run(main())
