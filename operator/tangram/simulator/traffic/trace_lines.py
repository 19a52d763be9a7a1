"""Read a trace from lines of text, CSV or JSON. Every error is one line that names the line of the trace.

CSV has a header with `arrival_s`, `input_tokens`, `output_tokens` and, where recorded, `client_id`. A JSON
line has the same keys and, where recorded, `prefix_block_ids_512`: ids of blocks of 512 prompt tokens, from
the beginning of the prompt on; equal ids are equal beginnings (Mooncake, FAST 2025).
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tangram.capacity.load.traffic import SimulatedRequest
from tangram.catalog import InputError
from tangram.catalog.reading.fields import short
from tangram.simulator.traffic.trace import Trace

MAX_ROWS = 2_000_000
MAX_TOKENS = 10_000_000  # of one prompt or answer: ten times the longest context of today
MAX_ARRIVAL_S = 366 * 86_400.0
MAX_LINE_CHARACTERS = 1_000_000
MAX_BLOCKS = MAX_TOKENS // 512
MAX_CLIENT_CHARACTERS = 200
PREFIX_BLOCKS = "prefix_block_ids_512"
_REQUIRED = ("arrival_s", "input_tokens", "output_tokens")

Row = Mapping[str, Any]


def parse_trace(lines: Iterable[str], where: str) -> Trace:
    """Return the requests of a trace. `where`: the name of the trace in messages. Raises `InputError`."""
    requests: list[SimulatedRequest] = []
    clients: list[str] = []
    for number, row in _rows(_bounded(lines, where), where):
        line = f"{where}: line {number}"
        request = _request(row, line)
        if requests and request.arrival_s < requests[-1].arrival_s:
            raise InputError(line, f"arrives at {request.arrival_s}, before the request of an earlier line")
        requests.append(request)
        client = row.get("client_id")
        if client is not None:
            clients.append(_client(client, line))
        if clients and len(clients) < len(requests):
            raise InputError(line, "has no client_id, unlike earlier lines")
    if not requests:
        raise InputError(where, "has no requests")
    return Trace(tuple(requests), tuple(clients))


def _bounded(lines: Iterable[str], where: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank with their numbers. Raises `InputError` for too many or too long."""
    for number, line in enumerate(lines, start=1):
        if number > MAX_ROWS:
            raise InputError(where, f"has more than {MAX_ROWS:,} lines")
        if len(line) > MAX_LINE_CHARACTERS:
            raise InputError(f"{where}: line {number}", f"has more than {MAX_LINE_CHARACTERS:,} characters")
        if line.strip():
            yield number, line.strip().removeprefix("\ufeff")


def _rows(lines: Iterator[tuple[int, str]], where: str) -> Iterator[tuple[int, Row]]:
    first = next(lines, None)
    if first is None:
        return
    number, line = first
    if line.startswith("{"):
        yield number, _json_row(line, f"{where}: line {number}")
        for number, line in lines:
            yield number, _json_row(line, f"{where}: line {number}")
        return
    header = _header(line, f"{where}: line {number}")
    for number, line in lines:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(header):
            raise InputError(f"{where}: line {number}", f"has {len(cells)} cells under {len(header)} columns")
        yield number, dict(zip(header, cells, strict=True))


def _header(line: str, where: str) -> Sequence[str]:
    header = [name.strip() for name in line.split(",")]
    if missing := [name for name in _REQUIRED if name not in header]:
        raise InputError(where, f"is no header of a trace: it lacks {', '.join(missing)}")
    if len(set(header)) < len(header):
        raise InputError(where, "names a column twice")
    return header


def _json_row(line: str, where: str) -> Row:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(where, f"is not JSON: {short(str(error))}") from None
    if not isinstance(row, dict):
        raise InputError(where, f"is {short(row)}, not an object")
    return row


def _request(row: Row, where: str) -> SimulatedRequest:
    arrival = _number(row, "arrival_s", where, float)
    if not 0.0 <= arrival <= MAX_ARRIVAL_S:
        raise InputError(where, f"arrival_s is {short(arrival)}, not from 0 to {MAX_ARRIVAL_S:.0f}")
    prompt, answer = (_tokens(row, name, where) for name in ("input_tokens", "output_tokens"))
    return SimulatedRequest(arrival, prompt, answer, _prefix_blocks(row.get(PREFIX_BLOCKS), where))


def _tokens(row: Row, name: str, where: str) -> int:
    tokens = _number(row, name, where, int)
    if not 1 <= tokens <= MAX_TOKENS:
        raise InputError(where, f"{name} is {short(tokens)}, not from 1 to {MAX_TOKENS}")
    return int(tokens)


def _number(row: Row, name: str, where: str, read: Callable[[Any], float]) -> float:
    value = row.get(name)
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            number = read(value)
            if math.isfinite(number) and (isinstance(value, str) or number == value):
                return number
        except (ValueError, OverflowError):
            pass
    kind = "whole number" if read is int else "number"
    raise InputError(where, f"{name} is {short(value)}, not a {kind}")


def _prefix_blocks(value: object, where: str) -> tuple[int, ...]:
    if value is None:
        return ()
    valid = isinstance(value, list) and all(type(block) is int and 0 <= block < 1 << 63 for block in value)
    if not isinstance(value, list) or not valid or len(value) > MAX_BLOCKS:
        raise InputError(where, f"{PREFIX_BLOCKS} is {short(value)}, not a list of at most {MAX_BLOCKS} ids")
    return tuple(value)


def _client(value: object, where: str) -> str:
    client = str(value) if isinstance(value, str | int) else ""
    if not client.isprintable() or not 0 < len(client) <= MAX_CLIENT_CHARACTERS:
        raise InputError(where, f"client_id is {short(value)}, not a name")
    return client
