"""Print tables for people, JSON or YAML for programs.

A table is at most as wide as the terminal: the least important columns are left out, and a note lists them.
In a pipe or file a table has every column and one line per row, without colours.
"""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
import yaml

UNVERIFIED_MARK = "*"
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


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    title: str
    right: bool = False  # numbers
    rank: int = 0  # 0: always shown; in a narrow terminal the highest rank is left out first
    prose: bool = False  # wrapped in a narrow terminal


Row = Sequence[tuple[Column, str]]
"""One row of a table: columns, the same in all rows, and their texts."""


def document(value: Mapping[str, Any] | Sequence[Any], fmt: str) -> None:
    """Print a value as JSON or YAML. NaN raises `ValueError`: it is a fault of the program."""
    text = json.dumps(value, indent=2, allow_nan=False)
    click.echo(yaml_text(json.loads(text)).rstrip() if fmt == "yaml" else text)


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


def table(table_rows: Sequence[Row]) -> None:
    """Print rows under the titles of their columns, as many columns as fit the terminal."""
    width = terminal_width()
    columns = [column for column, _ in table_rows[0]]
    rows = [[text for _, text in row] for row in table_rows]
    fitting = _fitting_columns(columns, rows, width)
    shown = [columns[i] for i in fitting]
    _render(shown, _wrapped(shown, [[row[i] for i in fitting] for row in rows], width))
    dropped = [column.title for i, column in enumerate(columns) if i not in fitting]
    if dropped:
        note(
            f"Left out at {width} columns: {', '.join(dropped)}. A wider terminal, a pipe or -o json"
            " shows all."
        )


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
    from rich.console import Console  # noqa: PLC0415 - takes 60 ms
    from rich.table import Table  # noqa: PLC0415

    grid = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        grid.add_column(column.title, justify="right" if column.right else "left", no_wrap=True)
    for row in rows:
        grid.add_row(*row)
    # Wide enough for every row: columns that do not fit are already left out.
    console = Console(width=10_000, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        console.print(grid)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
