"""Parse the LLMDeployments: valid intents, and invalid ones with the reason. Pure."""

from collections.abc import Callable, Collection, Iterable

from tangram.api import last_accepted, parse, parse_priority_class, priority_classes
from tangram.eligibility.acceptance import specs_in_force
from tangram.eligibility.runtime_request import runtimes_of, with_runtime
from tangram.fleet import Fault, FleetSnapshot, Intent, InvalidIntent, ParsedIntent, PodNeeds, PriorityClass
from tangram.kube.kinds import Object, key_of, uid_of
from tangram.plan.jobs.inspections import key_of as checkpoint_key
from tangram.shell.snapshot.conversion import (
    SkipHandler,
    convert_each,
    ignore_skipped,
    integer_or_zero,
    living,
)
from tangram.shell.watch.mirror_view import MirrorView

_NO_LIMITS = PodNeeds()


class DuplicateUID(ValueError):
    """Two LLMDeployments have one UID: the first of them, which has done nothing, is planned."""


def parsed_intents(
    view: MirrorView,
    on_skipped: SkipHandler = ignore_skipped,
    default_class: str = "",
    pod_metadata_keys: Collection[str] | None = None,
    needs: PodNeeds = _NO_LIMITS,
    fleet: FleetSnapshot | None = None,
) -> tuple[ParsedIntent, ...]:
    """Return the parsed LLMDeployments, in the order of namespace and name, without those being deleted. In
    place of a spec that is not accepted, the last accepted one is in force where the status records it.

    `default_class`: the PriorityClass of LLMDeployments that name none. `pod_metadata_keys`: those that
    `spec.metadata` may have; None: any. `needs`: of the operator's settings.
    `fleet`: what is known of checkpoints and runtimes; None: it does not matter.

    Decisions identify LLMDeployments by UID, which the API server makes unique; a second object with the UID
    of another is skipped.
    """
    listed = None if view.priority_classes is None else parsed_priority_classes(view, on_skipped)
    classes = priority_classes(listed, default_class)
    runtimes = None if fleet is None else runtimes_of(fleet)

    def read(intent: ParsedIntent) -> ParsedIntent:
        return intent if runtimes is None else with_runtime(intent, runtimes)

    objects = sorted(living(view.llm_deployments), key=key_of)
    parse_once = _once_per_uid(lambda obj: read(parse(obj, classes, pod_metadata_keys)))
    intents = tuple(convert_each(objects, parse_once, on_skipped))
    last = ((uid_of(obj), last_accepted(obj, classes, pod_metadata_keys)) for obj in objects)
    in_force = ((uid, read(intent)) for uid, intent in last if intent is not None)
    accepted_before = {uid: intent for uid, intent in in_force if isinstance(intent, Intent)}
    if fleet is None:
        return specs_in_force(intents, accepted_before, needs)
    facts, image = fleet.known_facts, fleet.engine_image
    return specs_in_force(intents, accepted_before, needs, lambda i: checkpoint_key(i, image) in facts)


def _once_per_uid(parsed: Callable[[Object], ParsedIntent]) -> Callable[[Object], ParsedIntent]:
    """Return `parsed` for objects of different UIDs. It raises `DuplicateUID` for a second object of one."""
    uids: set[str] = set()

    def parsed_once(obj: Object) -> ParsedIntent:
        if uid_of(obj) in uids:
            raise DuplicateUID(f"UID {uid_of(obj)} is that of another LLMDeployment")
        intent = parsed(obj)
        uids.add(intent.uid)
        return intent

    return parsed_once


def unreadable_intents(
    view: MirrorView, parsed: Iterable[ParsedIntent], faults: Iterable[Fault]
) -> tuple[InvalidIntent, ...]:
    """Return the LLMDeployments that have a fault and are not in `parsed`: invalid, with the error as the
    reason; their replicas are left as they are.
    """
    errors = {fault.owner_uid: fault.error for fault in faults}
    unparsed = errors.keys() - {intent.uid for intent in parsed}
    return tuple(
        InvalidIntent(
            uid=uid_of(obj),
            namespace=key_of(obj)[0],
            name=key_of(obj)[1],
            generation=integer_or_zero(obj["metadata"].get("generation")),
            created_at=0.0,
            message=f"it could not be read ({errors[uid_of(obj)]}); please report this",
        )
        for obj in sorted(living(view.llm_deployments), key=key_of)
        if uid_of(obj) in unparsed
    )


def parsed_priority_classes(
    view: MirrorView, on_skipped: SkipHandler = ignore_skipped
) -> tuple[PriorityClass, ...]:
    """Return the PriorityClasses of the cluster, sorted."""
    return tuple(sorted(convert_each(view.priority_classes or (), parse_priority_class, on_skipped)))
