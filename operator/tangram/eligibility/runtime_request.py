"""Whether an LLMDeployment may use the runtime that it names, with the options that it adds."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tangram.catalog.reading.field_path import FieldPath, dotted
from tangram.eligibility.reasons import Reason
from tangram.fleet import (
    BUNDLED,
    EngineKind,
    EngineRuntime,
    FleetSnapshot,
    Intent,
    InvalidEngineRuntime,
    ParsedIntent,
    Refusal,
)
from tangram.fleet.priority import REPLICAS_STAY
from tangram.runtimes.checks import request_problems

RuntimesByName = Mapping[str, EngineRuntime | InvalidEngineRuntime]
_BUNDLED_RUNTIME = EngineRuntime(BUNDLED, EngineKind.TANGRAM, version="", image="")
_NAME: FieldPath = ("spec", "runtime", "name")
_KEYS: FieldPath = ("spec", "engine", "apiKeySecretRef")


def runtimes_by_name(
    runtimes: Iterable[EngineRuntime | InvalidEngineRuntime] = (),
) -> dict[str, EngineRuntime | InvalidEngineRuntime]:
    """Return runtimes by name. The bundled engine is there without an object."""
    return {BUNDLED: _BUNDLED_RUNTIME} | {runtime.name: runtime for runtime in runtimes}


def runtimes_of(snapshot: FleetSnapshot) -> dict[str, EngineRuntime | InvalidEngineRuntime]:
    """Return the runtimes of a fleet by name."""
    return runtimes_by_name((*snapshot.runtimes, *snapshot.invalid_runtimes))


def with_runtime(intent: ParsedIntent, runtimes: RuntimesByName) -> ParsedIntent:
    """Return the intent with the refusal of its runtime, where it may not use what it asks for."""
    if not isinstance(intent, Intent) or intent.refusal is not None or not intent.runtime.name:
        return intent
    return replace(intent, refusal=_refusal(intent, runtimes))


def _refusal(intent: Intent, runtimes: RuntimesByName) -> Refusal | None:
    runtime = runtimes.get(intent.runtime.name)
    reason, text = _unusable(runtime, intent, runtimes)
    if reason is not None:
        return _refused(reason, _NAME, text)
    assert isinstance(runtime, EngineRuntime)  # noqa: S101 - else it is unusable
    if intent.api_keys is not None and runtime.kind is not EngineKind.TANGRAM:
        reads = f"EngineRuntime {runtime.name} reads no file of API keys"
        text = f"{reads}: leave it out, and check keys in a gateway"
        return _refused(Reason.RUNTIME_OPTION_REFUSED, _KEYS, text)
    problem = next(request_problems(intent.runtime, runtime), None)
    return _refused(Reason.RUNTIME_OPTION_REFUSED, problem.field, problem.text) if problem else None


def _unusable(
    runtime: EngineRuntime | InvalidEngineRuntime | None, intent: Intent, runtimes: RuntimesByName
) -> tuple[Reason | None, str]:
    name = intent.runtime.name
    if runtime is None:
        return Reason.RUNTIME_NOT_FOUND, f"EngineRuntime {name} does not exist; {_instead(intent, runtimes)}"
    if isinstance(runtime, InvalidEngineRuntime):
        why = f"EngineRuntime {name} is not accepted: {runtime.message}"
        return Reason.RUNTIME_NOT_READY, f"{why}; an administrator has to correct it"
    if not runtime.admits(intent.namespace):
        where = f"EngineRuntime {name} may not be used in the namespace {intent.namespace}"
        return Reason.RUNTIME_NOT_ALLOWED, f"{where}; {_instead(intent, runtimes)}"
    if not runtime.is_on:
        text = f"EngineRuntime {name} has no image, so it is off: an administrator has to set spec.image"
        return Reason.RUNTIME_NOT_READY, text
    return None, ""


def _instead(intent: Intent, runtimes: RuntimesByName) -> str:
    usable = sorted(
        runtime.name
        for runtime in runtimes.values()
        if isinstance(runtime, EngineRuntime) and runtime.is_on and runtime.admits(intent.namespace)
    )
    return f"name one of {', '.join(usable)}" if usable else "no runtime may be used there"


def _refused(reason: Reason, field: FieldPath, text: str) -> Refusal:
    return Refusal(reason, f"{dotted(field)}: {text}; {REPLICAS_STAY}", (field,))
