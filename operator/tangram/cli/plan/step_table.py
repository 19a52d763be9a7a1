"""The steps of a plan in the terminal: the first ones, and what blocks the others."""

from collections.abc import Mapping
from typing import Any

import click

from tangram.catalog.reading.fields import shortened
from tangram.cli.output import Column, Row, counted, note, section
from tangram.fleet import WHOLE_GPU

_MOST = 12
_MOST_BLOCKED = 3


def show_steps(plan: Mapping[str, Any]) -> None:
    """Print the steps in an executable order, or what blocks them."""
    steps, missing = plan.get("steps", ()), plan.get("stepsMissing")
    section(_COLUMNS, steps[:_MOST])
    if len(steps) > _MOST:
        note(f"{counted(len(steps) - _MOST, 'more step')}; -o json has all.")
    if missing is not None:
        click.echo()
        blocked = shortened(missing["blocked"], _MOST_BLOCKED) or "some replicas"
        problem = f"No order of direct moves reaches the layout: {blocked} cannot start."
        note(f"{problem} {missing['text']}.", indent="  ")


def _where(step: Row) -> str:
    gpus = " ".join(step.get("gpus", ())) or step["node"]
    if "layout" in step:
        return f"{gpus} {' '.join('{profile}@{start}'.format(**slot) for slot in step['layout'])}"
    if "migEnabled" in step:
        return f"{gpus} MIG {'on' if step['migEnabled'] else 'off'}"
    profile = step.get("profile", WHOLE_GPU)
    return gpus if profile == WHOLE_GPU else f"{gpus} {profile}@{step['start']}"


_COLUMNS = (
    Column("STEPS", "number", right=True),
    Column("ACTION", "kind"),
    Column("OWNER", lambda step: step.get("owner", "")),
    Column("WHERE", _where, prose=True),
    Column("AFTER", lambda step: " ".join(map(str, step["after"][-4:])), rank=1),
)
