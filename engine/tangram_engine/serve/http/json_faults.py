"""What is wrong with a body that is no good JSON, and where, in words for the client that sent it.

msgspec says where it stopped reading. For half of a surrogate pair that is "Input data was truncated", about
a body that is whole.
"""

import re

import msgspec

from .jsonio import DEPTH_LIMIT, Malformed, split_at_quotes

_STOPPED = re.compile(r"JSON is malformed: (.*) \(byte (\d+)\)")
_CUT_ESCAPE = "unexpected end of hex escape"  # as truncation, it can mean the first half of a pair
_FIRST_HALF = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")
_ESCAPE = 6  # bytes of one escaped half
_WORD = re.compile(rb"NaN|Infinity|True|False|None|undefined")  # values of other languages
_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[]{},:"))
_KEY_LIMIT = 64  # bytes
_CHUNK = 64 << 10  # bytes searched by one call, which holds the interpreter's lock


def describe(raw: bytes, error: Malformed) -> tuple[str, str]:
    """The reason, and the path of the field in which it lies: empty where it lies in none."""
    reason, offset = _reason(raw, error)
    return reason, path_at(raw, offset)


def path_at(raw: bytes, offset: int) -> str:
    """The field that a byte belongs to, as `messages.0.content`; the outermost where nesting is too deep.

    What is before the byte is JSON, or as much of it as can be read.
    """
    path: list[str | int | None] = []  # of each open object the key, of each open array the index
    text, position = b"", 0
    for index, part in enumerate(split_at_quotes(raw[:offset])):
        if index % 2:
            text = raw[position : position + len(part)]
        else:
            for mark in part.translate(None, _NOT_STRUCTURE).decode("ascii"):
                _step(path, mark, text)
                if len(path) > DEPTH_LIMIT:
                    return _joined(path[:1])
        position += len(part) + 1
    return _joined(path)


def _step(path: list[str | int | None], mark: str, text: bytes) -> None:
    match mark:
        case "{":
            path.append(None)
        case "[":
            path.append(0)
        case _ if not path:
            return  # more is closed than was opened
        case "}" | "]":
            path.pop()
        case ",":
            last = path[-1]
            path[-1] = last + 1 if isinstance(last, int) else None
        case ":":
            path[-1] = text[:_KEY_LIMIT].decode("utf-8", "replace")


def _joined(path: list[str | int | None]) -> str:
    return ".".join(str(step) for step in path if step is not None)


def _reason(raw: bytes, error: Malformed) -> tuple[str, int]:
    stopped = _STOPPED.fullmatch(str(error))
    if error.kind is UnicodeDecodeError:
        reason = _not_utf8(raw)
    elif stopped and stopped[1] != _CUT_ESCAPE:
        reason = _stopped(raw, stopped[1], int(stopped[2]))
    elif error.kind is msgspec.DecodeError:
        reason = _truncated(raw)
    elif error.offset is not None:
        reason = f"{error} (byte {error.offset})", error.offset
    else:  # too deep, or too many of something, which is in no field
        reason = str(error), len(raw) if error.kind is RecursionError else 0
    return reason


def _truncated(raw: bytes) -> tuple[str, int]:
    half = _first_half(raw)
    if half is not None and half + _ESCAPE < len(raw):
        return _half_pair(raw, half), half
    if not raw.strip():
        return "the body is empty", 0
    return f"the body ends at byte {len(raw)}, before its JSON does", len(raw)


def _stopped(raw: bytes, what: str, offset: int) -> tuple[str, int]:
    """Where msgspec stopped, at a byte that cannot be there."""
    if "surrogate" in what:  # behind it
        before = offset - 2 * _ESCAPE
        half = before if before >= 0 and _FIRST_HALF.match(raw, before) else offset - _ESCAPE
        return _half_pair(raw, half), half
    if raw.startswith(_BYTE_ORDER_MARKS):
        return "the body begins with a byte order mark, and must be UTF-8 without one", 0
    if word := _WORD.match(raw, offset):
        what = f"{word[0].decode('ascii')} is no value of JSON"
    elif what == "invalid character":
        character = raw[offset : offset + 1]
        what = f"unexpected {character.decode('ascii')!r}" if character.isascii() else "unexpected character"
    return f"{what} (byte {offset})", offset


def _half_pair(raw: bytes, offset: int) -> str:
    written = raw[offset : offset + _ESCAPE].decode("ascii", "replace")
    return f"{written} is half of a surrogate pair, and no Unicode character (byte {offset})"


def _first_half(raw: bytes) -> int | None:
    """Where the first half of a surrogate pair stands without the second, if there is one."""
    blanked = raw.replace(b"\\\\", b"__")  # what is left of backslashes begins an escape
    for start in range(0, len(blanked), _CHUNK):
        found = _FIRST_HALF.search(blanked, start, start + _CHUNK + 2 * _ESCAPE)
        if found and found.start() < start + _CHUNK:
            return found.start()
    return None


def _not_utf8(raw: bytes) -> tuple[str, int]:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"byte {error.start} is 0x{raw[error.start]:02x}, which is not UTF-8 there", error.start
    return "a string is not valid UTF-8", 0
