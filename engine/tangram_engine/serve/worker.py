"""The engine process: receive, step, send. One thread computes; another only reads the socket."""

import gc
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from tangram_engine.checkpoint import CheckpointError
from tangram_engine.config import EngineConfig
from tangram_engine.frames import FrameReader
from tangram_engine.messages import (
    FRAME_LIMIT,
    Abort,
    Add,
    EngineInfo,
    Failed,
    Message,
    Ping,
    Pong,
    Ready,
    StepOutput,
    StepStats,
    TokenOutput,
    UseVocabulary,
    decode,
    encode,
)
from tangram_engine.sample.vocabulary import Vocabulary
from tangram_engine.schedule.request import Request
from tangram_engine.start_error import StartError
from tangram_http.log_limit import LimitedLogHandler

logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 20
_AUDIT_AFTER_S = 0.2  # of silence
_AUDITED = object()
_AUDIT_PAUSE_S = 0.0001  # between two slices: long enough for the receiving thread to get the interpreter


class Engine(Protocol):
    """What the worker needs; `LLMEngine` is one, the tests' fake is another."""

    @property
    def info(self) -> EngineInfo:
        """Fixed once constructed."""

    def add(self, request: Request) -> None:
        """Queue a request."""

    def abort(self, request_id: str) -> bool:
        """Forget a request; whether it was known."""

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Know the tokens, for requests with a grammar."""

    def has_work(self) -> bool:
        """Whether a step would do anything."""

    def step(self) -> tuple[list[TokenOutput], StepStats]:
        """Compute one step."""

    def audit_slices(self) -> Iterator[None]:
        """Check the KV accounting, less than a millisecond at a time; raises where it is wrong.

        An audit ends for good when a request is added or aborted.
        """


EngineFactory = Callable[[EngineConfig], Engine]


def llm_engine(config: EngineConfig) -> Engine:
    """The real engine; torch is imported here, so only in the engine process."""
    gc.disable()
    from tangram_engine.run.engine import LLMEngine  # noqa: PLC0415

    engine = LLMEngine(config)
    # Torch's modules and the weights stay: garbage is never looked for among them, not now and not in a step.
    gc.freeze()
    gc.enable()
    return engine


def main(channel: socket.socket, factory: EngineFactory, config: EngineConfig) -> None:
    """Body of the engine process. Ends when the API process closes the socket, or with the first failure."""
    # The API process decides when to end; a signal to the whole group must not cut running requests.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    shown = "%(asctime)s engine %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=shown, handlers=[LimitedLogHandler()])
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(channel, inbox), daemon=True, name="receive").start()
    try:
        engine = factory(config)
        channel.sendall(encode(Ready(engine.info)))
        _loop(engine, channel, inbox)
    except BrokenPipeError:
        os._exit(0)  # the API process is gone, and with it every client
    except Exception as error:
        if isinstance(error, CheckpointError | StartError):
            logger.error("%s", error)  # noqa: TRY400  (a person's error, not ours: no trace)
        else:
            logger.exception("the engine ends")
        _last_words(channel, error)
        sys.stderr.flush()
        # A CUDA context may be poisoned and hang in its destructors: no orderly shutdown.
        os._exit(1)


def _loop(engine: Engine, channel: socket.socket, inbox: "queue.SimpleQueue[Message]") -> None:
    while True:
        aborted = False
        if not engine.has_work():
            aborted = _apply(engine, channel, _next_message(engine, channel, inbox))
        while not inbox.empty():
            aborted |= _apply(engine, channel, inbox.get())
        if engine.has_work():
            outputs, stats = engine.step()
            channel.sendall(encode(StepOutput(tuple(outputs), stats)))
        elif aborted:
            channel.sendall(encode(StepOutput((), StepStats(kv_total_blocks=engine.info.num_blocks))))


def _next_message(engine: Engine, channel: socket.socket, inbox: "queue.SimpleQueue[Message]") -> Message:
    """Wait for work as long as it takes. The silence is used for one audit: no request waits for its end."""
    wait_s: float | None = _AUDIT_AFTER_S
    audit = engine.audit_slices()
    while True:
        try:
            message = inbox.get(timeout=wait_s)
        except queue.Empty:
            wait_s = None if next(audit, _AUDITED) is _AUDITED else _AUDIT_PAUSE_S
            continue
        if not isinstance(message, Ping):
            return message
        _apply(engine, channel, message)


def _apply(engine: Engine, channel: socket.socket, message: Message) -> bool:
    """Carry out one message; whether a known request was aborted."""
    match message:
        case Add(request):
            engine.add(request)
        case Abort(request_id):
            return engine.abort(request_id)
        case UseVocabulary(vocabulary):
            engine.use_vocabulary(vocabulary)
        case Ping(number):
            channel.sendall(encode(Pong(number)))
        case _:
            raise TypeError(f"the API process sent {type(message).__name__}")
    return False


def _receive(channel: socket.socket, inbox: "queue.SimpleQueue[Message]") -> None:
    """Read for ever. The end of the stream ends the process at once, even in the middle of a long step."""
    frames = FrameReader(FRAME_LIMIT)
    while True:
        try:
            data = channel.recv(_READ_BYTES)
        except OSError:
            data = b""
        if not data:
            os._exit(0)
        for body in frames.feed(data):
            inbox.put(decode(body))


def _last_words(channel: socket.socket, error: Exception) -> None:
    reason = error.reason if isinstance(error, CheckpointError) else type(error).__name__
    message = error.message if isinstance(error, CheckpointError) else _first_line(error)
    try:
        channel.sendall(encode(Failed(str(reason), message[:4000])))
    except OSError:
        logger.warning("the API process could not be notified")


def _first_line(error: Exception) -> str:
    """What clients get to read: errors of CUDA go on with advice for debugging, which is in the log."""
    return next((line for line in str(error).splitlines() if line.strip()), "")
