"""One client of the HTTP server: streams on one connection each, with nothing but asyncio.

It counts bytes instead of parsing events, so that the client is not what is measured.
"""

import asyncio
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_COUNT = re.compile(rb'"completion_tokens": ?(\d+)')
_END = b"data: [DONE]"


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """One answer: when its pieces came, in seconds from sending the request."""

    tokens: int
    first: float
    last: float
    pauses: list[float]


async def stream(port: int, model: str, prompt: Sequence[int], tokens: int) -> StreamTimes:
    """Ask /v1/completions for exactly `tokens` tokens. Raises RuntimeError where the answer is not complete."""
    body = json.dumps(
        {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begin = time.perf_counter()
    writer.write(head.encode() + body)
    arrivals: list[float] = []
    tail = b""
    while data := await reader.read(1 << 16):
        if b"data: " in data:
            arrivals.append(time.perf_counter() - begin)
        tail = (tail + data)[-4096:]
    writer.close()
    found = _COUNT.findall(tail)
    if _END not in tail or not found or int(found[-1]) != tokens:
        raise RuntimeError(f"an answer is not complete: {tail[-300:]!r}")
    pauses = [after - before for before, after in pairwise(arrivals)]
    return StreamTimes(tokens, arrivals[0], arrivals[-1], pauses)


async def streams(port: int, model: str, prompts: Sequence[Sequence[int]], tokens: int) -> list[StreamTimes]:
    """All prompts at once."""
    return await asyncio.gather(*(stream(port, model, prompt, tokens) for prompt in prompts))
