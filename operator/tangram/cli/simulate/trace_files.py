"""Read traces: packaged ones by name, files as CSV or JSON lines, gzip or not.

Every error is one line that names the file and the line. Nothing is read beyond the limits, however well it
is packed.
"""

from collections.abc import Iterator
from pathlib import Path

import tangram.simulator
from tangram.catalog import InputError
from tangram.catalog.reading.fields import shortened
from tangram.cli.options.unpacked import unpacked
from tangram.simulator.traffic.trace import Trace
from tangram.simulator.traffic.trace_lines import MAX_LINE_CHARACTERS, parse_trace

MAX_UNPACKED = 512 << 20  # bytes of text
_PACKAGED = Path(tangram.simulator.__file__).with_name("traces")
_SUFFIX = ".csv.gz"


def packaged_traces() -> tuple[str, ...]:
    """Return the names of the traces that come with Tangram."""
    return tuple(sorted(path.name.removesuffix(_SUFFIX) for path in _PACKAGED.glob(f"*{_SUFFIX}")))


def read_trace(source: str) -> Trace:
    """Return a packaged trace, or that of a file. Raises `InputError`."""
    packaged = source in packaged_traces()
    path = _PACKAGED / f"{source}{_SUFFIX}" if packaged else Path(source)
    try:
        with path.open("rb") as file:
            return parse_trace(_lines(unpacked(file, source, MAX_UNPACKED), source), source)
    except InputError:  # a ValueError, too
        raise
    except IsADirectoryError:
        raise InputError("--trace", f"{source!r} is a directory") from None
    except FileNotFoundError:
        names = shortened(packaged_traces(), 8)
        raise InputError(
            "--trace", f"there is no file {source!r}, and no packaged trace but {names}"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        reason = getattr(error, "strerror", None) or error
        raise InputError("--trace", f"cannot read {source!r}: {reason}") from None


def _lines(pieces: Iterator[bytes], shown: str) -> Iterator[str]:
    """Yield lines; what is no text, or a line without an end, is refused before it is collected."""
    number, rest = 1, b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield _text(line, f"{shown}: line {number}")
            number += 1
        if len(rest) > 4 * MAX_LINE_CHARACTERS:
            raise InputError(f"{shown}: line {number}", f"has more than {MAX_LINE_CHARACTERS:,} characters")
    if rest:
        yield _text(rest, f"{shown}: line {number}")


def _text(line: bytes, where: str) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(where, "is neither gzip nor UTF-8 text") from None
    if "\0" in text:
        raise InputError(where, "is binary, not text")
    return text
