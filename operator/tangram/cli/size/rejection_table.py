"""Rejected shapes as people read them: the constraint each violates, a change with which it serves."""

from collections import Counter

import click

from tangram.capacity.sizing import Constraint, Rejection, Sizing
from tangram.cli.output import Column, counted, note, table
from tangram.fleet import WHOLE_GPU

RejectionGroup = tuple[Rejection, int]
"""A rejection, and how many other slices of the same GPU have the same constraint and change."""


def show_rejected(sizing: Sizing, *, everything: bool) -> None:
    """Print every rejection, or for each GPU and slice without a row the one nearest to serving."""
    if not sizing.rejected:
        return
    click.echo()
    if everything:
        note("Rejected:")
        table(_COLUMNS, [(rejection, 0) for rejection in sizing.rejected])
        return
    serving = {(row.shape.sku, row.shape.profile) for row in sizing.rows}
    others = [r for r in sizing.rejected if (r.shape.sku, r.shape.profile) not in serving]
    _show_nearest(_grouped(_nearest_of_each(others)))
    counts = Counter(str(rejection.constraint) for rejection in sizing.rejected)
    counts_shown = ", ".join(f"{count} {constraint}" for constraint, count in counts.most_common())
    note(f"{len(sizing.rejected)} shapes are rejected in all ({counts_shown}); --all lists them.")


def _show_nearest(groups: list[RejectionGroup]) -> None:
    with_change = [group for group in groups if group[0].relaxation is not None]
    if with_change:
        note("GPUs and slices that do not serve, the nearest shape of each:")
        table(_COLUMNS, with_change)
    for constraint in Constraint:
        names = [_name(g) for g in groups if g not in with_change and g[0].constraint is constraint]
        if names:
            note(f"Rejected by {constraint}; none of the changes tried helps: {', '.join(names)}.", "  ")


def _nearest_of_each(rejected: list[Rejection]) -> list[Rejection]:
    """Return for each GPU and slice the rejection nearest to serving."""
    best: dict[tuple[str, str], Rejection] = {}
    for rejection in rejected:
        key = (rejection.shape.sku, rejection.shape.profile)
        if key not in best or _nearness(rejection) > _nearness(best[key]):
            best[key] = rejection
    return list(best.values())


def _nearness(rejection: Rejection) -> tuple[bool, int, float]:
    """Return a key that grows towards serving: a single change serves, a late constraint, a small excess."""
    order = list(Constraint)
    return rejection.relaxation is not None, order.index(rejection.constraint), -rejection.excess


def _grouped(rejected: list[Rejection]) -> list[RejectionGroup]:
    """Group slices of one GPU by constraint and change; each group is its nearest rejection and a count."""
    groups: dict[tuple[str, bool, Constraint, str], list[Rejection]] = {}
    for rejection in rejected:
        text = rejection.relaxation.text if rejection.relaxation else ""
        whole = rejection.shape.profile == WHOLE_GPU
        groups.setdefault((rejection.shape.sku, whole, rejection.constraint, text), []).append(rejection)
    return [(max(group, key=_nearness), len(group) - 1) for group in groups.values()]


def _name(group: RejectionGroup) -> str:
    rejection, more = group
    return str(rejection.shape) + (f" +{counted(more, 'slice')}" if more else "")


_COLUMNS = (
    Column("GPU OR SLICE", _name),
    Column("PREC", lambda group: group[0].shape.precision),
    Column("REJECTED BY", lambda group: group[0].constraint),
    Column("WHY", lambda group: group[0].message, rank=1),
    Column(
        "SERVES WITH", lambda group: group[0].relaxation and group[0].relaxation.text, missing="none found"
    ),
)
