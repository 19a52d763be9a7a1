"""Which LLMDeployments are accepted, and the order in which they are given devices."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from tangram.capacity.sizing.candidate_shapes import TENSOR_PARALLEL
from tangram.catalog.reading.field_path import FieldPath
from tangram.eligibility.host_resources import exceeded_limits, over_limit
from tangram.eligibility.reasons import Reason
from tangram.fleet import BUNDLED, Intent, InvalidIntent, MIGPolicy, ParsedIntent, PodNeeds, Refusal
from tangram.fleet.priority import REPLICAS_STAY, spec_in_force

VALID = "the spec is valid"  # the message of what is accepted
_REQUESTS = ("spec", "engine", "resources", "requests")
_SERVED_NAME = ("spec", "model", "servedName")


class Acceptance(NamedTuple):
    """The condition `Accepted` of one LLMDeployment."""

    accepted: (
        bool  # it is planned: by its present spec, or by the last accepted one if another reason is given
    )
    reason: Reason
    message: str
    fields: tuple[FieldPath, ...] = ()  # of the spec that the message is about, where it is not accepted


def by_age(intents: Iterable[ParsedIntent]) -> tuple[ParsedIntent, ...]:
    """Return the intents oldest first, whatever order they were read in."""
    return tuple(sorted(intents, key=lambda intent: (intent.created_at, intent.uid)))


def by_priority(intents: Iterable[ParsedIntent]) -> tuple[ParsedIntent, ...]:
    """Return the intents in the order in which they are given devices: highest priority first, then oldest.

    An invalid spec has no priority, and is given nothing new.
    """
    return tuple(sorted(by_age(intents), key=lambda intent: -getattr(intent, "priority", 0)))


def acceptance(intents: tuple[ParsedIntent, ...], needs: PodNeeds) -> dict[str, Acceptance]:
    """Return the acceptance by uid, for intents oldest first. `needs`: of the operator's settings.

    A served name belongs to the LLMDeployment that was accepted with it, else to the oldest that asks for it.
    """
    owners: dict[tuple[str, str], str] = {}  # (namespace, served name) -> LLMDeployment
    valid = [intent for intent in intents if isinstance(intent, Intent)]
    # The name of a refused LLMDeployment stays taken: its replicas go on serving.
    for intent in sorted(valid, key=lambda intent: not intent.keeps_name):  # stable: then by age
        owners.setdefault((intent.namespace, intent.served_name), intent.name)
    return {intent.uid: _accept(intent, needs, owners) for intent in intents}


def specs_in_force(
    intents: tuple[ParsedIntent, ...],
    last_accepted: Mapping[str, Intent],
    needs: PodNeeds,
    is_inspected: Callable[[Intent], bool] = lambda _intent: True,
) -> tuple[ParsedIntent, ...]:
    """Return the intents; in place of one that is not accepted, or whose checkpoint is not known, its last
    accepted one, if that is known and would be accepted now.

    `last_accepted`: by uid. `is_inspected`: whether the checkpoint of an intent is known.
    """

    def with_kept_name(intent: ParsedIntent) -> ParsedIntent:
        last = last_accepted.get(intent.uid)
        if last is None or isinstance(intent, InvalidIntent):
            return intent
        return replace(intent, keeps_name=last.served_name == intent.served_name)

    def serving_meanwhile(intent: ParsedIntent) -> ParsedIntent:
        last = last_accepted.get(intent.uid)
        if (
            last is None
            or isinstance(intent, InvalidIntent)
            or is_inspected(intent)
            or not is_inspected(last)
        ):
            return intent
        return replace(
            last, next_model_uri=intent.model_uri, next_model_secret=intent.model_secret, keeps_name=True
        )

    def in_force(intent: ParsedIntent, why_not: Acceptance) -> ParsedIntent:
        message = why_not.message.replace(f"; {REPLICAS_STAY}", "")
        why = Refusal(why_not.reason, message, why_not.fields)
        last = last_accepted.get(intent.uid)
        return intent if last is None else replace(last, refused_edit=why, keeps_name=True)

    requested = tuple(map(with_kept_name, intents))
    valid = tuple(
        in_force(intent, _invalid(intent)) if isinstance(intent, InvalidIntent) else intent
        for intent in requested
    )
    verdicts = acceptance(by_age(valid), needs)
    chosen = tuple(
        serving_meanwhile(intent) if verdicts[intent.uid].accepted else in_force(intent, verdicts[intent.uid])
        for intent in valid
    )
    possible = acceptance(by_age(chosen), needs)
    pairs = zip(chosen, requested, strict=True)
    return tuple(intent if possible[intent.uid].accepted else present for intent, present in pairs)


def _invalid(intent: InvalidIntent) -> Acceptance:
    return Acceptance(False, Reason.INVALID_SPEC, intent.message, intent.fields)


def _accept(intent: ParsedIntent, needs: PodNeeds, owners: Mapping[tuple[str, str], str]) -> Acceptance:
    if isinstance(intent, InvalidIntent):
        return _invalid(intent)
    owner = owners[intent.namespace, intent.served_name]
    if intent.refusal is not None:
        reason, message = Reason(intent.refusal.reason), intent.refusal.message
        return Acceptance(False, reason, message, intent.refusal.fields)
    gpus = _most_gpus(intent)
    exceeded = exceeded_limits(intent.resources, needs, gpus)
    if exceeded:
        where = "a whole GPU" if gpus == 1 else f"{gpus} whole GPUs"
        excess = over_limit(intent.resources, needs, gpus, where)
        remedy = "request less, or let an administrator raise the setting"
        fields = tuple((*_REQUESTS, limit.field) for limit in exceeded)
        return Acceptance(False, Reason.ABOVE_LIMIT, f"{excess}; {remedy}; {REPLICAS_STAY}", fields)
    if owner != intent.name:
        collision = f"LLMDeployment {owner} of this namespace already serves {intent.served_name!r}"
        remedy = "set another spec.model.servedName, or delete one of the two"
        return Acceptance(False, Reason.MODEL_NAME_COLLISION, f"{collision}; {remedy}", (_SERVED_NAME,))
    return _of_spec_in_force(intent)


def _most_gpus(intent: Intent) -> int:
    """Return the most GPUs that one replica may have, as far as the spec alone shows it: several where it
    allows them, or names a runtime that may have them.
    """
    if intent.runtime.name == BUNDLED or intent.mig is MIGPolicy.REQUIRED:
        return 1
    return max(intent.tensor_parallel or (TENSOR_PARALLEL if intent.runtime.name else (1,)))


def _of_spec_in_force(intent: Intent) -> Acceptance:
    in_force = spec_in_force(intent.rendered_generation)
    if intent.refused_edit is not None:
        return Acceptance(
            True, Reason(intent.refused_edit.reason), f"{intent.refused_edit.message}; {in_force}"
        )
    if intent.next_model_uri is not None:
        until = f"until the checkpoint {intent.next_model_uri} is known"
        return Acceptance(True, Reason.VALID, f"{VALID}; {until}, {in_force}")
    return Acceptance(True, Reason.VALID, VALID)
