"""Draw a bar of memory terms as wide as the terminal: coloured there, as letters in a pipe or file."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from tangram.capacity.memory.budget import GIB
from tangram.cli.explain_memory.account import MemoryTerm
from tangram.cli.output import terminal_width

WIDTH = 100  # of a pipe or file, and the most in a terminal
NARROWEST = 20


def bar(terms: Sequence[MemoryTerm], total: int) -> None:
    """Print the terms to scale; if they exceed `total`, a second line marks the end of the memory."""
    from rich.console import Console  # noqa: PLC0415 - takes 60 ms
    from rich.text import Text  # noqa: PLC0415

    width = max(NARROWEST, min(WIDTH, (terminal_width() or WIDTH) - 1))
    console = Console(width=width + 1, highlight=False, markup=False, emoji=False)
    line = Text()
    for term, columns in zip(terms, layout([term.size for term in terms], total, width), strict=True):
        is_coloured = console.is_terminal and columns
        text = term.letter + " " * (columns - 1) if is_coloured else term.letter * columns
        line.append(text, style=f"black on {term.color}")
    console.print(line, no_wrap=True, overflow="crop", soft_wrap=True)
    needed = sum(term.size for term in terms)
    if needed > total:
        console.print(_mark(round(total / needed * width), total), no_wrap=True, soft_wrap=True)


def layout(sizes: Sequence[int], total: int, width: int) -> list[int]:
    """Return the columns of each size; they add up to `width` where the sizes fill the memory."""
    longest = max(total, sum(sizes), 1)
    edges = [round(edge / longest * width) for edge in accumulate(sizes, initial=0)]
    return [end - start for start, end in pairwise(edges)]


def _mark(end: int, total: int) -> str:
    label = f"the memory ends here, at {total / GIB:.1f} GiB "
    return f"{label:>{end}}^" if len(label) <= end else f"{' ' * end}^ {label}".rstrip()
