"""The text process: chat templates and tokenization, which a checkpoint can make arbitrarily slow and large.

The API process starts it with two sockets, no environment and no other file descriptor. It loads the
tokenizer, compiles the template, and forks one worker per socket. A worker answers one request at a time
under limits of memory and CPU time; at a limit the kernel ends it. The parent then answers in its place and
forks the next worker, which takes some milliseconds, because nothing is loaded again.

The body of a frame is a msgpack array. On a channel, no frame is sent before the one before it is answered.
Requests: ("chat", limit, messages, options, inputs, add_special_tokens, continued), ("encode", limit, text,
add_special_tokens), ("grammar", kind, value, reasoning), ("vocabulary", size).
Replies: ("ids", native uint32 bytes), ("long", count in words), ("template", message), ("template-limit",
message), ("tokenizer", message), ("grammar", text), ("no-grammar", message), ("vocabulary", [bytes of each
token], special ids).
"""

import array
import gc
import mmap
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llguidance.gbnf_to_lark  # noqa: F401  (a worker can open no file)
import msgspec

from tangram_engine.checkpoint.errors import CheckpointError, RefusalReason, invalid
from tangram_engine.frames import FrameReader, frame

from .grammar import GrammarError, build
from .template import READ_VARIABLES, ChatTemplate, TemplateError, TemplateFeatures
from .tokenizer import TOKENIZER, PromptTooLong, TextTools, TokenizerError, load_chat_template, load_tokenizer

FRAME_LIMIT = 32 << 20  # bytes, in both directions
RENDER_CPU_S = 1.0
GRAMMAR_CPU_S = 1.0  # for a schema of thousands of properties
VOCABULARY_CPU_S = 20.0
ENCODE_CPU_S = 2.0  # and this much again per half MiB of text; a core takes a tenth of it
WALL_S = 10.0  # for one request, where the CPU is shared
LOAD_CPU_S = 60.0
LOAD_MEMORY = 704 << 20  # bytes of address space: the largest tokenizer that is accepted, and the interpreter
_READ_BYTES = 1 << 20

# What a worker is doing, in one byte that its parent reads when it has died.
_IDLE, _TRANSFER, _RENDER, _ENCODE, _COMPILE = b"itrec"


def pack(message: Any) -> bytes:
    """The body of a frame. Raises ValueError for what msgpack cannot write, and above the limit."""
    try:
        body = msgspec.msgpack.encode(message)
    except OverflowError:
        raise ValueError("an integer has more than 64 bits") from None
    except RecursionError:
        raise ValueError("values are nested too deeply") from None
    if len(body) > FRAME_LIMIT:
        raise ValueError(f"a frame of {len(body)} bytes is over the limit of {FRAME_LIMIT}")
    return body


def send(channel: socket.socket, body: bytes) -> None:
    """Write one frame. Raises OSError."""
    channel.sendall(frame(body))


def receive(channel: socket.socket, started: Callable[[], None] = lambda: None) -> Any:
    """Read one frame; `started` is called whenever a part of it arrives.

    Raises OSError, EOFError and ValueError.
    """
    frames, bodies = FrameReader(FRAME_LIMIT), list[bytes]()
    while not bodies:
        data = channel.recv(_READ_BYTES)
        if not data:
            raise EOFError("the peer closed the connection")
        started()
        bodies = frames.feed(data)
    try:
        return msgspec.msgpack.decode(bodies[0])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"a frame is no msgpack: {error}") from None


@dataclass(frozen=True, slots=True)
class _Text:
    """Tokenizer and template, with the answers to both kinds of request."""

    tools: TextTools
    template: ChatTemplate | None
    render_cpu_s: float

    def ids(self, request: Any, phase: mmap.mmap) -> list[int]:
        kind, limit, *arguments = request
        if kind == "chat":
            messages, options, inputs, special, continued = arguments
            if self.template is None:
                raise TemplateError("the checkpoint has no chat template")
            _begin(phase, _RENDER, self.render_cpu_s)
            text = self.template.render(messages, options, inputs, continued=continued)
        else:
            text, special = arguments
        _begin(phase, _ENCODE, ENCODE_CPU_S * (1 + len(text) / (512 << 10)))
        return self._encode(text, limit, add_special_tokens=special)

    def _encode(self, text: str, limit: int, *, add_special_tokens: bool) -> list[int]:
        fewest = self.tools.fewest_tokens(text)
        if fewest >= limit:
            raise PromptTooLong(f"at least {fewest}")
        if self.tools.exceeds(text, limit):
            raise PromptTooLong(f"more than {limit}")
        return self.tools.encode(text, add_special_tokens=add_special_tokens)


def _begin(phase: mmap.mmap, name: int, cpu_s: float) -> None:
    """Enter a phase: without a handler, the kernel ends the process when a timer runs out."""
    phase[0] = name
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, WALL_S)


def _work(channel: socket.socket, text: _Text, phase: mmap.mmap, memory: int) -> None:
    """Answer requests until the API process closes its end. Runs in a worker."""
    _limit_worker(memory)

    def started() -> None:
        phase[0] = _TRANSFER

    while True:
        phase[0] = _IDLE
        try:
            request = receive(channel, started)
        except (EOFError, OSError):
            return
        reply = pack(_reply(request, text, phase))
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        phase[0] = _TRANSFER
        send(channel, reply)


_REFUSALS: dict[type[Exception], str] = {
    PromptTooLong: "long",
    TemplateError: "template",
    TokenizerError: "tokenizer",
    GrammarError: "no-grammar",
}


def _reply(request: Any, text: _Text, phase: mmap.mmap) -> tuple[Any, ...]:
    try:
        return _answer(request, text, phase)
    except tuple(_REFUSALS) as error:
        return _REFUSALS[type(error)], _encodable(str(error))
    except MemoryError:
        pass
    return _exceeded(phase[0], "needs more memory than one request may take")


def _answer(request: Any, text: _Text, phase: mmap.mmap) -> tuple[Any, ...]:
    match request:
        case "grammar", kind, value, reasoning:
            _begin(phase, _COMPILE, GRAMMAR_CPU_S)
            return "grammar", build(kind, value, reasoning)
        case "vocabulary", size:
            _begin(phase, _ENCODE, VOCABULARY_CPU_S)
            return "vocabulary", [*map(text.tools.token_bytes, range(size))], [*text.tools.special]
    return "ids", array.array("I", text.ids(request, phase)).tobytes()


def _encodable(message: str) -> str:
    """Half of a surrogate pair, which a template may write, has no UTF-8 form."""
    return message.encode("utf-8", "replace").decode("utf-8")


def _exceeded(phase: int, what: str) -> tuple[str, str]:
    if phase == _RENDER:
        return "template-limit", f"the chat template {what}"
    if phase == _COMPILE:
        return "no-grammar", f"compiling it {what}"
    return "tokenizer", f"the tokenizer {what}"


def _limit_worker(memory: int) -> None:
    """Nothing new can be opened, written or started, and memory may grow by `memory` bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _soft_limit(resource.RLIMIT_AS, pages * mmap.PAGESIZE + memory)
    for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE):
        resource.setrlimit(kind, (0, 0))


def _soft_limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _fork(
    channel: socket.socket, others: list[socket.socket], text: _Text, memory: int
) -> tuple[int, mmap.mmap]:
    """Start a worker on `channel`; return its process id and the byte that says what it is doing."""
    phase = mmap.mmap(-1, 1)
    pid = os.fork()
    if pid:
        return pid, phase
    status = 1
    try:
        for other in others:
            other.close()
        _work(channel, text, phase, memory)
        status = 0
    finally:
        os._exit(status)


def _supervise(channels: list[socket.socket], text: _Text, memory: int) -> None:
    """Keep one worker on each channel. Returns when the API process has closed one."""

    def start(channel: socket.socket) -> None:
        pid, phase = _fork(channel, [other for other in channels if other is not channel], text, memory)
        workers[pid] = channel, phase

    workers: dict[int, tuple[socket.socket, mmap.mmap]] = {}
    for channel in channels:
        start(channel)
    while True:
        pid, status = os.wait()
        channel, phase = workers.pop(pid)
        if status == 0 or phase[0] == _TRANSFER:  # the end, or half a frame is lost: a new process is needed
            return
        if phase[0] in (_RENDER, _ENCODE, _COMPILE):
            send(channel, pack(_exceeded(phase[0], _cause(status, phase[0], text))))
        start(channel)


def _cause(status: int, phase: int, text: _Text) -> str:
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number == signal.SIGPROF:
        limits = {_RENDER: f"{text.render_cpu_s:g} s", _COMPILE: f"{GRAMMAR_CPU_S:g} s"}
        return f"takes longer than {limits.get(phase, f'{ENCODE_CPU_S:g} s per half MiB')} of CPU time"
    if number == signal.SIGALRM:
        return f"takes longer than {WALL_S:g} s"
    name = signal.Signals(number).name if number else "an error"
    return f"ended its process ({name}); most often it needs more memory than one request may take"


def _load(directory: Path, vocab_size: int, render_cpu_s: float) -> _Text:
    """Raises CheckpointError; bounded by the limits that `main` has set."""
    tools = load_tokenizer(directory)
    try:
        tools.decode(range(min(vocab_size, 1024)), skip_special_tokens=False)
    except TokenizerError as error:
        raise invalid(f"{TOKENIZER}: {error}") from None
    return _Text(tools, load_chat_template(directory), render_cpu_s)


def main(arguments: list[str]) -> None:
    """Report on the first socket how loading went, then serve.

    Arguments: DIRECTORY VOCAB_SIZE MEMORY RENDER_CPU_S LOAD_CPU_S FD...
    """
    directory, vocab_size, memory, render_cpu_s, load_cpu_s, *descriptors = arguments
    # The API process decides when this one ends; a signal to the whole group must not cut running requests.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    channels = [socket.socket(fileno=int(descriptor)) for descriptor in descriptors]
    _soft_limit(resource.RLIMIT_AS, LOAD_MEMORY)
    signal.setitimer(signal.ITIMER_PROF, float(load_cpu_s))
    try:
        text = _load(Path(directory), int(vocab_size), float(render_cpu_s))
    except CheckpointError as error:
        send(channels[0], pack(("failed", str(error.reason), _encodable(error.message))))
        return
    except MemoryError:
        message = f"tokenizer and chat template need more than {LOAD_MEMORY >> 20} MiB to load"
        send(channels[0], pack(("failed", str(RefusalReason.INVALID), message)))
        return
    signal.setitimer(signal.ITIMER_PROF, 0)
    time.tzset()  # a worker can open no file
    with Path(os.devnull).open("wb") as sink:  # a panic quotes the text it met, which may be a prompt
        os.dup2(sink.fileno(), 2)
    features = text.template.features if text.template is not None else TemplateFeatures()
    read = sorted(features.variables & READ_VARIABLES)
    send(channels[0], pack(("ready", text.template is not None, read, features.call_format, features.thinks)))
    # Pages that are never written stay shared with the workers.
    gc.collect()
    gc.freeze()
    _supervise(channels, text, int(memory))


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)
