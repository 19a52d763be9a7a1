"""What the API process and the engine process send to each other: msgspec structs, msgpack on the wire.

The body of a frame is a msgpack array whose first element names the message. The engine
sends one `StepOutput` per step, however many tokens it made. msgpack holds plain values only, never code.
"""

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from tangram_engine.frames import frame
from tangram_engine.sample.prompt_logprobs import PromptLogprobs
from tangram_engine.sample.vocabulary import Vocabulary
from tangram_engine.schedule.request import Request

FRAME_LIMIT = 256 << 20  # bytes; far above the largest step, so a longer frame means a broken peer


class TokenOutput(NamedTuple):
    """One generated token of one request; `finish` says that it was the last.

    With finish "abort", "error" or "grammar" (nothing could follow) no token was made, and only `request_id`
    means anything beside it. A tuple, because a step has hundreds: it is built in a third of a dataclass's
    time, and msgpack takes it as it is.
    """

    request_id: str
    token: int
    logprob: float | None
    top_logprobs: tuple[tuple[int, float], ...]
    finish: str | None  # None | "stop" | "length" | "abort" | "error" | "grammar"
    cached_tokens: int  # prompt tokens whose keys and values came from the prefix cache
    scheduled: float  # time.monotonic() of the step that first had the request in it; all processes share it
    preemptions: int  # how often it has been preempted so far
    prompt_logprobs: PromptLogprobs | None = None  # with the first token, where they were asked for


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


class _WireMessage(msgspec.Struct, frozen=True, array_like=True, tag=str.lower):
    """An array whose first element is the message's name, in lower case."""


class Add(_WireMessage, frozen=True):
    """API -> engine: queue this request."""

    request: Request


class Abort(_WireMessage, frozen=True):
    """API -> engine: forget this request and free its blocks. Unknown ids are ignored."""

    request_id: str


class UseVocabulary(_WireMessage, frozen=True):
    """API -> engine: what grammars know of the tokens. Sent before the first request with a grammar."""

    vocabulary: Vocabulary


class Ping(_WireMessage, frozen=True):
    """API -> engine: answer between two steps."""

    number: int


class Pong(_WireMessage, frozen=True):
    """Engine -> API: the answer to the ping of this number."""

    number: int


class Ready(_WireMessage, frozen=True):
    """Engine -> API: loaded and warmed up."""

    info: EngineInfo


class Failed(_WireMessage, frozen=True):
    """Engine -> API: the last words of an engine process that is about to exit."""

    reason: str
    message: str


class StepOutput(_WireMessage, frozen=True):
    """Engine -> API: what one step produced; without outputs when only the counts changed (an abort)."""

    outputs: tuple[TokenOutput, ...]
    stats: StepStats


Message = Add | Abort | UseVocabulary | Ping | Pong | Ready | Failed | StepOutput
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """One frame, length included."""
    return frame(msgspec.msgpack.encode(message))


def decode(body: bytes) -> Message:
    """The inverse of `encode`, given the frame's body. Raises ValueError on anything else."""
    try:
        return _DECODER.decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError(f"unknown message: {error}") from None
