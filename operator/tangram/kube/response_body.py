"""Read response bodies of the API server: within a size limit, by line, at any depth of nesting."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

MAX_BODY_BYTES = 16 * 2**20  # etcd stores objects of at most 1.5 MiB

_FIELD_SET = b'"fieldsV1":'
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"|[][{}]|[a-z0-9.+-]+')
_NESTING = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}


async def read_limited(stream: aiohttp.StreamReader, limit: int = MAX_BODY_BYTES) -> bytearray:
    """Read a response body. Raises `aiohttp.ClientPayloadError` beyond `limit` bytes."""
    body = bytearray()
    async for chunk in stream.iter_any():
        body += chunk
        if len(body) > limit:
            raise aiohttp.ClientPayloadError(f"a response of more than {limit} bytes")
    return body


async def watch_lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Split a watch into lines of up to MAX_BODY_BYTES: objects may be larger than aiohttp's line limit."""
    rest = bytearray()
    async for chunk in stream.iter_any():
        *ended, tail = chunk.split(b"\n")
        for part in ended:
            rest += part
            _check_event(rest)
            if rest.strip():
                yield bytes(rest)
            rest.clear()
        rest += tail
        _check_event(rest)


def _check_event(line: bytearray) -> None:
    if len(line) > MAX_BODY_BYTES:
        raise aiohttp.ClientPayloadError(f"a watch event of more than {MAX_BODY_BYTES} bytes")


def parse_json(raw: bytes | bytearray) -> Any:
    """Parse JSON of the API server. Raises ValueError, and RecursionError for other JSON that nests too deep.

    A tenant may nest the field sets in an object's managedFields 10,000 levels deep: the API server accepts
    that and Python's parser does not, so one such pod would end every LIST. They are replaced by null.
    """
    try:
        return json.loads(raw)
    except RecursionError:
        return json.loads(_without_field_sets(bytes(raw)))


def _without_field_sets(raw: bytes) -> bytes:
    parts, position = [], 0
    while (match := raw.find(_FIELD_SET, position)) >= 0:
        begin = match + len(_FIELD_SET)
        parts += [raw[position:begin], b"null"]
        position = _end_of_value(raw, begin)
    return b"".join([*parts, raw[position:]])


def _end_of_value(raw: bytes, begin: int) -> int:
    depth = 0
    for token in _TOKENS.finditer(raw, begin):
        depth += _NESTING.get(token[0], 0)
        if depth <= 0:
            return token.end()
    raise ValueError("JSON without an end")
