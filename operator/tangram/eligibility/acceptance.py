"""Which LLMDeployments are accepted, and the order in which they are given devices."""

from collections.abc import Iterable
from typing import NamedTuple

from tangram.eligibility.host_resources import over_limit
from tangram.eligibility.reasons import Reason
from tangram.fleet import InvalidIntent, ParsedIntent, PodNeeds

_WHOLE_GPU_SHARE = 1.0  # the engine runs on one GPU or slice


class Acceptance(NamedTuple):
    """The condition `Accepted` of one LLMDeployment."""

    accepted: bool
    reason: Reason
    message: str


def by_age(intents: Iterable[ParsedIntent]) -> tuple[ParsedIntent, ...]:
    """Return the intents oldest first, whatever order they were read in."""
    return tuple(sorted(intents, key=lambda intent: (intent.created_at, intent.uid)))


def by_priority(intents: Iterable[ParsedIntent]) -> tuple[ParsedIntent, ...]:
    """Return the intents in the order in which they are given devices: highest priority first, then oldest.

    An invalid spec has no priority, and is given nothing new.
    """
    return tuple(sorted(by_age(intents), key=lambda intent: -getattr(intent, "priority", 0)))


def acceptance(intents: tuple[ParsedIntent, ...], needs: PodNeeds) -> dict[str, Acceptance]:
    """Return the acceptance by uid, for intents oldest first. `needs`: of the operator's settings."""
    oldest: dict[tuple[str, str], str] = {}  # (namespace, served name) -> LLMDeployment
    return {intent.uid: _accept(intent, needs, oldest) for intent in intents}


def _accept(intent: ParsedIntent, needs: PodNeeds, oldest: dict[tuple[str, str], str]) -> Acceptance:
    if isinstance(intent, InvalidIntent):
        return Acceptance(False, Reason.INVALID_SPEC, intent.message)
    # The name of a refused LLMDeployment stays taken: its replicas go on serving.
    owner = oldest.setdefault((intent.namespace, intent.served_name), intent.name)
    if intent.refusal is not None:
        return Acceptance(False, Reason(intent.refusal.reason), intent.refusal.message)
    excess = over_limit(intent.resources, needs, _WHOLE_GPU_SHARE, "a whole GPU")
    if excess:
        remedy = "request less, or let an administrator raise the setting; running replicas stay unchanged"
        return Acceptance(False, Reason.ABOVE_LIMIT, f"{excess}; {remedy}")
    if owner != intent.name:
        collision = f"the older LLMDeployment {owner} of this namespace already serves {intent.served_name!r}"
        remedy = "set another spec.model.servedName, or delete one of the two"
        return Acceptance(False, Reason.MODEL_NAME_COLLISION, f"{collision}; {remedy}")
    return Acceptance(True, Reason.VALID, "the spec is valid")
