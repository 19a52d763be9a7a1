"""A plan as people read it: cost, devices of each demand, layouts, moves, steps, and what is not served."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from tangram.cli.output import Column, Row, counted, note, notes, table, unverified_mark, unverified_note
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
    for section in (_deployments, _requests, _layouts, _moves, show_steps, _unmet):
        section(plan)
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
    return name if shape["tensorParallel"] == 1 else f"{name} TP{shape['tensorParallel']}"


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
        table([_alternative_row(other) for other in deployment["alternatives"]])


def _alternative_row(other: Mapping[str, Any]) -> Row:
    shape = other["chosen"][0]
    fleet, why = fleet_cost_and_reason(other)
    return [
        (Column("ALTERNATIVE"), shape_name(shape)),
        (Column("PREC", rank=3), shape["precision"]),
        (Column("REPL", right=True), str(shape["replicas"])),
        (Column("$/h", right=True), money(other["costPerHour"])),
        (Column("FLEET $/h", right=True, rank=1), fleet),
        (Column("REASON", rank=2), other["rejectedBecause"]),
        (Column("WHY", prose=True), why),
    ]


def fleet_cost_and_reason(other: Mapping[str, Any]) -> tuple[str, str]:
    """Return the cost of the fleet with an alternative, if that was planned, and why it was not chosen."""
    fleet = money(other["fleetCostPerHour"]) if "fleetCostPerHour" in other else ""
    less = ", serves less" if other.get("unmetChange", 0) > 0 else ""
    helps = f"; serves with {other['servesWith']}" if "servesWith" in other else ""
    return fleet + less, other["message"] + helps


def _deployments(plan: Mapping[str, Any]) -> None:
    if plan["deployments"]:
        click.echo()
        table([row for deployment in plan["deployments"] for row in _rows(deployment)])


def _rows(deployment: Mapping[str, Any]) -> Iterator[Row]:
    """Yield a row per shape; the first has what holds for all of them."""
    nothing = {"sku": "-", "profile": WHOLE_GPU, "tensorParallel": 1, "precision": "", "replicas": 0}
    for i, shape in enumerate(deployment["chosen"] or [nothing]):
        rate = f"{shape['requestsPerSecond']:.3g}" if "requestsPerSecond" in shape else ""
        unmet = f"{deployment['unmet']:.0%}" if deployment["unmet"] else ""
        yield [
            (Column("LLMDEPLOYMENT"), "" if i else deployment["name"]),
            (Column("MODEL", rank=3), "" if i else deployment["model"]),
            (Column("GPU OR SLICE"), shape_name(shape) + unverified_mark(shape.get("unverified"))),
            (Column("PREC"), shape["precision"]),
            (Column("REPL", right=True), str(shape["replicas"])),
            (Column("REQ/S", right=True, rank=1), rate),
            (Column("$/h", right=True), "" if i else money(deployment["costPerHour"])),
            (Column("UNMET", right=True, rank=2), "" if i else unmet),
        ]


def _requests(plan: Mapping[str, Any]) -> None:
    if plan["requests"]:
        click.echo()
        table([_request_row(request) for request in plan["requests"]])


def _request_row(request: Mapping[str, Any]) -> Row:
    return [
        (Column("SLICEREQUEST"), request["name"]),
        (Column("PROFILE"), request["profile"]),
        (Column("REQUESTED", right=True), str(request["count"])),
        (Column("PLACED", right=True), str(request["placed"])),
    ]


def _layouts(plan: Mapping[str, Any]) -> None:
    if plan["gpus"]:
        click.echo()
        show_strips(plan)


def _moves(plan: Mapping[str, Any]) -> None:
    moves: Sequence[Mapping[str, Any]] = plan["moves"]
    if moves:
        click.echo()
        table([_move_row(move) for move in moves[:_MOST_MOVES]])
    if len(moves) > _MOST_MOVES:
        note(f"{counted(len(moves) - _MOST_MOVES, 'more move')}; -o json has all.")


def _move_row(move: Mapping[str, Any]) -> Row:
    return [
        (Column("MOVES"), move["owner"]),
        (Column("FROM"), _site(move["from"])),
        (Column("TO"), _site(move["to"])),
        (Column("$", right=True, rank=1), money(move["cost"])),
    ]


def _site(site: Mapping[str, Any]) -> str:
    return site["gpu"] if site["profile"] == WHOLE_GPU else f"{site['gpu']} {site['profile']}@{site['start']}"


def _unmet(plan: Mapping[str, Any]) -> None:
    if plan["unmet"]:
        click.echo()
        table([_unmet_row(unmet) for unmet in plan["unmet"]])


def _unmet_row(unmet: Mapping[str, Any]) -> Row:
    return [
        (Column("NOT SERVED"), unmet["name"]),
        (Column("PRIORITY", right=True, rank=2), str(unmet["priority"])),
        (Column("SHARE", right=True), f"{unmet['share']:.0%}"),
        (Column("SLICES", right=True, rank=1), str(unmet.get("count", ""))),
        (Column("WHY", prose=True), unmet["reason"]),
    ]


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
