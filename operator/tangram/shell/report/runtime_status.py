"""Compute the status of each EngineRuntime: whether it is accepted, and may start replicas. Pure."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from tangram.api.common.accepted_spec import accepted_spec_block
from tangram.eligibility.acceptance import VALID
from tangram.fleet import EngineRuntime, FleetSnapshot, InvalidEngineRuntime
from tangram.kube.kinds import Object
from tangram.shell.report.pool_status import condition

_NO_VERSIONS: Mapping[str, str] = MappingProxyType({})


def runtime_statuses(
    objects: Iterable[Object],
    snapshot: FleetSnapshot,
    now: float,
    served_versions: Mapping[str, str] = _NO_VERSIONS,
) -> list[tuple[Object, Object]]:
    """Return each EngineRuntime with its new status. `served_versions`: what replicas say, by image."""
    known: tuple[EngineRuntime | InvalidEngineRuntime, ...] = (
        *snapshot.runtimes,
        *snapshot.invalid_runtimes,
    )
    runtimes = {runtime.name: runtime for runtime in known}
    return [
        (obj, _status(obj, runtime, served_versions, now))
        for obj in objects
        if (runtime := runtimes.get(obj["metadata"]["name"])) is not None
    ]


def _status(
    obj: Object,
    runtime: EngineRuntime | InvalidEngineRuntime,
    served_versions: Mapping[str, str],
    now: float,
) -> Object:
    before, generation = obj.get("status") or {}, obj["metadata"]["generation"]
    conditions = {"Accepted": _accepted(runtime), "Ready": _ready(runtime, served_versions)}
    status: Object = {
        "observedGeneration": generation,
        "conditions": [condition(obj, kind, *value, before, now) for kind, value in conditions.items()],
    }
    is_refused = isinstance(runtime, InvalidEngineRuntime) or bool(runtime.refused_edit)
    accepted = before.get("acceptedSpec") if is_refused else accepted_spec_block(obj, generation)
    return status if accepted is None else status | {"acceptedSpec": accepted}


def _accepted(runtime: EngineRuntime | InvalidEngineRuntime) -> tuple[str, str, str]:
    if isinstance(runtime, InvalidEngineRuntime):
        return "False", "InvalidSpec", runtime.message
    if runtime.refused_edit:
        return "False", "InvalidSpec", runtime.refused_edit
    return "True", "Valid", "; ".join((VALID, *runtime.warnings))


def _ready(
    runtime: EngineRuntime | InvalidEngineRuntime, served_versions: Mapping[str, str]
) -> tuple[str, str, str]:
    if isinstance(runtime, InvalidEngineRuntime):
        return "Unknown", "NotAccepted", "waits until condition Accepted is True"
    if not runtime.is_on:
        return "False", "NoImage", "spec.image is not set: no replica is started"
    served = served_versions.get(runtime.image, "")
    if served and served != runtime.version:
        text = f"its replicas say that they are of version {served}, and spec.version is {runtime.version}"
        return "True", "VersionMismatch", f"{text}: flags are checked for another version than runs"
    return "True", "Available", "replicas may be started"
