"""Read a CSV file of measurements, plain or gzip. Every error is one line that names file and line."""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tangram.catalog import InputError
from tangram.cli.input_documents import file_bytes
from tangram.cli.options.unpacked import unpacked

MAX_BYTES = 64 * 2**20  # unpacked; a thousand rows have 200 KB
MAX_ROWS = 200_000


def read_csv(path: Path, required: Iterable[str]) -> list[dict[str, str]]:
    """Return the rows of a file with a header: row i is line i + 2. Raises `InputError`."""
    shown = str(path)
    content = file_bytes(path, "CSV file", MAX_BYTES)
    if not content:
        raise InputError(shown, "is empty")
    text = _text(b"".join(unpacked(io.BytesIO(content), shown, MAX_BYTES)), shown)
    try:
        return list(_rows(text, shown, tuple(required)))
    except csv.Error as error:
        raise InputError(shown, f"is not CSV: {error}") from None


def _text(raw: bytes, shown: str) -> str:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(shown, "is neither gzip nor UTF-8 text") from None
    if "\0" in text:
        raise InputError(shown, "is binary, not CSV")
    return text


def _rows(text: str, shown: str, required: tuple[str, ...]) -> Iterator[dict[str, str]]:
    reader = csv.reader(io.StringIO(text.rstrip() + "\n", newline=""), strict=True)
    header = [name.strip() for name in next(reader, [])]
    _check_header(header, shown, required)
    for number, cells in enumerate(reader, start=2):
        where = f"{shown}: line {number}"
        if len(cells) != len(header):
            raise InputError(where, f"has {len(cells)} cells under {len(header)} columns")
        if reader.line_num != number:
            raise InputError(where, "has a cell of several lines")
        if number > MAX_ROWS:
            raise InputError(shown, f"has more than {MAX_ROWS:,} lines")
        yield dict(zip(header, (cell.strip() for cell in cells), strict=True))
    if reader.line_num < 2:
        raise InputError(shown, "has a header but no rows")


def _check_header(header: list[str], shown: str, required: tuple[str, ...]) -> None:
    if not any(header):
        raise InputError(shown, "has no header line")
    if missing := [name for name in required if name not in header]:
        raise InputError(
            shown, f"lacks {'a column' if len(missing) == 1 else 'columns'}: {', '.join(missing)}"
        )
    if twice := sorted(name for name, count in Counter(header).items() if name and count > 1):
        raise InputError(shown, f"has two columns named {twice[0]}")
