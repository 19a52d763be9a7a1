"""Versions as programs print them."""

from __future__ import annotations

import re


def parse_version(text: str) -> tuple[int, ...]:
    """The first dotted version in a program's output; () when there is none, which is older than everything.

    >>> parse_version("go version go1.26.8 linux/amd64")
    (1, 26, 8)
    """
    found = re.search(r"(?<![\d.])v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part) for part in found.groups() if part is not None) if found else ()


def within(version: tuple[int, ...], lowest: tuple[int, ...], below: tuple[int, ...]) -> bool:
    """``lowest <= version < below``."""
    return lowest <= version < below
