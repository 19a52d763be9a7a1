"""Read files of the user, and the YAML and JSON documents in them. Every error is one line."""

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from tangram.catalog import InputError
from tangram.catalog.reading.yaml_text import DEEPEST, ERRORS, line_and_problem, load_all

LARGEST_FILE = 256 << 20
BOM = "\ufeff"


def shown_name(file: str | Path) -> str:
    """Return the name of an input file in messages; the text `-`, but no path, is standard input."""
    return "standard input" if file == "-" else str(file)


def file_bytes(file: str | Path, field: str, most: int) -> bytes:
    """Return the content of a file, of standard input for the text `-`. Raises `InputError` about `field`."""
    shown = repr(shown_name(file))
    try:
        with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as stream:
            content = stream.read(most + 1)  # pipes and devices have no known size
    except IsADirectoryError:
        raise InputError(field, f"{shown} is a directory") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        reason = getattr(error, "strerror", None) or error
        raise InputError(field, f"cannot read {shown}: {reason}") from error
    if len(content) > most:
        raise InputError(field, f"{shown} is larger than {most >> 20} MiB")
    return content


def file_text(file: str | Path, field: str = "--file", most: int = LARGEST_FILE) -> str:
    """Return the text of a file, of standard input for the text `-`. Raises `InputError` about `field`."""
    try:
        return file_bytes(file, field, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(field, f"{shown_name(file)!r} is not UTF-8 text") from error


def documents(text: str, shown: str) -> Iterator[Any]:
    """Yield every document of `text`. Raises `InputError` for text that is neither YAML nor JSON, nests too
    deep, repeats a key, or grows without bound by its aliases.
    """
    if text.lstrip().startswith("{"):
        try:  # JSON is YAML, but its own parser is ten times faster
            document = json.loads(text, object_pairs_hook=_object)
            is_shallow = _depth(document) <= DEEPEST
        except (ValueError, RecursionError):
            is_shallow = False  # or no JSON: the YAML reader names the line
        if is_shallow:
            yield document
            return
    try:
        yield from load_all(text)
    except ERRORS as error:
        line, problem = line_and_problem(error)
        raise InputError(f"{shown}{line}", f"not YAML: {problem}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) != len(pairs):
        raise ValueError  # the YAML reader names the line
    return keys


def _depth(value: Any) -> int:
    """Return the levels of objects and lists."""
    parts = value.values() if isinstance(value, dict) else value
    return 1 + max((_depth(part) for part in parts if isinstance(part, dict | list)), default=0)
