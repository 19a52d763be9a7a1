"""The API process's side of the text process: prompts to token ids, in threads, within limits of time."""

import array
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tangram_engine
from tangram_engine.checkpoint.errors import CheckpointError, RefusalReason, invalid

from .grammar import GrammarError
from .process import LOAD_CPU_S, LOAD_MEMORY, RENDER_CPU_S, WALL_S, pack, receive, send
from .template import TemplateError, TemplateFeatures
from .tokenizer import PromptTooLong, TokenizerError

WORKERS = 2  # requests at a time; more would take cores from the engine
SERVE_MEMORY = 768 << 20  # bytes that one request may take in a worker
_ANSWER_S = WALL_S + 5.0  # the kernel ends a worker before
_LOAD_S = 300.0  # a large tokenizer on a cold disk and a small share of a CPU
_RESTART_S = 5.0  # between two starts of a process that broke
_ENVIRONMENT = ("TZ", "LANG", "LC_ALL", "LD_LIBRARY_PATH")  # the API key and the like are not passed on
_PACKAGES = ("jinja2", "llguidance", "markupsafe", "msgspec", "tokenizers")  # of the text process
_SAMPLE = [{"role": "user", "content": "Hello, 世界! 1 + 1 = 2"}]
_SAMPLE_LIMIT = 1 << 16  # tokens


class TextUnavailable(Exception):
    """The text process broke and is not back yet; the request may be repeated."""


@dataclass(slots=True)
class _Process:
    popen: "subprocess.Popen[bytes]"
    channels: list[socket.socket]
    idle: "queue.SimpleQueue[socket.socket]" = field(default_factory=queue.SimpleQueue)

    def end(self) -> None:
        """Threads that wait for an answer wake up; workers see the end of their socket."""
        for channel in self.channels:
            with suppress(OSError):  # the other end is gone already
                channel.shutdown(socket.SHUT_RDWR)
            channel.close()
        try:
            self.popen.wait(0.5)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


class TextClient:
    """One text process with its workers. Calls block; they may come from several threads.

    Raises from `chat` and `encode`: PromptTooLong, TemplateError, TokenizerError, TextUnavailable.
    """

    def __init__(
        self,
        directory: Path,
        vocab_size: int,
        *,
        memory: int = SERVE_MEMORY,
        workers: int = WORKERS,
        render_cpu_s: float = RENDER_CPU_S,
        load_cpu_s: float = LOAD_CPU_S,
    ) -> None:
        self._workers = workers
        self._vocab_size = vocab_size
        self._load_cpu_s = load_cpu_s
        numbers = (vocab_size, memory, render_cpu_s, load_cpu_s)
        self._arguments = [str(directory.resolve()), *map(str, numbers)]
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._closed = False
        self._restart_at = 0.0
        self.has_template = False
        self.features = TemplateFeatures()  # of the template, if there is one

    def start(self) -> None:
        """Load, then render and tokenize a first message. Raises CheckpointError, also at a limit."""
        with self._lock:
            self._process = self._spawn()
        try:
            if self.has_template:
                self._check(self.chat(_SAMPLE, {"add_generation_prompt": True}, _SAMPLE_LIMIT))
            self._check(self.encode(_SAMPLE[0]["content"], _SAMPLE_LIMIT, add_special_tokens=True))
        except TemplateError as error:
            if error.exceeded:  # one that refuses this message may accept others
                raise invalid(f"{error}; the conversation has one message") from None
        except PromptTooLong as error:
            raise invalid(f"one short message becomes {error} tokens") from None
        except (TokenizerError, TextUnavailable) as error:
            raise invalid(f"tokenizer.json: {error}") from None

    def _check(self, ids: tuple[int, ...]) -> None:
        """A token that the embedding lacks is an error of its request, unless every request would have it."""
        if (largest := max(ids, default=0)) >= self._vocab_size:
            raise invalid(
                f"tokenizer.json: one short message has token id {largest}; "
                f"config.json's vocab_size is {self._vocab_size}"
            )

    def chat(
        self,
        messages: list[dict[str, Any]],
        options: dict[str, Any],
        limit: int,
        *,
        inputs: dict[str, Any] | None = None,
        add_special_tokens: bool = False,
        continued: bool = False,
    ) -> tuple[int, ...]:
        """Render the chat template and tokenize; far more than `limit` tokens are refused.

        `inputs` are tools and documents. `continued`: the answer goes on with the last message.
        """
        return self._ids(("chat", limit, messages, options, inputs, add_special_tokens, continued))

    def encode(self, text: str, limit: int, *, add_special_tokens: bool) -> tuple[int, ...]:
        """Token ids of a text; far more than `limit` of them are refused."""
        return self._ids(("encode", limit, text, add_special_tokens))

    def grammar(self, kind: str, value: Any, reasoning: str) -> str:
        """A grammar that compiles; see `build`. Raises GrammarError, TokenizerError and TextUnavailable."""
        reply, text = self._exchange(("grammar", kind, value, reasoning))
        if reply != "grammar":
            raise GrammarError(text)
        return str(text)

    def vocabulary(self, size: int) -> tuple[list[bytes], list[int]]:
        """The bytes of each token, and the special ones. Raises TokenizerError and TextUnavailable."""
        reply, *content = self._exchange(("vocabulary", size))
        if reply != "vocabulary":
            raise TokenizerError(content[0])
        tokens, special = content
        return tokens, special

    def close(self) -> None:
        """End the process; calls under way fail. No process outlives this by more than a request's time."""
        with self._lock:
            self._closed = True
            process, self._process = self._process, None
        if process is not None:
            process.end()

    @property
    def pid(self) -> int | None:
        """Of the text process, whose children are the workers."""
        process = self._process
        return None if process is None else process.popen.pid

    def _ids(self, request: tuple[Any, ...]) -> tuple[int, ...]:
        kind, value = self._exchange(request)
        match kind:
            case "ids":
                ids = array.array("I")
                ids.frombytes(value)
                return tuple(ids)
            case "long":
                raise PromptTooLong(value)
            case "template" | "template-limit":
                raise TemplateError(value, exceeded=kind == "template-limit")
            case _:
                raise TokenizerError(value)

    def _exchange(self, request: tuple[Any, ...]) -> Any:
        try:
            frame = pack(request)  # before a worker is taken, which would wait for the rest
        except ValueError as error:
            raise TokenizerError(f"the text process cannot be sent this: {str(error)[:200]}") from None
        process = self._running()
        try:
            channel = process.idle.get(timeout=_ANSWER_S)
            send(channel, frame)
            reply = receive(channel)
        except (OSError, EOFError, ValueError, queue.Empty) as error:
            self._discard(process)
            raise TextUnavailable(f"the text process broke ({type(error).__name__})") from None
        process.idle.put(channel)
        return reply

    def _running(self) -> _Process:
        with self._lock:
            if self._process is None:
                if self._closed or time.monotonic() < self._restart_at:
                    raise TextUnavailable("the text process is restarting")
                self._restart_at = time.monotonic() + _RESTART_S
                try:
                    self._process = self._spawn()
                except (CheckpointError, RuntimeError, OSError) as error:
                    raise TextUnavailable(f"the text process does not start: {error}") from None
            return self._process

    def _discard(self, process: _Process) -> None:
        with self._lock:
            if self._process is process:
                self._process = None
        process.end()

    def _spawn(self) -> _Process:
        """Start and wait until it has loaded. Raises CheckpointError."""
        pairs = [socket.socketpair() for _ in range(self._workers)]
        child_ends = [child_end for _, child_end in pairs]
        descriptors = [child_end.fileno() for child_end in child_ends]
        command = [sys.executable, "-P", "-m", "tangram_engine.serve.text.process"]
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(_import_path())
        environment["TOKENIZERS_PARALLELISM"] = "false"
        popen = subprocess.Popen(
            [*command, *self._arguments, *map(str, descriptors)],
            env=environment,
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for child_end in child_ends:
            child_end.close()
        process = _Process(popen, [parent for parent, _ in pairs])
        try:
            self._await_load(process)
        except BaseException:
            process.end()
            raise
        for channel in process.channels:
            channel.settimeout(_ANSWER_S)
            process.idle.put(channel)
        return process

    def _await_load(self, process: _Process) -> None:
        channel = process.channels[0]
        channel.settimeout(_LOAD_S)
        try:
            kind, *rest = receive(channel)
        except (OSError, EOFError, ValueError):
            process.end()
            status = process.popen.returncode
            if status >= 0:  # a defect of the program: its trace is in the log
                raise RuntimeError(f"the text process ended with exit status {status}") from None
            raise invalid(self._death(-status)) from None
        if kind == "failed":
            reason, message = rest
            raise CheckpointError(RefusalReason(reason), message)
        self.has_template, variables, call_format, thinks = rest
        self.features = TemplateFeatures(frozenset(variables), call_format, thinks)

    def _death(self, signum: int) -> str:
        what = "tokenizer.json and the chat template cannot be loaded"
        if signum == signal.SIGPROF:
            return f"{what} within {self._load_cpu_s:g} s of CPU time"
        name = signal.Signals(signum).name
        return f"{what} within {LOAD_MEMORY >> 20} MiB of memory, or crash their library ({name})"


def _import_path() -> Iterator[str]:
    """The folder of this package and, of PYTHONPATH, those in which the API process finds its dependencies.

    Others stay out: a `sitecustomize` in one of them, of an instrumentation say, would start threads in a
    process that forks and whose address space is limited.
    """
    yield str(Path(tangram_engine.__file__).parents[1])
    for folder in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if any((Path(folder) / package).is_dir() for package in _PACKAGES):
            yield folder
