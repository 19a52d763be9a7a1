"""Shapes in back-off, in the status of an LLMDeployment: what the next operator process goes on from."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AwareDatetime, Field, JsonValue, StrictInt, StringConstraints, ValidationError

from tangram.api.common.base import APIModel
from tangram.fleet import BackOff, Shape
from tangram.fleet.times import rfc3339

_Word = Annotated[str, StringConstraints(min_length=1, max_length=64)]
_Count = Annotated[StrictInt, Field(ge=0, le=2**31 - 1)]
_RFC3339: dict[str, JsonValue] = {"maxLength": 32}
MAX_MESSAGE = 160


class BackOffStatus(APIModel):
    """A shape in back-off: its pods could not be created or scheduled."""

    sku: _Word = Field(description="GPU model.")
    profile: _Word = Field(description="MIG profile, or gpu for a whole GPU.")
    tensor_parallel: Annotated[StrictInt, Field(ge=1, le=64)] = Field(description="GPUs of one replica.")
    precision: _Word = Field(description="Precision of the weights.")
    generation: Annotated[StrictInt, Field(ge=0)] = Field(
        description="Generation of the object that was tried. A later generation is tried at once."
    )
    reason: Annotated[str, StringConstraints(pattern=r"^[A-Za-z]([A-Za-z0-9]*)$", max_length=64)] = Field(
        description="Why, in one word: Unschedulable, QuotaExceeded or FailedCreate."
    )
    message: Annotated[str, StringConstraints(max_length=MAX_MESSAGE)] = Field(
        description="Message of the API server or the scheduler, truncated."
    )
    replicas: _Count = Field(description="Replicas of this shape that run, and stay.")
    since: AwareDatetime = Field(description="When the back-off began.", json_schema_extra=_RFC3339)
    until: AwareDatetime = Field(description="When one replica is tried again.", json_schema_extra=_RFC3339)
    attempts: _Count = Field(description="Failed attempts in a row.")


def back_off_block(one: BackOff) -> dict[str, Any]:
    """Return a back-off as the status holds it."""
    return {
        "sku": one.shape.sku,
        "profile": one.shape.profile,
        "tensorParallel": one.shape.tensor_parallel,
        "precision": one.shape.precision,
        "generation": one.generation,
        "reason": one.reason,
        "message": one.message[:MAX_MESSAGE],
        "replicas": one.replicas,
        "since": rfc3339(one.since),
        "until": rfc3339(one.until),
        "attempts": one.attempts,
    }


def back_offs_from_status(obj: Mapping[str, Any]) -> tuple[BackOff, ...]:
    """Return the back-offs recorded in the status of an LLMDeployment.

    A status is ours, but an older or newer version may have written it: what cannot be read is tried again.
    """
    recorded = (obj.get("status") or {}).get("backOffs")
    found = []
    for block in recorded if isinstance(recorded, list) else ():
        try:
            one = BackOffStatus.model_validate(block)
        except ValidationError:
            continue
        shape = Shape(one.sku, one.profile, one.tensor_parallel, one.precision)
        times = one.since.timestamp(), one.until.timestamp(), one.attempts
        uid = str(obj["metadata"].get("uid", ""))
        found.append(BackOff(uid, one.generation, shape, one.reason, one.message, one.replicas, *times))
    return tuple(found)
