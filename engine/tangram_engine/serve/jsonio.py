"""JSON in, from strangers, and out, for clients and event streams."""

import json
import re
from typing import Any, NoReturn

DEPTH_LIMIT = 64
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True)
# Strings are skipped whole, so that brackets inside them do not count.
_STRUCTURE = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def dumps(value: Any) -> bytes:
    """Compact ASCII: no line break and no lone surrogate can leave, whatever a model says."""
    return _ENCODER.encode(value).encode("ascii")


def loads(raw: bytes) -> Any:
    """Strict JSON. Raises ValueError on bad UTF-8, NaN, duplicate keys, lone surrogates, too deep nesting."""
    _check_depth(raw)
    try:
        value = json.loads(
            raw.decode("utf-8"), object_pairs_hook=_without_duplicates, parse_constant=_no_constant
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if _SURROGATE.search(raw):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError("a string holds half of a surrogate pair") from None
    return value


def _check_depth(raw: bytes) -> None:
    if raw.count(b"[") + raw.count(b"{") <= DEPTH_LIMIT:
        return
    depth = 0
    for match in _STRUCTURE.finditer(raw):
        first = raw[match.start()]
        if first in b"[{":
            depth += 1
            if depth > DEPTH_LIMIT:
                raise ValueError(f"nested more than {DEPTH_LIMIT} levels deep")
        elif first in b"]}":
            depth -= 1


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object has the same key twice")
    return result
