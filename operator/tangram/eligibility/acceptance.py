"""Who comes first, and who is accepted."""

from collections.abc import Iterable

from tangram.eligibility.host_resources import over_limit
from tangram.eligibility.reasons import Reason
from tangram.fleet import InvalidIntent, ParsedIntent, PodNeeds

_WHOLE = 1.0  # of a GPU; the engine runs on one GPU or slice
_STAYS = "what runs is left as it is"


def by_age(intents: Iterable[ParsedIntent]) -> tuple[ParsedIntent, ...]:
    """Return the intents oldest first, whatever order they were read in."""
    return tuple(sorted(intents, key=lambda intent: (intent.created_at, intent.uid)))


def by_turn(intents: Iterable[ParsedIntent]) -> tuple[ParsedIntent, ...]:
    """Return the intents in the order in which they are given room: the highest priority first, then age.

    What cannot be understood says no priority, and is given nothing new.
    """
    return tuple(sorted(by_age(intents), key=lambda intent: -getattr(intent, "priority", 0)))


def acceptance(intents: tuple[ParsedIntent, ...], needs: PodNeeds) -> dict[str, tuple[bool, str, str]]:
    """Return (accepted, reason, message) by uid, for intents in order of age. `needs`: of the settings."""
    verdicts: dict[str, tuple[bool, str, str]] = {}
    served: dict[tuple[str, str], str] = {}
    for intent in intents:
        if isinstance(intent, InvalidIntent):
            verdicts[intent.uid] = (False, Reason.INVALID_SPEC, intent.message)
            continue
        name = (intent.namespace, intent.served_name)
        older = served.setdefault(name, intent.name)
        too_much = over_limit(intent.resources, needs, _WHOLE, "a whole GPU")
        if intent.refusal is not None:  # its name stays taken: what it runs goes on to serve
            verdicts[intent.uid] = (False, Reason(intent.refusal.reason), intent.refusal.message)
        elif too_much:
            told = f"{too_much}; ask for less, or let an administrator raise the setting; {_STAYS}"
            verdicts[intent.uid] = (False, Reason.ABOVE_LIMIT, told)
        elif older == intent.name:
            verdicts[intent.uid] = (True, Reason.VALID, "the spec is valid")
        else:
            verdicts[intent.uid] = (
                False,
                Reason.MODEL_NAME_COLLISION,
                f"the older LLMDeployment {older} of this namespace already serves {intent.served_name!r}; "
                "set another spec.model.servedName, or delete one of the two",
            )
    return verdicts
