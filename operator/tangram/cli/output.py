"""How commands show what they found: tables for people, JSON or YAML for programs.

In a terminal a table is as wide as the terminal: the least important columns are left out, and said so,
rather than wrapped. Into a pipe or file every column goes, plain, one line a row.
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

FORMATS = ("table", "json", "yaml")
UNVERIFIED_MARK = "*"
_GAP = 2  # blanks between columns
_PROSE = 60  # columns of a terminal that prose asks for before others are left out


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    title: str
    right: bool = False  # numbers
    rank: int = 0  # 0: always shown; the highest goes first where the terminal is narrow
    prose: bool = False  # goes on in the next line where the terminal is narrow


def output_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `-o/--output-format`; the value arrives as `fmt`."""
    return click.option(
        "-o",
        "--output-format",
        "fmt",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        help="table for people, json or yaml for programs.",
    )(command)


def document(value: Mapping[str, Any] | Sequence[Any], fmt: str) -> None:
    """Print a value as JSON or YAML. Numbers are plain and finite: NaN is an error of ours."""
    text = json.dumps(value, indent=2, allow_nan=False)
    if fmt == "yaml":
        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        text = yaml.dump(
            json.loads(text), Dumper=dumper, sort_keys=False, allow_unicode=True, width=100
        ).rstrip()
    click.echo(text)


def terminal_width() -> int | None:
    """Return the columns of the terminal (or of $COLUMNS); None: a pipe or file, where lines may be long."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their columns' titles."""
    width = terminal_width()
    kept = _that_fit(columns, rows, width)
    shown = [columns[i] for i in kept]
    _render(shown, _wrapped(shown, [[row[i] for i in kept] for row in rows], width))
    dropped = [column.title for i, column in enumerate(columns) if i not in kept]
    if dropped:
        note(
            f"Left out at {width} columns: {', '.join(dropped)}. A wider terminal, a pipe or -o json has all."
        )


def note(text: str, indent: str = "") -> None:
    """Print one paragraph, wrapped to the terminal; lines after the first begin with `indent`."""
    width = terminal_width()
    click.echo(
        textwrap.fill(text, max(width, 40), subsequent_indent=indent, break_on_hyphens=False)
        if width
        else text
    )


def notes(texts: Iterable[str]) -> None:
    """Print paragraphs below a table, set off by an empty line."""
    found = list(texts)
    if found:
        click.echo()
    for text in found:
        note(text, indent="  ")


def _that_fit(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[int]:
    """Return the indices of the columns that fit, in order; those of rank 0 stay whatever happens."""
    kept = list(range(len(columns)))
    if width is None:
        return kept
    sizes = [
        min(size, _PROSE) if c.prose else size for c, size in zip(columns, _sizes(columns, rows), strict=True)
    ]
    for i in sorted(kept, key=lambda i: (-columns[i].rank, -i)):
        if sum(sizes[k] + _GAP for k in kept) - _GAP <= width or columns[i].rank == 0:
            break
        kept.remove(i)
    return kept


def _sizes(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    return [
        max(len(text) for text in (column.title, *(row[i] for row in rows)))
        for i, column in enumerate(columns)
    ]


def _wrapped(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None
) -> list[Sequence[str]]:
    """Return the rows with prose that is too wide as several, of which only the first has the rest."""
    sizes = _sizes(columns, rows)
    over = 0 if width is None else sum(sizes) + _GAP * (len(sizes) - 1) - width
    prose = next((i for i, column in enumerate(columns) if column.prose), None)
    if over <= 0 or prose is None:
        return list(rows)
    room, found = max(sizes[prose] - over, _PROSE // 2), list[Sequence[str]]()
    for row in rows:
        lines = textwrap.wrap(row[prose], room, break_on_hyphens=False) or [""]
        for number, line in enumerate(lines):
            rest = row if number == 0 else [""] * len(row)
            found.append([line if i == prose else text for i, text in enumerate(rest)])
    return found


def counted(count: int, what: str) -> str:
    """Return `1 move`, `2 moves`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def _render(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - 60 ms that `-o json` does without
    from rich.table import Table  # noqa: PLC0415

    grid = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        grid.add_column(column.title, justify="right" if column.right else "left", no_wrap=True)
    for row in rows:
        grid.add_row(*row)
    # As wide as the rows need: what does not fit was left out before.
    console = Console(width=10_000, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        console.print(grid)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
