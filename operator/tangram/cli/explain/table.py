"""An explanation as people read it: lines of facts and reasons, then a table of the alternatives."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from tangram.catalog.reading.fields import shortened
from tangram.cli.output import Column, Row, counted, note, section, unverified_mark
from tangram.cli.plan.headline import money
from tangram.cli.plan.table import chosen_shape, fleet_cost, reason, shape_name, unverified_notes

_LABEL = 10
_CENT = 0.005
_MOST_NODES = 4
_LIMITS = {"NotEnoughGPUs", "MaxReplicas", "Budget"}


def show(explanation: Mapping[str, Any]) -> None:
    """Print an explanation."""
    click.secho(_title(explanation), bold=True)
    for label, text in _lines(explanation):
        note(f"{label:<{_LABEL}}{text}", indent=" " * _LABEL)
    section(_COLUMNS, explanation.get("alternatives", ()))
    for text in _notes(explanation):
        click.echo()
        note(text, indent="  ")


def _title(explanation: Mapping[str, Any]) -> str:
    model = explanation.get("modelURI", explanation.get("model", ""))
    return f"{explanation['namespace']}/{explanation['name']}" + (f": {model}" if model else "")


def _lines(explanation: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "asks" in explanation:
        yield "asks", _asks(explanation["asks"])
    yield "runs on", _runs_on(explanation["runsOn"])
    if "operator" in explanation:
        yield "operator", _operator(explanation["operator"])
        if "runtimeReason" in explanation["operator"]:
            yield "runtime", explanation["operator"]["runtimeReason"].removeprefix("runtime ")
    if "scalingActive" in explanation:
        yield "scaling", explanation["scalingActive"]
    if "load" in explanation:
        yield "load", _load(explanation["load"])
    for place, decision in enumerate(explanation.get("scaling", ())):
        yield "" if place else "scaled", _scaling_decision(decision)
    if "plan" not in explanation:
        return
    plan = explanation["plan"]
    yield "plan", _plan(plan)
    why = _why(plan, explanation["alternatives"])
    if why:
        yield "why", why
    if plan["unmet"]:
        yield "unmet", _short(plan, explanation["because"])
        for i, change in enumerate(explanation["relaxations"]):
            yield (
                "" if i else "helps",
                f"{change['text']}: the fleet then costs {money(change['fleetCostPerHour'])} $/h",
            )


def _load(load: Mapping[str, Any]) -> str:
    rate, tokens = load["requestsPerSecond"], f"{load['inputTokens']} + {load['outputTokens']} tokens"
    return f"{rate:g} requests/s of {tokens}, with the margin of the forecast: replicas are ordered for it"


def _asks(requirements: Mapping[str, Any]) -> str:
    rate = requirements.get("requestsPerSecond")
    tokens = f"{requirements['inputTokens']} + {requirements['outputTokens']} tokens"
    parts = [f"{rate:g} requests/s of {tokens}" if rate else f"requests of {tokens}, rate not set"]
    limits = [
        f"{name} {requirements[key]:g} ms"
        for name, key in (("TTFT", "ttftMilliseconds"), ("TPOT", "tpotMilliseconds"))
        if key in requirements
    ]
    if limits:
        parts.append(f"P{requirements['percentile']} of {' and '.join(limits)}")
    parts.append(_replicas(requirements["replicas"]))
    if "budgetPerHour" in requirements:
        parts.append(f"at most {money(requirements['budgetPerHour'])} $/h")
    if "pools" in requirements:
        parts.append(f"in {' or '.join(requirements['pools'])}")
    if "allowedSKUs" in requirements:
        parts.append(f"on {' or '.join(requirements['allowedSKUs'])}")
    if "deniedSKUs" in requirements:
        parts.append(f"not on {' or '.join(requirements['deniedSKUs'])}")
    if requirements["mig"] != "Allowed":
        parts.append(f"slices {requirements['mig'].lower()}")
    parts += [
        f"at most {share:.0%} on one {place}" for place, share in requirements.get("spread", {}).items()
    ]
    if requirements["priority"]:
        parts.append(f"priority {requirements['priority']}")
    return "; ".join(parts)


def _replicas(bounds: Mapping[str, Any]) -> str:
    least, most = bounds["min"], bounds["max"]
    if most is None:
        return f"{least} or more replicas"
    if least == most:
        return counted(least, "replica")
    return f"{least} to {most} replicas"


def _runs_on(parts: Sequence[Mapping[str, Any]]) -> str:
    if not parts:
        return "nothing yet"
    return ", ".join(f"{part['replicas']} x {shape_name(part)} on {part['node']}" for part in parts)


def _operator(decision: Mapping[str, Any]) -> str:
    placed, accepted = decision["placed"], decision["accepted"]
    if placed["reason"] == "NotAccepted":
        return f"{accepted['reason']}: {accepted['message']}"
    refused = "" if accepted["reason"] == "Valid" else f"{accepted['reason']}: {accepted['message']}. "
    return refused + _placed(decision)


def _placed(decision: Mapping[str, Any]) -> str:
    placed = decision["placed"]
    if placed["reason"] == "WaitingForModel":
        return f"{decision['modelReady']['reason']}: {decision['modelReady']['message']}"
    return f"{placed['reason']}: {placed['message']}"


def _scaling_decision(decision: Mapping[str, Any]) -> str:
    change = f"{decision['from']} -> {decision['to']}"
    message = decision["message"].removesuffix(f": {change}")
    return f"{decision['time']} {change} ({decision['reason']}): {message}{_spare_cost(decision)}"


def _spare_cost(decision: Mapping[str, Any]) -> str:
    need = decision.get("need", {})
    if not need.get("spareReplicas") or "spareCostPerHour" not in need:
        return ""
    spare = counted(need["spareReplicas"], "spare replica")
    return f"; {money(float(need['spareCostPerHour']))} $/h for {spare}"


def _plan(plan: Mapping[str, Any]) -> str:
    if not plan["chosen"]:
        return "no replica"
    parts = " and ".join(_chosen(shape) for shape in plan["chosen"])
    rate = sum(shape.get("requestsPerSecond", 0.0) for shape in plan["chosen"])
    carries = f", {rate:.3g} requests/s" if rate else ""
    moves = f", {len(plan['moves'])} of them moved" if plan["moves"] else ""
    return f"{parts}{carries} for {money(plan['costPerHour'])} $/h{_at(plan['nodes'])}{moves}"


def _chosen(shape: Mapping[str, Any]) -> str:
    name = shape_name(shape) + unverified_mark(shape.get("unverified"))
    return f"{shape['replicas']} x {name} ({shape['precision']})"


def _at(nodes: Sequence[str]) -> str:
    return f" on {shortened(nodes, _MOST_NODES)}" if nodes else ""


def _why(plan: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    fleet = plan["fleet"]
    claims = [f"for the whole fleet: {_proof(fleet)}"]
    claims += [text for other in others if (text := _cheaper(other, plan))][:2]
    dearer = [other for other in others if other["rejectedBecause"] == "Dearer"]
    if dearer:
        nearest = min(dearer, key=lambda other: other["costPerHour"])
        more = nearest["costPerHour"] - plan["costPerHour"]
        claims.append(
            f"the next by price, {_names(nearest)}, costs {money(more)} $/h more by its share of GPUs"
        )
    text = "; ".join(claims)
    return text[0].upper() + text[1:] + "."


def _proof(fleet: Mapping[str, Any]) -> str:
    proof: str = fleet["proof"][0].lower() + fleet["proof"][1:]
    return f"{proof} ({fleet['distance']})" if fleet["status"] == "FEASIBLE" else proof


def _cheaper(other: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """Say why an alternative that costs less by itself was not chosen; empty for any other."""
    if not other["costPerHour"] or other["costPerHour"] >= plan["costPerHour"] + _CENT:
        return ""
    less = f"{_names(other)} would cost {money(other['costPerHour'])} $/h by its share of GPUs, but"
    if other["rejectedBecause"] in _LIMITS:
        return f"{less} {other['message']}"
    if other["rejectedBecause"] != "Fleet" or "fleetCostPerHour" not in other:
        return ""
    if other["unmetChange"] > 0:
        return f"{less} less demand of others would be served"
    fleet, instead = plan["fleet"]["costPerHour"], other["fleetCostPerHour"]
    return f"{less} the fleet {money(instead)} and not {money(fleet)}" if instead > fleet + _CENT else ""


def _names(other: Mapping[str, Any]) -> str:
    return " and ".join(f"{shape['replicas']} x {shape_name(shape)}" for shape in other["chosen"])


def _short(plan: Mapping[str, Any], because: Sequence[str]) -> str:
    why = " and ".join(because) or plan["unmetReason"]
    return f"{plan['unmet']:.0%} is not served{' because of' if because else ':'} {why}"


def _shape_and_precision(other: Row) -> str:
    shape = chosen_shape(other)
    return f"{shape_name(shape)} {shape['precision']}"


_COLUMNS = (
    Column("ALTERNATIVE", _shape_and_precision),
    Column("REPL", lambda other: chosen_shape(other)["replicas"], right=True),
    Column("$/h", lambda other: money(other["costPerHour"]), right=True),
    Column("FLEET $/h", fleet_cost, right=True),
    Column("WHY NOT", reason, prose=True),
)


def _notes(explanation: Mapping[str, Any]) -> list[str]:
    chosen = explanation["plan"]["chosen"] if "plan" in explanation else ()
    notes = [*explanation["notes"], *unverified_notes(chosen)]
    if "plan" in explanation:
        fleet = explanation["plan"]["fleet"]
        notes += [fleet["oneShapePerDeployment"]] if "oneShapePerDeployment" in fleet else []
        notes.append(
            f"The whole fleet: {money(fleet['costPerHour'])} $/h for {fleet['gpusInUse']} GPUs in use."
            " FLEET $/h: its cost with this alternative instead."
        )
    return notes
