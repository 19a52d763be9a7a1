"""The last accepted spec of an object: it stays in force while the present one is not accepted.

The status keeps it across restarts of the operator.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import Field, StrictInt, StringConstraints, ValidationError

from tangram.api.common.base import APIModel
from tangram.fleet.priority import spec_in_force

MOST_CHARACTERS = 32_768


class AcceptedSpecStatus(APIModel):
    """The last spec that was accepted. It stays in force while the present one is not accepted."""

    generation: Annotated[StrictInt, Field(ge=1)] = Field(description="Generation at which it was written.")
    spec: Annotated[str, StringConstraints(min_length=2, max_length=MOST_CHARACTERS)] = Field(
        description="The spec as JSON."
    )


Recorded = TypeVar("Recorded", bound=AcceptedSpecStatus)


def accepted_spec_block(
    obj: Mapping[str, Any], generation: int, without: Collection[str] = ()
) -> dict[str, Any] | None:
    """Return the spec of `obj` as its status holds it, without some of its fields; None: it is too long."""
    spec = {key: value for key, value in obj["spec"].items() if key not in without}
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return {"generation": generation, "spec": text} if len(text) <= MOST_CHARACTERS else None


def recorded_spec(obj: Mapping[str, Any], model: type[Recorded]) -> tuple[Recorded, dict[str, Any]] | None:
    """Return what the status of `obj` records as `model`, and the spec; None: nothing that can be read."""
    status = obj.get("status")
    try:
        recorded = model.model_validate(status.get("acceptedSpec") if isinstance(status, Mapping) else None)
        spec = json.loads(recorded.spec)
    except (ValidationError, ValueError):
        return None
    return (recorded, spec) if isinstance(spec, dict) else None


class _Refused(Protocol):
    @property
    def message(self) -> str: ...


Valid = TypeVar("Valid")  # a dataclass with the field `refused_edit`
Invalid = TypeVar("Invalid", bound=_Refused)


def parsed_in_force(
    obj: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], Valid | Invalid], invalid: type[Invalid]
) -> Valid | Invalid:
    """Return `obj` parsed; in place of an invalid spec, the last accepted one, where the status has it."""
    present = parse(obj)
    if not isinstance(present, invalid):
        return present
    record = recorded_spec(obj, AcceptedSpecStatus)
    if record is None:
        return present
    recorded, spec = record
    last: Any = parse({**obj, "spec": spec})
    if isinstance(last, invalid):
        return present
    in_force: Valid = replace(last, refused_edit=f"{present.message}; {spec_in_force(recorded.generation)}")
    return in_force
