"""What the API process and the engine process say to each other: frozen dataclasses, msgpack on the wire.

A frame is a 4-byte big-endian length and a msgpack array whose first element names the message. The engine
sends one `StepOutput` per step, however many tokens it made. msgpack holds plain values only, never code.
"""

import struct
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

import msgpack

from tangram_engine.sample.params import SamplingParams
from tangram_engine.schedule.request import Request

FRAME_LIMIT = 256 << 20  # bytes; far above the largest step, so a longer frame means a broken peer
_LENGTH = struct.Struct(">I")


class TokenOutput(NamedTuple):
    """One generated token of one request; `finish` says that it was the last.

    With finish "abort" or "error" no token was made, and only `request_id` means anything beside it. A tuple,
    because a step has hundreds: it is built in a third of a dataclass's time, and msgpack takes it as it is.
    """

    request_id: str
    token: int
    logprob: float | None
    top_logprobs: tuple[tuple[int, float], ...]
    finish: str | None  # None | "stop" | "length" | "abort" | "error"
    cached_tokens: int  # prompt tokens whose keys and values came from the prefix cache
    scheduled: float  # time.monotonic() of the step that first had the request in it; all processes share it
    preemptions: int  # how often it has been preempted so far


@dataclass(frozen=True, slots=True)
class StepStats:
    """The engine after one step. Counts marked "since last" are for this step alone."""

    running: int = 0
    waiting: int = 0
    kv_used_blocks: int = 0
    kv_total_blocks: int = 0
    preemptions: int = 0  # since last
    batch_tokens: int = 0  # tokens computed in this step, prefill and decode
    prompt_tokens: int = 0  # of these, prefill
    prefix_queries: int = 0  # since last, in tokens
    prefix_hits: int = 0  # since last, in tokens
    step_seconds: float = 0.0
    late_kernels: int = 0  # since last: compiled, or loaded from the kernel cache, after the engine was ready


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the engine became after loading and warming up."""

    block_size: int  # tokens per KV block
    num_blocks: int
    max_model_len: int  # tokens, prompt and answer together
    max_num_seqs: int  # sequences in one step
    max_num_batched_tokens: int  # tokens in one step
    vocab_size: int
    dtype: str
    device: str
    load_seconds: float
    warmup_seconds: float
    read_bandwidth: float | None = None  # bytes/s, measured at start; None: not measured, as on a CPU
    gemm_flops: float | None = None  # FLOP/s, likewise
    quantize: str | None = None  # format of the layers' weights; None: `dtype`


@dataclass(frozen=True, slots=True)
class Add:
    """API -> engine: queue this request."""

    request: Request


@dataclass(frozen=True, slots=True)
class Abort:
    """API -> engine: forget this request and free its blocks. Unknown ids are ignored."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Ping:
    """API -> engine: answer between two steps."""

    number: int


@dataclass(frozen=True, slots=True)
class Pong:
    """Engine -> API: the answer to the ping of this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Engine -> API: loaded and warmed up."""

    info: EngineInfo


@dataclass(frozen=True, slots=True)
class Failed:
    """Engine -> API: the last words of an engine process that is about to exit."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Engine -> API: what one step produced; without outputs when only the counts changed (an abort)."""

    outputs: tuple[TokenOutput, ...]
    stats: StepStats


Message = Add | Abort | Ping | Pong | Ready | Failed | StepOutput


def encode(message: Message) -> bytes:
    """One frame, length included."""
    body: bytes = msgpack.packb(_to_wire(message))
    return _LENGTH.pack(len(body)) + body


def decode(body: bytes) -> Message:
    """The inverse of `encode`, given the frame's body. Raises ValueError on anything else."""
    name, *fields = msgpack.unpackb(body, use_list=False)
    build = _FROM_WIRE.get(name)
    if build is None:
        raise ValueError(f"unknown message {name!r}")
    return build(fields)


def _to_wire(message: Message) -> tuple[Any, ...]:
    match message:
        case Add(request):
            params = astuple(request.params)
            return ("add", request.id, request.prompt, params, request.arrival, request.cache_root)
        case Abort() | Ping() | Pong() | Failed():
            return (type(message).__name__.lower(), *astuple(message))
        case Ready(info):
            return ("ready", *astuple(info))
        case StepOutput(outputs, stats):
            return ("step", astuple(stats), outputs)


def _add(fields: list[Any]) -> Add:
    identity, prompt, params, arrival, root = fields
    return Add(Request(identity, prompt, SamplingParams(*params), arrival, root))


def _step(fields: list[Any]) -> StepOutput:
    stats, outputs = fields
    return StepOutput(outputs=tuple(map(TokenOutput._make, outputs)), stats=StepStats(*stats))


_FROM_WIRE: dict[str, Callable[[list[Any]], Message]] = {
    "add": _add,
    "abort": lambda fields: Abort(*fields),
    "ping": lambda fields: Ping(*fields),
    "pong": lambda fields: Pong(*fields),
    "ready": lambda fields: Ready(EngineInfo(*fields)),
    "failed": lambda fields: Failed(*fields),
    "step": _step,
}


class FrameReader:
    """Cuts a byte stream into messages, however the bytes arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """All messages completed by `data`, in order. Raises ValueError on a frame over the limit."""
        self._buffer += data
        messages: list[Message] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > FRAME_LIMIT:
                raise ValueError(f"frame of {length} bytes is over the limit of {FRAME_LIMIT}")
            begin = start + _LENGTH.size
            if len(self._buffer) < begin + length:
                break
            messages.append(decode(bytes(self._buffer[begin : begin + length])))
            start = begin + length
        del self._buffer[:start]
        return messages
