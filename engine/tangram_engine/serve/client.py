"""The API process's side of the engine: starts its process, sends requests, hands out the tokens."""

import asyncio
import logging
import multiprocessing
import socket
import time
from collections.abc import Callable
from typing import Protocol

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

from . import worker
from .heartbeat import Heartbeat

logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 20
_JOIN_SECONDS = 2.0
_WARM_UPS = 3  # a step may take as long as this many warm-ups, if that is more than the limit


class EngineDied(Exception):
    """The engine process ended; nothing it was asked for will come."""


class Receiver(Protocol):
    """One HTTP request that waits for tokens. Neither method may raise: others wait for the same engine."""

    def receive(self, outputs: list[TokenOutput], now: float) -> None:
        """Take the tokens of one step, which arrived at `now` (time.monotonic)."""

    def lose(self, death: EngineDied) -> None:
        """Nothing more will come."""


class EngineClient:
    """One engine process. Not for use by several event loops."""

    def __init__(
        self,
        config: EngineConfig,
        factory: worker.EngineFactory,
        on_step: Callable[[StepStats], None],
        on_heartbeat: Callable[[Heartbeat], None],
        step_timeout_s: float,
    ) -> None:
        self._config = config
        self._factory = factory
        self._on_step = on_step
        self._on_heartbeat = on_heartbeat
        self._step_timeout_s = step_timeout_s
        self._receivers: dict[str, Receiver] = {}
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[EngineInfo] = self._loop.create_future()
        self.dead: asyncio.Future[EngineDied] = self._loop.create_future()
        self.hung = asyncio.Event()  # set while a step takes longer than it may
        self._heartbeat: Heartbeat | None = None  # beats once the engine is ready
        self._beating: asyncio.Task[None] | None = None
        self._last_words: Failed | None = None
        self._process: multiprocessing.process.BaseProcess | None = None

    async def start(self) -> None:
        """Spawn the engine process. Returns at once; then `ready` or `dead` is set."""
        api_end, engine_end = socket.socketpair()
        with engine_end:
            # Spawned, not forked: CUDA does not survive a fork, and threads hold locks across one.
            context = multiprocessing.get_context("spawn")
            self._process = context.Process(
                target=worker.main, args=(engine_end, self._factory, self._config), daemon=True, name="engine"
            )
            self._process.start()
        reader, self._writer = await asyncio.open_connection(sock=api_end)
        self._reading = asyncio.create_task(self._read(reader))

    @property
    def in_flight(self) -> int:
        """Sequences that wait for tokens."""
        return len(self._receivers)

    @property
    def failure(self) -> str | None:
        """The reason in the engine's last words, if it had any."""
        return None if self._last_words is None else self._last_words.reason

    def submit(self, request: Request, receiver: Receiver) -> None:
        """Queue a request; its tokens go to `receiver`. Raises EngineDied."""
        if self.dead.done():
            raise self.dead.result()
        self._receivers[request.id] = receiver
        self._writer.write(encode(Add(request)))

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Send what requests with a grammar need, before the first of them. Raises EngineDied."""
        if self.dead.done():
            raise self.dead.result()
        self._writer.write(encode(UseVocabulary(vocabulary)))

    def abort(self, request_id: str) -> None:
        """Forget a request. One that has ended already is left alone."""
        if self._receivers.pop(request_id, None) is not None and not self.dead.done():
            self._writer.write(encode(Abort(request_id)))

    def abandon(self) -> None:
        """Give up an engine that hangs: `dead` is set, and every waiting request ends."""
        if self.dead.done() or self._process is None:
            return
        self._reading.cancel()
        self._last_words = Failed("Hung", "a step did not end")
        self._die()
        self._process.kill()

    async def close(self) -> None:
        """End the engine process and take its exit status; no process outlives this."""
        if self._process is None:
            return
        self._reading.cancel()
        if self._beating is not None:
            self._beating.cancel()
        self._writer.close()
        await asyncio.to_thread(self._process.join, _JOIN_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            await asyncio.to_thread(self._process.join, _JOIN_SECONDS)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        frames = FrameReader(FRAME_LIMIT)
        try:
            while data := await reader.read(_READ_BYTES):
                # Tokens of several steps that came together go on together: behind, it writes less often.
                outputs: list[TokenOutput] = []
                for message in map(decode, frames.feed(data)):
                    if isinstance(message, StepOutput):
                        outputs += message.outputs
                        self._on_step(message.stats)
                    else:
                        self._dispatch(message)
                self._deliver(outputs)
        except (OSError, ValueError) as error:
            self._last_words = Failed(type(error).__name__, str(error))
        self._die()

    def _dispatch(self, message: Message) -> None:
        match message:
            case Pong(number) if self._heartbeat is not None:
                self._heartbeat.answer(number)
                self._heard(self._heartbeat)
            case Ready(info):
                # The warm-up ran the largest steps: a slow machine gets the time that it needs.
                limit_s = max(self._step_timeout_s, _WARM_UPS * info.warmup_seconds)
                self._heartbeat = Heartbeat(lambda number: self._writer.write(encode(Ping(number))), limit_s)
                self._beating = asyncio.create_task(self._beat(self._heartbeat))
                self.ready.set_result(info)
            case Failed():
                self._last_words = message
            case _:
                raise ValueError(f"the engine sent {type(message).__name__}")

    async def _beat(self, beat: Heartbeat) -> None:
        while not self.dead.done():
            beat.tick()
            self._heard(beat)
            await asyncio.sleep(beat.interval_s)

    def _heard(self, beat: Heartbeat) -> None:
        """Pass on what the heartbeat says now."""
        if beat.hung and not self.hung.is_set():
            logger.error("the engine process has not answered for %g s", beat.silent_s)
            self.hung.set()
        elif not beat.hung and self.hung.is_set():
            logger.warning("the engine process answers again")
            self.hung.clear()
        self._on_heartbeat(beat)

    def _deliver(self, outputs: list[TokenOutput]) -> None:
        """Hand each receiver its tokens at one go."""
        now = time.monotonic()
        received: dict[Receiver, list[TokenOutput]] = {}
        for output in outputs:
            # A missing receiver is of a request that was aborted while this token was on its way.
            receiver = self._receivers.get(output.request_id)
            if receiver is None:
                continue
            if output.finish is not None:
                del self._receivers[output.request_id]
            received.setdefault(receiver, []).append(output)
        for receiver, tokens in received.items():
            receiver.receive(tokens, now)

    def _die(self) -> None:
        words = self._last_words
        reason = f"{words.reason}: {words.message}" if words else "it ended without a word"
        death = EngineDied(f"The engine process failed ({reason}).")
        logger.error("%s", death)
        self.dead.set_result(death)
        lost = set(self._receivers.values())
        self._receivers.clear()
        for receiver in lost:
            receiver.lose(death)
