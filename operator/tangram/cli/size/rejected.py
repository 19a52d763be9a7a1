"""What does not serve, as people read it: the constraint that killed it and what would revive it."""

from collections import Counter

import click

from tangram.capacity.sizing import Constraint, Rejection, Sizing
from tangram.cli.output import Column, note, table
from tangram.fleet import WHOLE_GPU

_COLUMNS = (
    Column("GPU OR SLICE"),
    Column("PREC"),
    Column("KILLED BY"),
    Column("WHY", rank=1),
    Column("REVIVED BY"),
)
Line = tuple[Rejection, int]  # a rejection, and how many slices of the same GPU fail alike


def show_rejected(found: Sizing, *, everything: bool) -> None:
    """Print every rejection, or of each GPU and slice without a row the one that came nearest."""
    if not found.rejected:
        return
    click.echo()
    if everything:
        note("Rejected:")
        table(_COLUMNS, [_row((each, 0)) for each in found.rejected])
        return
    serving = {(row.shape.sku, row.shape.profile) for row in found.rows}
    rest = [each for each in found.rejected if (each.shape.sku, each.shape.profile) not in serving]
    _show_nearest(_alike(_nearest_of_each(rest)))
    counts = Counter(str(each.constraint) for each in found.rejected)
    counted = ", ".join(f"{count} {constraint}" for constraint, count in counts.most_common())
    note(f"{len(found.rejected)} shapes are rejected in all ({counted}); --all shows each.")


def _show_nearest(lines: list[Line]) -> None:
    revivable = [line for line in lines if line[0].relaxation is not None]
    if revivable:
        note("GPUs and slices that do not serve, the nearest shape of each:")
        table(_COLUMNS, [_row(line) for line in revivable])
    for constraint in Constraint:
        names = [_name(line) for line in lines if line not in revivable and line[0].constraint is constraint]
        if names:
            note(f"Killed by {constraint}, and nothing that was tried revives: {', '.join(names)}.", "  ")


def _nearest_of_each(rejected: list[Rejection]) -> list[Rejection]:
    """Of each GPU and slice the shape that came furthest, one with a single change first."""
    best: dict[tuple[str, str], Rejection] = {}
    for each in rejected:
        key = (each.shape.sku, each.shape.profile)
        if key not in best or _nearness(each) > _nearness(best[key]):
            best[key] = each
    return list(best.values())


def _nearness(rejection: Rejection) -> tuple[bool, int, float]:
    order = list(Constraint)
    return rejection.relaxation is not None, order.index(rejection.constraint), -rejection.excess


def _alike(rejected: list[Rejection]) -> list[tuple[Rejection, int]]:
    """Slices of one GPU that fail alike: the nearest of them, with how many more there are."""
    lines: dict[tuple[str, bool, Constraint, str], list[Rejection]] = {}
    for each in rejected:
        text = each.relaxation.text if each.relaxation else ""
        whole = each.shape.profile == WHOLE_GPU
        lines.setdefault((each.shape.sku, whole, each.constraint, text), []).append(each)
    return [(max(alike, key=_nearness), len(alike) - 1) for alike in lines.values()]


def _name(line: Line) -> str:
    rejection, more = line
    slices = "slice" if more == 1 else "slices"
    return str(rejection.shape) + (f" +{more} {slices}" if more else "")


def _row(line: Line) -> list[str]:
    rejection = line[0]
    return [
        _name(line),
        rejection.shape.precision,
        str(rejection.constraint),
        rejection.message,
        rejection.relaxation.text if rejection.relaxation else "none found",
    ]
