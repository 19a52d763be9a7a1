"""What one process says is what the other hears, however the bytes are cut."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    decode,
    encode,
)
from tangram_engine.sample.params import SamplingParams
from tangram_engine.schedule.request import Request

numbers = st.integers(0, 2**40)
reals = st.floats(allow_nan=False, width=64)
outputs = st.builds(
    TokenOutput,
    request_id=st.text(),
    token=st.integers(-1, 2**31),
    logprob=st.none() | reals,
    top_logprobs=st.lists(st.tuples(numbers, reals), max_size=3).map(tuple),
    finish=st.sampled_from([None, "stop", "length", "abort", "error"]),
    cached_tokens=numbers,
    scheduled=reals,
    preemptions=numbers,
)
params = st.builds(
    SamplingParams,
    max_tokens=numbers,
    temperature=reals,
    seed=st.none() | numbers,
    logprobs=st.none() | st.integers(0, 20),
    stop_token_ids=st.lists(numbers, max_size=3).map(tuple),
    ignore_eos=st.booleans(),
)
requests = st.builds(
    Request,
    id=st.text(),
    prompt=st.lists(numbers, max_size=9).map(tuple),
    params=params,
    arrival=reals,
    cache_root=st.binary(max_size=16),
)
stats = st.builds(StepStats, *([numbers] * 9), reals)
messages = st.one_of(
    st.builds(Add, requests),
    st.builds(Abort, st.text()),
    st.builds(Ping, numbers),
    st.builds(Pong, numbers),
    st.builds(Ready, st.builds(EngineInfo, *([numbers] * 6), st.text(), st.text(), reals, reals)),
    st.builds(Failed, st.text(), st.text()),
    st.builds(StepOutput, st.lists(outputs, max_size=4).map(tuple), stats),
)


@given(st.lists(messages, max_size=4), st.integers(1, 50))
def test_messages_survive_the_wire(sent: list[Message], piece: int) -> None:
    data = b"".join(map(encode, sent))
    reader = FrameReader(FRAME_LIMIT)
    bodies = [body for at in range(0, len(data), piece) for body in reader.feed(data[at : at + piece])]
    assert [decode(body) for body in bodies] == sent


def test_a_frame_over_the_limit_is_an_error_before_it_is_read() -> None:
    with pytest.raises(ValueError, match="over the limit"):
        FrameReader(FRAME_LIMIT).feed((FRAME_LIMIT + 1).to_bytes(4, "big"))


def test_an_unknown_message_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown message"):
        decode(b"\x91\xa2hi")


def test_the_api_process_never_loads_torch() -> None:
    code = "import sys, tangram_engine.serve.server; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
