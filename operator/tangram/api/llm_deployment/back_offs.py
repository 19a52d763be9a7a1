"""Shapes in back-off, in the status of an LLMDeployment, from which the next operator process continues."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    AwareDatetime,
    Field,
    JsonValue,
    StrictBool,
    StrictInt,
    StringConstraints,
    ValidationError,
)

from tangram.api.common.base import APIModel, optional
from tangram.fleet import BUNDLED, BackOff, Shape
from tangram.fleet.times import rfc3339

_Word = Annotated[str, StringConstraints(min_length=1, max_length=64)]
_Count = Annotated[StrictInt, Field(ge=0, le=2**31 - 1)]
_RFC3339: dict[str, JsonValue] = {"maxLength": 32}
MAX_MESSAGE = 160  # characters of a message of the cluster that a status keeps


class BackOffStatus(APIModel):
    """A shape in back-off: its pods could not be created or scheduled, or none of them became ready."""

    sku: _Word = Field(description="GPU model.")
    profile: _Word = Field(description="MIG profile, or gpu for a whole GPU.")
    tensor_parallel: Annotated[StrictInt, Field(ge=1, le=64)] = Field(description="GPUs of one stage.")
    pipeline_parallel: Annotated[StrictInt, Field(ge=1, le=64)] | None = optional(
        "Stages of one replica. Absent: one."
    )
    precision: _Word = Field(description="Precision of the weights.")
    runtime: _Word | None = optional("Name of the EngineRuntime. Absent: the bundled engine.")
    generation: Annotated[StrictInt, Field(ge=0)] = Field(
        description="Generation of the object that was tried. A later generation is tried at once."
    )
    reason: Annotated[str, StringConstraints(pattern=r"^[A-Za-z]([A-Za-z0-9]*)$", max_length=64)] = Field(
        description="Why, in one word: Unschedulable, QuotaExceeded, FailedCreate or ReplicasNotStarting."
    )
    message: Annotated[str, StringConstraints(max_length=MAX_MESSAGE)] = Field(
        description="Message of the API server, the scheduler or the kubelet, truncated."
    )
    replicas: _Count = Field(description="Replicas of this shape that run, and stay.")
    since: AwareDatetime = Field(description="When the back-off began.", json_schema_extra=_RFC3339)
    until: AwareDatetime = Field(description="When it is tried again.", json_schema_extra=_RFC3339)
    attempts: _Count = Field(description="Failed attempts in a row.")
    started_elsewhere: StrictBool | None = optional(
        "Whether replicas of another shape have become ready since. Absent: none have."
    )


def back_off_block(back_off: BackOff) -> dict[str, Any]:
    """Return a back-off as the status holds it."""
    block: dict[str, Any] = {
        "sku": back_off.shape.sku,
        "profile": back_off.shape.profile,
        "tensorParallel": back_off.shape.tensor_parallel,
        "precision": back_off.shape.precision,
        "generation": back_off.generation,
        "reason": back_off.reason,
        "message": back_off.message[:MAX_MESSAGE],
        "replicas": back_off.replicas,
        "since": rfc3339(back_off.since),
        "until": rfc3339(back_off.until),
        "attempts": back_off.attempts,
    }
    if back_off.shape.runtime != BUNDLED:
        block["runtime"] = back_off.shape.runtime
    if back_off.shape.pipeline_parallel > 1:
        block["pipelineParallel"] = back_off.shape.pipeline_parallel
    return block | {"startedElsewhere": True} if back_off.started_elsewhere else block


def back_offs_from_status(obj: Mapping[str, Any]) -> tuple[BackOff, ...]:
    """Return the back-offs recorded in the status of an LLMDeployment.

    A status is ours, but an older or newer version may have written it: what cannot be read is tried again.
    """
    recorded = (obj.get("status") or {}).get("backOffs")
    back_offs = []
    for block in recorded if isinstance(recorded, list) else ():
        try:
            entry = BackOffStatus.model_validate(block)
        except ValidationError:
            continue
        runtime, stages = entry.runtime or BUNDLED, entry.pipeline_parallel or 1
        shape = Shape(entry.sku, entry.profile, entry.tensor_parallel, entry.precision, runtime, stages)
        started = bool(entry.started_elsewhere)
        times = entry.since.timestamp(), entry.until.timestamp(), entry.attempts, started
        uid = str(obj["metadata"].get("uid", ""))
        back_offs.append(
            BackOff(uid, entry.generation, shape, entry.reason, entry.message, entry.replicas, *times)
        )
    return tuple(back_offs)
