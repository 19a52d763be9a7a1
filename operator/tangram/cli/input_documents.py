"""Read YAML and JSON files as documents. Every error is one line that names file and line."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tangram.catalog import InputError
from tangram.catalog.reading.yaml_text import DEEPEST, ERRORS, line_and_problem, load_all

LARGEST_FILE = 256 << 20
BOM = "\ufeff"


def file_text(name: str, shown: str, option: str = "--file") -> str:
    """Return the text of a file, `-`: standard input. Raises `InputError`."""
    try:
        data = sys.stdin.buffer.read(LARGEST_FILE + 1) if name == "-" else _bytes(Path(name), shown, option)
        if len(data) > LARGEST_FILE:
            raise InputError(option, f"{shown} is larger than {LARGEST_FILE >> 20} MiB")
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(option, f"{shown} is not UTF-8 text") from error
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        if isinstance(error, InputError):
            raise
        raise InputError(option, f"cannot read {shown!r}: {error}") from error


def _bytes(path: Path, shown: str, option: str) -> bytes:
    if path.is_dir():
        raise InputError(option, f"{shown!r} is a directory")
    with path.open("rb") as stream:
        return stream.read(LARGEST_FILE + 1)


def documents(text: str, shown: str) -> Iterator[Any]:
    """Yield every document of `text`. Raises `InputError` for text that is neither YAML nor JSON, nests too
    deep, repeats a key, or grows without bound by its aliases.
    """
    if text.lstrip().startswith("{"):
        try:  # JSON is YAML, but its own parser is ten times faster
            document = json.loads(text, object_pairs_hook=_object)
        except (ValueError, RecursionError):
            pass
        else:
            if not _shallow(document):
                raise InputError(shown, f"more than {DEEPEST} levels deep")
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


def _shallow(value: Any) -> bool:
    """Whether a document has at most `DEEPEST` levels of objects and lists."""
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return True
    return False


def _children(value: Any) -> list[Any]:
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [child for child in values if isinstance(child, dict | list)]
