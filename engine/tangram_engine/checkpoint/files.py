"""Open untrusted files: regular files inside the directory, of bounded size, as strict JSON."""

import json
import os
import stat
from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from .errors import invalid, not_found


def open_inside(directory: Path, name: str) -> tuple[BinaryIO, Path, int]:
    """Open `directory/name` for reading and return it with its real path and size.

    Raises CheckpointError when it is missing, is no regular file (a FIFO would block for ever) or
    leaves the directory through a symbolic link.
    """
    root = directory.resolve()
    try:
        path = (root / name).resolve(strict=True)
    except (FileNotFoundError, NotADirectoryError):
        raise not_found(f"{name} does not exist in {directory}") from None
    except (OSError, RuntimeError, ValueError) as error:
        raise invalid(f"{name} cannot be resolved: {error}") from None
    if not path.is_relative_to(root):
        raise invalid(
            f"{name} is a symbolic link that leaves {directory}; copy the files themselves into the directory"
        )
    try:
        # NONBLOCK so that opening a FIFO returns; NOFOLLOW because the path is already resolved.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise invalid(f"{name} cannot be opened: {error.strerror}") from None
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        os.close(fd)
        raise invalid(f"{name} is not a regular file")
    return os.fdopen(fd, "rb"), path, info.st_size


def read_bytes(directory: Path, name: str, limit: int) -> bytes:
    """The whole of a small file; refused when it is larger than `limit` bytes."""
    stream, _, size = open_inside(directory, name)
    with stream:
        if size > limit:
            raise invalid(f"{name} has {size} bytes; at most {limit} are accepted")
        return stream.read(limit)


def exists(directory: Path, name: str) -> bool:
    """Whether something of that name is there, be it only a dangling link."""
    return os.path.lexists(directory / name)


def strict_object(raw: bytes, name: str) -> dict[str, Any]:
    """Parse a JSON object; refuses duplicate keys, NaN, too deep nesting and anything but UTF-8."""

    def no_constant(text: str) -> NoReturn:
        raise ValueError(f"{text} is not JSON")

    try:
        value = json.loads(
            raw.decode("utf-8"), object_pairs_hook=_without_duplicates, parse_constant=no_constant
        )
    except RecursionError:
        raise invalid(f"{name} is nested too deeply") from None
    except ValueError as error:  # includes UnicodeDecodeError and JSONDecodeError
        raise invalid(f"{name} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise invalid(f"{name} must hold a JSON object, not {type(value).__name__}")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"key {twice[:200]!r} appears twice")
    return result
