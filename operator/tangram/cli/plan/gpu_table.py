"""The GPUs of a plan in the terminal: one line for all GPUs of the same layout."""

from collections.abc import Mapping
from typing import Any

import click

from tangram.cli.output import note, terminal_width
from tangram.cli.plan.gpu_strips import GPUStrip, StripBlock, owners, strips

_COLUMNS = 40  # of one GPU
_MOST_LINES = 40
_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow")


def show_strips(plan: Mapping[str, Any]) -> None:
    """Print the layouts: owner and profile of each slice; `.`: free; blank: no GPU instance."""
    groups: dict[tuple[Any, ...], list[GPUStrip]] = {}
    for strip in strips(plan):
        groups.setdefault(strip.layout_key, []).append(strip)
    busy = [group for group in groups.values() if any(block.profile for block in group[0].blocks)]
    empty = [group for group in groups.values() if group not in busy]
    colours = {owner: _COLOURS[i % len(_COLOURS)] for i, owner in enumerate(owners(plan))}
    shown = busy[:_MOST_LINES]
    width = max((len(_name(group)) for group in shown), default=0)
    sku = max((len(group[0].sku) for group in shown), default=0)
    for group in shown:
        line = _line(group[0], colours)
        click.echo(f"{_name(group):<{width}}  {group[0].sku:<{sku}}  {line}")
    if len(busy) > len(shown):
        rest = sum(map(len, busy[_MOST_LINES:]))
        note(f"{rest} more GPUs in {len(busy) - len(shown)} other layouts; -o json or --picture has all.")
    for group in empty:
        click.echo(f"{len(group)} {group[0].sku} empty")


def _name(group: list[GPUStrip]) -> str:
    name = group[0].id + ("?" if group[0].inferred else "")
    return name if len(group) == 1 else f"{name} and {len(group) - 1} more"


def _line(strip: GPUStrip, colours: Mapping[str, str]) -> str:
    columns = max(3, _COLUMNS // strip.units)
    coloured = terminal_width() is not None
    parts = []
    for block in strip.blocks:
        text = _text(block, block.size * columns - 1)
        if coloured and block.owner is not None:
            text = click.style(text, fg=colours[block.owner], reverse=block.moved)
        parts.append("|" + text)
    return "".join(parts) + "|"


def _text(block: StripBlock, width: int) -> str:
    if not block.profile:
        return " " * width
    if block.owner is None:
        return f"{'.' + block.profile:.<{width}}"[:width]
    mark = ">" if block.moved else ""
    full = f"{mark}{block.owner} {block.profile}"
    return (full if len(full) <= width else f"{mark}{block.owner}")[:width].ljust(width)
