"""Sentences as warnings of kubectl: one a line, none too long."""

import textwrap
from collections.abc import Iterable, Iterator

from tangram.admission.review import LONGEST_WARNING

MOST_WARNINGS = 12  # Kubernetes drops what is beyond 4096 characters in all


def warning_lines(sentences: Iterable[str]) -> tuple[str, ...]:
    """Return the sentences, broken into lines of at most `LONGEST_WARNING` characters, between clauses if
    possible; none twice, and at most `MOST_WARNINGS`.
    """
    lines = list(dict.fromkeys(line for sentence in sentences if sentence for line in _broken(sentence)))
    if len(lines) <= MOST_WARNINGS:
        return tuple(lines)
    return (
        *lines[: MOST_WARNINGS - 1],
        f"{len(lines) - MOST_WARNINGS + 1} more lines are left out",
    )


def _broken(sentence: str) -> Iterator[str]:
    line, words = "", " ".join(sentence.split())
    printable = "".join(c if c.isprintable() else "?" for c in words)  # a header of HTTP takes no other
    for clause in printable.split("; "):
        joined = f"{line}; {clause}" if line else clause
        if len(joined) < LONGEST_WARNING:  # room for the semicolon
            line = joined
            continue
        if line:
            yield f"{line};"
        indent = "  "  # of what goes on in the middle of a clause
        *whole, line = textwrap.wrap(clause, LONGEST_WARNING - 1, subsequent_indent=indent) or [""]
        yield from whole
    if line:
        yield line
