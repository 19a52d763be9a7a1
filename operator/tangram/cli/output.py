"""Print tables for people, JSON or YAML for programs.

A command makes one document. JSON and YAML print it; a table prints columns of the rows in it.
A table is at most as wide as the terminal: the least important columns are left out, and a note lists them.
In a pipe or file a table has every column and one line per row, without colours.
"""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
import yaml

UNVERIFIED_MARK = "*"
ANY = "any"  # `Column.mark`: any unverified fact
output_option = click.option(
    "-o",
    "--output-format",
    "fmt",
    type=click.Choice(("table", "json", "yaml")),
    default="table",
    help="table for people, json or yaml for programs.",
)
_GAP = 2  # blanks between columns
_PROSE = 60  # columns that a prose column keeps before others are left out
_NARROWEST_PROSE = 20  # columns of a prose column, however narrow the terminal is


Row = Mapping[str, Any]
"""One row of a document, as JSON prints it."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: the value of each row, and how it is printed."""

    title: str
    value: str | Callable[[Any], Any]  # a key of the row, or a function of the row
    form: str = ""  # format of a value that is no text, such as ".2f"
    missing: str = "-"  # the text of None
    mark: str = ""  # the fact of the row's `unverified` that marks the cell
    right: bool = False  # numbers
    rank: int = 0  # 0: always shown; in a narrow terminal the highest rank is left out first
    prose: bool = False  # wrapped in a narrow terminal

    def text(self, row: Any) -> str:
        """Return the cell of a row."""
        value = self.value(row) if callable(self.value) else row[self.value]
        if value is None:
            text = self.missing
        else:
            text = value if isinstance(value, str) else format(value, self.form)
        return text + self._mark(row) if self.mark else text

    def _mark(self, row: Any) -> str:
        unverified = row["unverified"]
        return unverified_mark(unverified if self.mark == ANY else self.mark in unverified)


def document(value: Row | Sequence[Any], fmt: str) -> None:
    """Print a value as JSON or YAML. NaN raises `ValueError`: it is a fault of the program."""
    text = json.dumps(value, indent=2, allow_nan=False)
    click.echo(yaml_text(json.loads(text)).rstrip() if fmt == "yaml" else text)


def rounded(value: Any) -> Any:
    """Return a document with floats of six significant digits, from 1,000 on of three decimals."""
    if isinstance(value, Mapping):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(part) for part in value]
    if not isinstance(value, float):
        return value
    return round(value, 3) if abs(value) >= 1000 else float(f"{value:.6g}")


def yaml_text(value: Any) -> str:
    """Return a value as YAML, keys in their order."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=100))


def terminal_width() -> int | None:
    """Return the columns of the terminal, or $COLUMNS; None: a pipe or file, where lines may be long."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(columns: Sequence[Column], rows: Iterable[Any]) -> None:
    """Print rows under the titles of their columns, as many columns as fit the terminal."""
    width = terminal_width()
    texts = [[column.text(row) for column in columns] for row in rows]
    fitting = _fitting_columns(columns, texts, width)
    shown = [columns[i] for i in fitting]
    _render(shown, _wrapped(shown, [[row[i] for i in fitting] for row in texts], width))
    dropped = [column.title for i, column in enumerate(columns) if i not in fitting]
    if dropped:
        note(
            f"Left out at {width} columns: {', '.join(dropped)}. A wider terminal, a pipe or -o json"
            " shows all."
        )


def section(columns: Sequence[Column], rows: Sequence[Any]) -> None:
    """Print a table after an empty line; nothing where there are no rows."""
    if rows:
        click.echo()
        table(columns, rows)


def note(text: str, indent: str = "") -> None:
    """Print one paragraph, wrapped to the terminal; lines after the first begin with `indent`."""
    if width := terminal_width():
        text = textwrap.fill(text, max(width, 40), subsequent_indent=indent, break_on_hyphens=False)
    click.echo(text)


def notes(texts: Iterable[str]) -> None:
    """Print paragraphs below a table, set off by an empty line."""
    paragraphs = list(texts)
    if paragraphs:
        click.echo()
    for text in paragraphs:
        note(text, indent="  ")


def _fitting_columns(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None
) -> list[int]:
    """Return the indices of the columns that fit, in order; those of rank 0 are always among them."""
    fitting = list(range(len(columns)))
    if width is None:
        return fitting
    sizes = [
        min(size, _PROSE) if c.prose else size for c, size in zip(columns, _sizes(columns, rows), strict=True)
    ]
    for i in sorted(fitting, key=lambda i: (-columns[i].rank, -i)):
        if sum(sizes[k] + _GAP for k in fitting) - _GAP <= width or columns[i].rank == 0:
            break
        fitting.remove(i)
    return fitting


def _sizes(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    return [
        max(len(text) for text in (column.title, *(row[i] for row in rows)))
        for i, column in enumerate(columns)
    ]


def _wrapped(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None
) -> list[Sequence[str]]:
    """Return the rows with the prose column wrapped; further lines have empty cells in the other columns."""
    sizes = _sizes(columns, rows)
    over = 0 if width is None else sum(sizes) + _GAP * (len(sizes) - 1) - width
    prose = next((i for i, column in enumerate(columns) if column.prose), None)
    if over <= 0 or prose is None:
        return list(rows)
    prose_width, wrapped = max(sizes[prose] - over, _NARROWEST_PROSE), list[Sequence[str]]()
    for row in rows:
        lines = textwrap.wrap(row[prose], prose_width, break_on_hyphens=False) or [""]
        for number, line in enumerate(lines):
            rest = row if number == 0 else [""] * len(row)
            wrapped.append([line if i == prose else text for i, text in enumerate(rest)])
    return wrapped


def counted(count: int, noun: str) -> str:
    """Return `1 move`, `2 moves`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def unverified_mark(facts: object) -> str:
    """Return the mark of a value that rests on unverified facts, nothing if there are none."""
    return UNVERIFIED_MARK if facts else ""


def unverified_note(facts: Iterable[str]) -> str:
    """Return the note that lists unverified facts below a table."""
    return f"{UNVERIFIED_MARK} Not measured, or without a cited source: {', '.join(sorted(facts))}"


def _render(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    sizes = _sizes(columns, rows)
    for number, row in enumerate([[column.title for column in columns], *rows]):
        cells = [
            text.rjust(size) if column.right else text.ljust(size)
            for column, size, text in zip(columns, sizes, row, strict=True)
        ]
        click.secho((" " * _GAP).join(cells).rstrip(), bold=number == 0)
