"""Values of the options of `tangram simulate` that are more than a number."""

import math
from collections.abc import Collection, Sequence

from tangram.catalog import InputError
from tangram.simulator.cluster.faults import NodeFailure

_MOST_NAMED = 5  # nodes in a message
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def finite_number(text: str) -> float | None:
    """Return the number of a text; None: it is none, or not finite."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def seconds(text: str | None, option: str) -> float | None:
    """Return a time: seconds, or a number with the unit s, m, h or d. Raises `InputError`."""
    if text is None:
        return None
    unit = _UNITS.get(text[-1:])
    value = finite_number(text if unit is None else text[:-1])
    if value is None or value < 0:
        raise InputError(option, f"{text!r} is no time: 90, 90s, 15m, 2h or 1d")
    return value * (unit or 1.0)


def node_failures(values: Sequence[str], nodes: Collection[str]) -> tuple[NodeFailure, ...]:
    """Return the failures of `--node-failure NODE=TIME[-TIME]`. Raises `InputError`."""
    return tuple(_node_failure(value, nodes) for value in values)


def _node_failure(value: str, nodes: Collection[str]) -> NodeFailure:
    option = "--node-failure"
    node, _, times = value.partition("=")
    if node not in nodes:
        known = ", ".join(sorted(nodes)[:_MOST_NAMED]) + (", ..." if len(nodes) > _MOST_NAMED else "")
        raise InputError(option, f"{node!r} is none of the nodes {known}")
    lost, dash, back = times.partition("-")
    at_s, back_s = seconds(lost, option), seconds(back if dash else None, option)
    if at_s is None or (back_s is not None and back_s <= at_s):
        raise InputError(option, f"{value!r} must end after it begins")
    return NodeFailure(node, at_s, back_s)


def traces_by_name(values: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return the trace of each LLMDeployment: of `--trace NAME=TRACE`, or the only one of the only one."""
    chosen: dict[str, str] = {}
    for value in values:
        before, equals, after = value.partition("=")
        name, trace = (before, after) if equals and before in names else ("", value)
        if not name:
            if len(names) != 1:
                there_are = ", ".join(names) or "none"
                raise InputError(
                    "--trace", f"{value!r} names none of the LLMDeployments ({there_are}): NAME=TRACE"
                )
            name = names[0]
        if name in chosen:
            raise InputError("--trace", f"{name} has two traces")
        if not trace:
            raise InputError("--trace", f"{value!r} names no trace")
        chosen[name] = trace
    return chosen
