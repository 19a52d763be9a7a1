"""Draw a bar of memory terms as wide as the terminal: coloured there, as letters in a pipe or file."""

import sys
from collections.abc import Sequence
from itertools import accumulate, pairwise

import click

from tangram.capacity.memory.budget import GIB
from tangram.cli.explain_memory.account import MemoryTerm
from tangram.cli.output import terminal_width

WIDTH = 100  # of a pipe or file, and the most in a terminal
NARROWEST = 20


def bar(terms: Sequence[MemoryTerm], total: int) -> None:
    """Print the terms to scale; if they exceed `total`, a second line marks the end of the memory."""
    width = max(NARROWEST, min(WIDTH, (terminal_width() or WIDTH) - 1))
    click.echo("".join(map(_part, terms, layout([term.size for term in terms], total, width))))
    needed = sum(term.size for term in terms)
    if needed > total:
        click.echo(_mark(round(total / needed * width), total))


def _part(term: MemoryTerm, columns: int) -> str:
    if not sys.stdout.isatty():
        return term.letter * columns
    return click.style(term.letter.ljust(columns)[:columns], fg="black", bg=term.color)


def layout(sizes: Sequence[int], total: int, width: int) -> list[int]:
    """Return the columns of each size; they add up to `width` where the sizes fill the memory."""
    longest = max(total, sum(sizes), 1)
    edges = [round(edge / longest * width) for edge in accumulate(sizes, initial=0)]
    return [end - start for start, end in pairwise(edges)]


def _mark(end: int, total: int) -> str:
    label = f"the memory ends here, at {total / GIB:.1f} GiB "
    return f"{label:>{end}}^" if len(label) <= end else f"{' ' * end}^ {label}".rstrip()
