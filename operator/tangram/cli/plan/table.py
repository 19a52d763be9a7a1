"""A plan as people read it: cost, devices of each demand, layouts, moves, steps, and what is not served."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from tangram.cli.output import ANY, Column, Row, counted, note, notes, section, table, unverified_note
from tangram.cli.plan.gpu_table import show_strips
from tangram.cli.plan.headline import headline, money, one_shape
from tangram.cli.plan.step_table import show_steps
from tangram.fleet import WHOLE_GPU

_MOST_MOVES = 20


def show(plan: Mapping[str, Any], *, observed: bool = False) -> None:
    """Print the plan. `observed`: its input is a cluster, which may have a FleetPlan of it."""
    note(headline(plan), indent="  ")
    if (mixes := one_shape(plan)) is not None:
        note(mixes, indent="  ")
    if "whatIf" in plan:
        note(_compared(plan), indent="  ")
    section(_SHAPE_COLUMNS, [row for deployment in plan["deployments"] for row in _shape_rows(deployment)])
    section(_REQUEST_COLUMNS, plan["requests"])
    if plan["gpus"]:
        click.echo()
        show_strips(plan)
    moves = plan["moves"]
    section(_MOVE_COLUMNS, moves[:_MOST_MOVES])
    if len(moves) > _MOST_MOVES:
        note(f"{counted(len(moves) - _MOST_MOVES, 'more move')}; -o json has all.")
    show_steps(plan)
    section(_UNMET_COLUMNS, plan["unmet"])
    _explained(plan)
    notes(
        [
            *_notes(plan),
            *([f"FleetPlan {plan['inputsHash']} of the operator has the same input."] if observed else []),
        ]
    )


def shape_name(shape: Mapping[str, Any]) -> str:
    """Return `H100-80GB-SXM:3g.40gb`, `L40S TP2`."""
    name = shape["sku"] if shape["profile"] == WHOLE_GPU else f"{shape['sku']}:{shape['profile']}"
    splits = ("TP", shape["tensorParallel"]), ("PP", shape.get("pipelineParallel", 1))
    return " ".join((name, *(f"{split}{count}" for split, count in splits if count > 1)))


def unverified_notes(shapes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a note on the facts of the shapes that are not verified, if there are any."""
    facts = {fact for shape in shapes for fact in shape.get("unverified", ())}
    return [f"{unverified_note(facts)}."] if facts else []


def _compared(plan: Mapping[str, Any]) -> str:
    before = plan["whatIf"]["before"]
    unmet = [sum(u["share"] for u in document["unmet"]) for document in (before, plan)]
    less = f", unmet {unmet[0]:.2f} -> {unmet[1]:.2f} deployments" if unmet[0] != unmet[1] else ""
    return (
        f"With {', '.join(plan['whatIf']['changes'])}: {money(before['costPerHour'])} ->"
        f" {money(plan['costPerHour'])} $/h, {before['gpusInUse']} -> {plan['gpusInUse']} GPUs in use{less}."
    )


def _explained(plan: Mapping[str, Any]) -> None:
    deployment = plan.get("explained")
    if deployment is None:
        return
    click.echo()
    if deployment.get("because"):
        note(
            f"{deployment['name']} is not fully served because of {' and '.join(deployment['because'])}.",
            indent="  ",
        )
    for change in deployment.get("relaxations", ()):
        note(
            f"Fully served after: {change['text']} ({money(change['fleetCostPerHour'])} $/h for the fleet).",
            indent="  ",
        )
    if deployment["alternatives"]:
        note(f"{deployment['name']}: all alternatives that were evaluated.")
        table(_ALTERNATIVE_COLUMNS, deployment["alternatives"])


def chosen_shape(other: Row) -> Mapping[str, Any]:
    """Return the first shape of an alternative."""
    shape: Mapping[str, Any] = other["chosen"][0]
    return shape


def fleet_cost(other: Row) -> str:
    """Return the cost of the fleet with an alternative, if that was planned."""
    fleet = money(other["fleetCostPerHour"]) if "fleetCostPerHour" in other else ""
    return fleet + (", serves less" if other.get("unmetChange", 0) > 0 else "")


def reason(other: Row) -> str:
    """Return why an alternative was not chosen."""
    helps = f"; serves with {other['servesWith']}" if "servesWith" in other else ""
    return f"{other['message']}{helps}"


_ALTERNATIVE_COLUMNS = (
    Column("ALTERNATIVE", lambda other: shape_name(chosen_shape(other))),
    Column("PREC", lambda other: chosen_shape(other)["precision"], rank=3),
    Column("REPL", lambda other: chosen_shape(other)["replicas"], right=True),
    Column("$/h", lambda other: money(other["costPerHour"]), right=True),
    Column("FLEET $/h", fleet_cost, right=True, rank=1),
    Column("REASON", "rejectedBecause", rank=2),
    Column("WHY", reason, prose=True),
)


def _shape_rows(deployment: Mapping[str, Any]) -> Iterator[Row]:
    """Yield a row per shape; the first has what holds for all of them."""
    of_all = {
        "name": deployment["name"],
        "model": deployment["model"],
        "cost": money(deployment["costPerHour"]),
        "unmet": f"{deployment['unmet']:.0%}" if deployment["unmet"] else "",
    }
    nothing = {"sku": "-", "profile": WHOLE_GPU, "tensorParallel": 1, "precision": "", "replicas": 0}
    for shape in deployment["chosen"] or [nothing]:
        yield {"unverified": (), "requestsPerSecond": None, **shape, **of_all}
        of_all = dict.fromkeys(of_all, "")


_SHAPE_COLUMNS = (
    Column("LLMDEPLOYMENT", "name"),
    Column("MODEL", "model", rank=3),
    Column("GPU OR SLICE", shape_name, mark=ANY),
    Column("PREC", "precision"),
    Column("REPL", "replicas", right=True),
    Column("REQ/S", "requestsPerSecond", ".3g", missing="", right=True, rank=1),
    Column("$/h", "cost", right=True),
    Column("UNMET", "unmet", right=True, rank=2),
)


_REQUEST_COLUMNS = (
    Column("SLICEREQUEST", "name"),
    Column("PROFILE", "profile"),
    Column("REQUESTED", "count", right=True),
    Column("PLACED", "placed", right=True),
)


def _site(site: Mapping[str, Any]) -> str:
    return site["gpu"] if site["profile"] == WHOLE_GPU else f"{site['gpu']} {site['profile']}@{site['start']}"


_MOVE_COLUMNS = (
    Column("MOVES", "owner"),
    Column("FROM", lambda move: _site(move["from"])),
    Column("TO", lambda move: _site(move["to"])),
    Column("$", lambda move: money(move["cost"]), right=True, rank=1),
)


_UNMET_COLUMNS = (
    Column("NOT SERVED", "name"),
    Column("PRIORITY", "priority", right=True, rank=2),
    Column("SHARE", "share", ".0%", right=True),
    Column("SLICES", lambda unmet: unmet.get("count", ""), right=True, rank=1),
    Column("WHY", "reason", prose=True),
)


def _notes(plan: Mapping[str, Any]) -> list[str]:
    reasons = {(u["name"], u["reason"]) for u in plan["unmet"]}
    texts = [
        f"{deployment['name']}: {text}"
        for deployment in plan["deployments"]
        for text in deployment["notes"]
        if (deployment["name"], text) not in reasons
    ]
    texts += plan["notes"]
    if plan["moves"]:
        texts.append("> marks a replica at the device to which it moves.")
    texts += unverified_notes(shape for deployment in plan["deployments"] for shape in deployment["chosen"])
    if any(gpu["inferred"] for gpu in plan["gpus"]):
        texts.append(
            "? The layout is inferred from the resources of the node: counts are exact, placements are not."
        )
    return texts
