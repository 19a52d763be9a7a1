"""Draw a bar of parts, at most as wide as the terminal: coloured there, as letters in a pipe or file."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tangram.capacity.memory.budget import GIB
from tangram.cli.output import terminal_width

WIDTH = 100  # of a pipe or file, and the most in a terminal
NARROWEST = 20


@dataclass(frozen=True, slots=True)
class BarSegment:
    """One part of the bar."""

    letter: str
    size: int  # bytes
    color: str


def bar(segments: Sequence[BarSegment], total: int) -> None:
    """Print the parts to scale; if they exceed `total`, a second line marks the end of the memory."""
    from rich.console import Console  # noqa: PLC0415 - takes 60 ms
    from rich.text import Text  # noqa: PLC0415

    width = max(NARROWEST, min(WIDTH, (terminal_width() or WIDTH) - 1))
    console = Console(width=width + 1, highlight=False, markup=False, emoji=False)
    line = Text()
    for segment, columns in zip(
        segments, layout([segment.size for segment in segments], total, width), strict=True
    ):
        text = (
            segment.letter + " " * (columns - 1)
            if console.is_terminal and columns
            else segment.letter * columns
        )
        line.append(text, style=f"black on {segment.color}")
    console.print(line, no_wrap=True, overflow="crop", soft_wrap=True)
    needed = sum(segment.size for segment in segments)
    if needed > total:
        console.print(_mark(round(total / needed * width), total), no_wrap=True, soft_wrap=True)


def layout(sizes: Sequence[int], total: int, width: int) -> list[int]:
    """Return the columns of each part; they add up to `width` where the parts fill the memory."""
    longest = max(total, sum(sizes), 1)
    return list(_steps([round(edge / longest * width) for edge in _edges(sizes)]))


def _edges(sizes: Sequence[int]) -> Iterator[int]:
    reached = 0
    for size in sizes:
        reached += size
        yield reached


def _steps(edges: Sequence[int]) -> Iterator[int]:
    last = 0
    for edge in edges:
        yield edge - last
        last = edge


def _mark(end: int, total: int) -> str:
    label = f"the memory ends here, at {total / GIB:.1f} GiB "
    return f"{label:>{end}}^" if len(label) <= end else f"{' ' * end}^ {label}".rstrip()
