"""A plan as people read it: cost, devices of each demand, layouts, moves, steps, and what is not served."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from tangram.cli.output import Column, counted, note, notes, table
from tangram.cli.plan.gpu_table import show_strips
from tangram.cli.plan.headline import headline, money, one_shape
from tangram.cli.plan.step_table import show_steps
from tangram.fleet import WHOLE_GPU

MARK = "*"
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
    note(f"{deployment['name']}: all alternatives that were evaluated.")
    columns = (
        Column("ALTERNATIVE"),
        Column("PREC", rank=3),
        Column("REPL", right=True),
        Column("$/h", right=True),
        Column("FLEET $/h", right=True, rank=1),
        Column("REASON", rank=2),
        Column("WHY", prose=True),
    )
    rows = []
    for other in deployment["alternatives"]:
        shape = other["chosen"][0]
        helps = f"; serves with {other['servesWith']}" if "servesWith" in other else ""
        short = other.get("unmetChange", 0) > 0
        fleet = money(other["fleetCostPerHour"]) if "fleetCostPerHour" in other else ""
        rows.append(
            [
                shape_name(shape),
                shape["precision"],
                str(shape["replicas"]),
                money(other["costPerHour"]),
                f"{fleet}, serves less" if short else fleet,
                other["rejectedBecause"],
                other["message"] + helps,
            ]
        )
    table(columns, rows)


def _deployments(plan: Mapping[str, Any]) -> None:
    if not plan["deployments"]:
        return
    click.echo()
    columns = (
        Column("LLMDEPLOYMENT"),
        Column("MODEL", rank=3),
        Column("GPU OR SLICE"),
        Column("PREC"),
        Column("REPL", right=True),
        Column("REQ/S", right=True, rank=1),
        Column("$/h", right=True),
        Column("UNMET", right=True, rank=2),
    )
    table(columns, [row for deployment in plan["deployments"] for row in _rows(deployment)])


def _rows(deployment: Mapping[str, Any]) -> list[list[str]]:
    cost, unmet = (
        money(deployment["costPerHour"]),
        f"{deployment['unmet']:.0%}" if deployment["unmet"] else "",
    )
    if not deployment["chosen"]:
        return [[deployment["name"], deployment["model"], "-", "", "0", "", cost, unmet]]
    return [
        [
            deployment["name"] if first else "",
            deployment["model"] if first else "",
            shape_name(shape) + (MARK if shape.get("unverified") else ""),
            shape["precision"],
            str(shape["replicas"]),
            f"{shape['requestsPerSecond']:.3g}" if "requestsPerSecond" in shape else "",
            cost if first else "",
            unmet if first else "",
        ]
        for first, shape in ((i == 0, shape) for i, shape in enumerate(deployment["chosen"]))
    ]


def _requests(plan: Mapping[str, Any]) -> None:
    if not plan["requests"]:
        return
    click.echo()
    columns = (
        Column("SLICEREQUEST"),
        Column("PROFILE"),
        Column("REQUESTED", right=True),
        Column("PLACED", right=True),
    )
    rows = [[r["name"], r["profile"], str(r["count"]), str(r["placed"])] for r in plan["requests"]]
    table(columns, rows)


def _layouts(plan: Mapping[str, Any]) -> None:
    if plan["gpus"]:
        click.echo()
        show_strips(plan)


def _moves(plan: Mapping[str, Any]) -> None:
    moves: Sequence[Mapping[str, Any]] = plan["moves"]
    if not moves:
        return
    click.echo()
    columns = (Column("MOVES"), Column("FROM"), Column("TO"), Column("$", right=True, rank=1))
    rows = [[m["owner"], _site(m["from"]), _site(m["to"]), money(m["cost"])] for m in moves[:_MOST_MOVES]]
    table(columns, rows)
    if len(moves) > _MOST_MOVES:
        note(f"{counted(len(moves) - _MOST_MOVES, 'more move')}; -o json has all.")


def _site(site: Mapping[str, Any]) -> str:
    return site["gpu"] if site["profile"] == WHOLE_GPU else f"{site['gpu']} {site['profile']}@{site['start']}"


def _unmet(plan: Mapping[str, Any]) -> None:
    if not plan["unmet"]:
        return
    click.echo()
    rows = [
        [
            u["name"],
            str(u["priority"]),
            f"{u['share']:.0%}",
            str(u["count"]) if "count" in u else "",
            u["reason"],
        ]
        for u in plan["unmet"]
    ]
    columns = (
        Column("NOT SERVED"),
        Column("PRIORITY", right=True, rank=2),
        Column("SHARE", right=True),
        Column("SLICES", right=True, rank=1),
        Column("WHY", prose=True),
    )
    table(columns, rows)


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
    marks = {
        word
        for deployment in plan["deployments"]
        for s in deployment["chosen"]
        for word in s.get("unverified", ())
    }
    if marks:
        texts.append(f"{MARK} Not measured, or without a cited source: {', '.join(sorted(marks))}.")
    if any(gpu["inferred"] for gpu in plan["gpus"]):
        texts.append(
            "? The layout is inferred from the resources of the node: counts are exact, placements are not."
        )
    return texts
