"""The last accepted spec of an LLMDeployment.

`replicas` and `paused` are not part of it: those of the present spec count, so that an LLMDeployment with a
refused spec can be paused, and scaled from outside.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, StrictInt

from tangram.api.common.accepted_spec import AcceptedSpecStatus, accepted_spec_block, recorded_spec
from tangram.api.common.priority import NOT_FOUND, UNKNOWN, PriorityClasses
from tangram.api.llm_deployment.parse import parse
from tangram.fleet import Intent, Revision

_PRESENT = ("replicas", "paused")  # fields of the present spec that count


class AcceptedLLMDeploymentStatus(AcceptedSpecStatus):
    """The last spec that was accepted, without replicas and paused."""

    priority: Annotated[StrictInt, Field(ge=-(2**31), le=2**31 - 1)] = Field(
        description="Value of its PriorityClass. It still counts when the class is deleted."
    )


def accepted_block(obj: Mapping[str, Any], intent: Intent) -> dict[str, Any] | None:
    """Return the spec of `obj`, parsed as `intent`, as the status holds it; None: it is too long."""
    block = accepted_spec_block(obj, intent.rendered_generation, _PRESENT)
    return None if block is None else block | {"priority": intent.priority}


def last_accepted(
    obj: Mapping[str, Any], classes: PriorityClasses, pod_metadata_keys: Collection[str] | None
) -> Intent | None:
    """Return the intent of the last accepted spec with `replicas` and `paused` of the present one; None: no
    spec is recorded that can be read.
    """
    record, present = recorded_spec(obj, AcceptedLLMDeploymentStatus), obj.get("spec")
    if record is None or not isinstance(present, Mapping):
        return None
    recorded, spec = record
    spec |= {key: present[key] for key in _PRESENT if key in present}
    intent = parse({**obj, "spec": spec}, classes, pod_metadata_keys)
    if not isinstance(intent, Intent):
        return None
    if intent.refusal is not None and intent.refusal.reason in (NOT_FOUND, UNKNOWN):
        intent = replace(intent, refusal=None, priority=recorded.priority)
    spec_hash = intent.revision.hash if intent.revision is not None else ""
    return replace(intent, revision=Revision(recorded.generation, spec_hash))
