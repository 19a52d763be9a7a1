"""JSON in, from clients, and out, for clients and event streams.

Checking is linear in the body's length, whatever the body holds, and makes no object of a value: msgspec
builds afterwards what a request type names, and skips the rest. A key that one object has twice is refused,
because a proxy before the engine may read the other one.
"""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from json.encoder import encode_basestring_ascii
from typing import Any, TypeVar

import msgspec

DEPTH_LIMIT = 64
_PIECE = 64  # items of a list
_PIECE_CHARACTERS = 64 << 10  # of a string
MAX_STRINGS = 1 << 17
MAX_CONTAINERS = 1 << 16
MAX_VALUES = 1 << 18  # elements and members, at any depth; the token ids of a prompt are most of them
_CHUNK = 64 << 10  # bytes handled by one call, which holds the interpreter's lock
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_NUMBER_BYTES = b"0123456789+-.eE"
# Numbers with a fraction or an exponent, of as many digits as 64 bits can take.
_DECIMAL = re.compile(
    rb"(?<![0-9.eE+-])-?[0-9]{1,19}(?:\.[0-9]{1,19}(?:[eE][+-]?[0-9]{1,2})?|[eE][+-]?[0-9]{1,2})(?![0-9.eE+-])"
)


T = TypeVar("T")


class Malformed(Exception):
    """The body is not JSON, or JSON that is refused whatever its fields mean.

    `kind` is the error of the library; `offset` the byte at fault, where the library did not find it.
    """

    def __init__(
        self, message: str, *, kind: type[Exception] | None = None, offset: int | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.offset = offset


def dumps(value: Any) -> bytes:
    """Compact ASCII: no line break and no lone surrogate can leave, whatever a model says."""
    return _ENCODER.encode(value).encode("ascii")


def string(text: str) -> bytes:
    """As `dumps` of a string, at a fifth of its cost."""
    return encode_basestring_ascii(text).encode("ascii")


def dumps_in_pieces(value: Any) -> bytes:
    """As `dumps`, a part of a list or of a string at a time: no call holds the interpreter's lock for long.

    An iterator is written as a list, item by item: large items need not exist all at once. Bytes are JSON
    already.
    """
    return b"".join(_pieces(value))


def _pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict):
        yield b"{"
        for number, (name, item) in enumerate(value.items()):
            yield (b"," if number else b"") + dumps(name) + b":"
            yield from _pieces(item)
        yield b"}"
    elif isinstance(value, bytes):
        yield value
    elif isinstance(value, Iterator):
        yield b"["
        yield from (b"," + dumps(item) if number else dumps(item) for number, item in enumerate(value))
        yield b"]"
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield b"["
        for number, item in enumerate(value):
            yield b"," if number else b""
            yield from _pieces(item)
        yield b"]"
    elif isinstance(value, list) and len(value) > _PIECE:
        yield b"["
        for start in range(0, len(value), _PIECE):
            yield (b"," if start else b"") + dumps(value[start : start + _PIECE])[1:-1]
        yield b"]"
    elif isinstance(value, str) and len(value) > _PIECE_CHARACTERS:
        yield b'"'
        for start in range(0, len(value), _PIECE_CHARACTERS):
            yield string(value[start : start + _PIECE_CHARACTERS])[1:-1]
        yield b'"'
    else:
        yield dumps(value)


def check(raw: bytes) -> None:
    """Raises Malformed on anything but JSON within the limits.

    Strings are checked for UTF-8 and surrogates when a value is decoded.
    """
    parts = split_at_quotes(raw)
    _check_counts(parts)
    decode_value(raw, msgspec.Raw)
    _check_objects(raw, parts)


def decode_value(raw: bytes | msgspec.Raw, kind: type[T]) -> T:
    """One value. Raises Malformed, or msgspec.ValidationError (with a path) on a value of another type."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        raise Malformed(str(error), kind=type(error)) from None
    except UnicodeDecodeError:
        raise Malformed("a string is not valid UTF-8", kind=UnicodeDecodeError) from None
    except RecursionError:
        raise _too_deep() from None


def _too_deep() -> Malformed:
    return Malformed(f"nested more than {DEPTH_LIMIT} levels deep", kind=RecursionError)


def with_whole_numbers_as_integers(raw: bytes) -> bytes:
    """The same valid JSON with 2 for 2.0 and 2e0: some clients know one kind of number."""
    pieces: list[bytes] = []
    offset = 0
    for index, part in enumerate(split_at_quotes(raw)):
        piece = raw[offset : offset + len(part)]
        pieces.append(piece if index % 2 else b"".join(map(_as_integers, _cut_between_numbers(piece))))
        offset += len(part) + 1
    return b'"'.join(pieces)


def _cut_between_numbers(piece: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(piece):
        end = min(start + _CHUNK, len(piece))
        while start < end < len(piece) and piece[end - 1] in _NUMBER_BYTES:
            end -= 1
        end = end if end > start else start + _CHUNK  # inside a number that is too long for any field
        yield piece[start:end]
        start = end


def _as_integers(piece: bytes) -> bytes:
    return _DECIMAL.sub(_as_integer, piece)


def _as_integer(match: re.Match[bytes]) -> bytes:
    number = Decimal(match[0].decode())
    whole = number == number.to_integral_value() and -(1 << 64) < number < 1 << 64
    return b"%d" % int(number) if whole else match[0]


def split_at_quotes(raw: bytes) -> list[bytes]:
    """What stands outside and inside of strings, by turns; escaped quotes and backslashes are blanked out."""
    pieces, pending = [], b""
    for start in range(0, len(raw), _CHUNK):
        piece = (pending + raw[start : start + _CHUNK]).replace(b"\\\\", b"__")
        pending = b"\\" if piece.endswith(b"\\") else b""  # its other half is in the next chunk
        pieces.append(piece.removesuffix(b"\\").replace(b'\\"', b"__"))
    blanked = b"".join([*pieces, pending])
    if blanked.count(b'"') > 2 * MAX_STRINGS:
        raise Malformed(f"more than {MAX_STRINGS} strings")
    return blanked.split(b'"')


def _check_counts(parts: list[bytes]) -> None:
    outside = b"".join(parts[::2])
    if outside.count(b"[") + outside.count(b"{") > MAX_CONTAINERS:
        raise Malformed(f"more than {MAX_CONTAINERS} objects and arrays")
    if outside.count(b",") > MAX_VALUES:
        raise Malformed(f"more than {MAX_VALUES} values")


def _check_objects(raw: bytes, parts: list[bytes]) -> None:
    """Refuse deep nesting and repeated keys at any depth; `raw` is known to be valid JSON."""
    keys: list[set[bytes]] = []  # of each open object, and an empty set for each open array
    offset = 0
    for index, part in enumerate(parts):
        if index % 2 == 0:
            for bracket in part.translate(None, _NOT_BRACKETS):
                if bracket in b"[{":
                    keys.append(set())
                    if len(keys) > DEPTH_LIMIT:
                        raise _too_deep()
                else:
                    keys.pop()
        elif parts[index + 1].lstrip()[:1] == b":":
            key = _plain_key(raw[offset : offset + len(part)])
            if key in keys[-1]:
                colon = offset + len(part) + 1 + parts[index + 1].index(b":")
                raise Malformed("an object has the same key twice", offset=colon + 1)
            keys[-1].add(key)
        offset += len(part) + 1


def _plain_key(written: bytes) -> bytes:
    if b"\\" not in written:
        return written
    return decode_value(b'"' + written + b'"', str).encode("utf-8")
