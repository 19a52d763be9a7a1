"""How far the pods of a Deployment are with fetching their checkpoint. Pure."""

import json
import math
from collections.abc import Sequence

from tangram.api import parse_pin, parse_report
from tangram.fleet import FetchState, InspectionFailure
from tangram.fleet.times import epoch_or
from tangram.kube.kinds import Object
from tangram.shell.objects.fetch_container import NAME, SIZE_OPTION


def fetch_state(
    deployment: Object, pods: list[Object], now: float, fill_pods: Sequence[Object] = ()
) -> FetchState | None:
    """Return how far the fetches of the pods are; None: they fetch nothing.

    `fill_pods`: of the Job that fetches for all of them, into the claim that they mount.
    """
    size = _size(deployment)
    if size is None:
        return None
    reports = [_report(container) for container in _fetches(pods)]
    fetching = _fetches(fill_pods) or _fetches(pods)
    rates = [rate for rate in map(_rate, map(_report, fetching)) if rate is not None]
    begun = [epoch_or((c.get("running") or {}).get("startedAt"), now) for c in fetching if c.get("running")]
    faults = [fault for c in fetching if (fault := fetch_fault(c, now)) is not None]
    return FetchState(
        size=size,
        pods=len(pods),
        fetched=len([report for report in reports if parse_pin(report) is not None]),
        bytes_per_second=min(rates, default=None),
        since=min(begun, default=None),
        reason=faults[0].reason if faults else "",
        message=faults[0].message if faults else "",
    )


def _fetches(pods: Sequence[Object]) -> list[Object]:
    return [container for pod in pods for container in pod["containers"] if container["name"] == NAME]


def _report(container: Object) -> str:
    return str((container["terminated"] or {}).get("message", ""))


def _size(deployment: Object) -> int | None:
    """Return the bytes that the pods of a template fetch."""
    pod = (deployment["spec"].get("template") or {}).get("spec") or {}
    for container in pod.get("initContainers") or ():
        args = container.get("args") or []
        if container.get("name") == NAME and SIZE_OPTION in args[:-1]:
            text = args[args.index(SIZE_OPTION) + 1]
            return int(text) if text.isdigit() and len(text) < 20 else None
    return None


def _rate(report: str) -> float | None:
    """Return the bytes per second of a fetch that was made."""
    try:
        source = json.loads(report)["source"]
        rate = float(source["size"]) / float(source["seconds"])
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
        return None
    return rate if math.isfinite(rate) and rate > 0 else None


def fetch_fault(container: Object, now: float) -> InspectionFailure | None:
    """Return why the last fetch of a container failed, unless a later one succeeded."""
    end = container["terminated"] or {}
    report = end.get("message", "") if end else container.get("lastMessage", "")
    if not report or parse_pin(report) is not None:
        return None
    result = parse_report(report, now)
    return result if isinstance(result, InspectionFailure) else None
