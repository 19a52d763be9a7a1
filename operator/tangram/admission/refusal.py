"""What is refused of an object that CEL rules cannot know.

The rules are those of the operator's conditions: only what would turn `Accepted` False is refused.
"""

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from tangram.admission.review import Object, ObjectKey, RefusedField, Review, ReviewedObjects
from tangram.api import (
    last_accepted,
    parse,
    parse_engine_runtime,
    parse_pool,
    parse_priority_class,
    parse_quota,
    pool_in_force,
    priority_classes,
    runtime_in_force,
)
from tangram.catalog.reading.field_path import FieldPath, dotted
from tangram.catalog.reading.fields import shortened
from tangram.eligibility.acceptance import acceptance, by_age, specs_in_force
from tangram.eligibility.reasons import Reason
from tangram.eligibility.runtime_request import RuntimesByName, runtimes_by_name, with_runtime
from tangram.fleet import (
    Intent,
    InvalidEngineRuntime,
    InvalidIntent,
    InvalidPool,
    Node,
    ParsedIntent,
    PodNeeds,
    Pool,
    Refusal,
    claiming_pools,
    class_of_unnamed_pods,
)
from tangram.fleet.priority import REPLICAS_STAY
from tangram.plan.place.now.quotas import unreachable_minimum
from tangram.plan.repartition import closed_to_consent, has_ended
from tangram.plan.words.placement import quantity

Parsed = TypeVar("Parsed")

_MOST_CONFIRMED = 4  # objects that a refusal rests on
_SELECTOR = ("spec", "nodeSelector")
_APPROVED = ("spec", "approved")
_OF_PRIORITY_CLASS = (
    Reason.PRIORITY_CLASS_NOT_FOUND,
    Reason.PRIORITY_CLASS_NOT_ALLOWED,
    Reason.PRIORITY_CLASS_PREEMPTS,
)


_OF_RUNTIME = (
    Reason.RUNTIME_NOT_FOUND,
    Reason.RUNTIME_NOT_ALLOWED,
    Reason.RUNTIME_NOT_READY,
    Reason.RUNTIME_OPTION_REFUSED,
)


def refusal(review: Review, objects: ReviewedObjects) -> RefusedField | None:
    """Return the field that is refused, None where the object is admitted. No solve: under 50 ms.

    An update is refused only for a field that it changes, and never while the object is being deleted. What
    `objects` do not know refuses nothing.
    """
    if review.keeps_spec or review.is_deleted:
        return None
    if review.plural == "llmdeployments":
        return _of_llm_deployment(review, objects)
    if review.plural == "gpupools":
        return _of_pool(review, objects)
    if review.plural == "fleetplans":
        return _of_consent(review)
    if review.plural == "engineruntimes":
        return _of_runtime(review)
    return None


def _of_runtime(review: Review) -> RefusedField | None:
    runtime = parse_engine_runtime(review.body)
    if isinstance(runtime, InvalidEngineRuntime):
        return _refused(review, runtime.fields, runtime.message)
    return None


def _runtimes(objects: ReviewedObjects) -> RuntimesByName | None:
    """Return the runtimes by name; None: they are not known."""
    runtimes = _each(objects.engine_runtimes, runtime_in_force)
    return None if runtimes is None else runtimes_by_name(runtimes)


def _of_llm_deployment(review: Review, objects: ReviewedObjects) -> RefusedField | None:
    body = review.identified
    classes = priority_classes(
        _each(objects.priority_classes, parse_priority_class), objects.default_priority_class
    )
    runtimes = _runtimes(objects)

    def read(parsed: ParsedIntent) -> ParsedIntent:
        return parsed if runtimes is None else with_runtime(parsed, runtimes)

    intent = read(parse(body, classes, objects.pod_metadata_keys))
    named = _same_name(review, intent, objects.llm_deployments or ())
    others = [parse(obj, classes, objects.pod_metadata_keys) for obj in named]
    recorded = {
        obj["metadata"]["uid"]: last
        for obj in (body, *named)
        if (last := last_accepted(obj, classes, objects.pod_metadata_keys)) is not None
    }
    why_not = _why_not_accepted(intent, others, recorded, objects.pod_needs)
    if why_not is None:
        return _beyond_quota(review, intent, objects) if isinstance(intent, Intent) else None
    if why_not.reason == Reason.PRIORITY_CLASS_UNKNOWN:
        return None
    rests_on: tuple[ObjectKey, ...] = ()
    if why_not.reason in _OF_PRIORITY_CLASS and isinstance(intent, Intent):
        rests_on = (ObjectKey("priorityclasses", "", intent.priority_class_name),)
    elif why_not.reason == Reason.MODEL_NAME_COLLISION:
        keys = [ObjectKey("llmdeployments", review.namespace, obj["metadata"]["name"]) for obj in named]
        rests_on = tuple(keys[:_MOST_CONFIRMED])
    elif why_not.reason in _OF_RUNTIME and isinstance(intent, Intent):
        rests_on = (ObjectKey("engineruntimes", "", intent.runtime.name),)
    return _refused(review, why_not.fields, why_not.message, rests_on)


def _why_not_accepted(
    intent: ParsedIntent, others: Iterable[ParsedIntent], recorded: Mapping[str, Intent], needs: PodNeeds
) -> Refusal | None:
    """Return why the operator would not accept the spec beside those of `others`. `recorded`: their last
    accepted ones, by uid.
    """
    in_force = specs_in_force((*others, intent), recorded, needs)
    verdict = acceptance(by_age(in_force), needs)[intent.uid]
    last = in_force[-1]
    refused_edit = last.refused_edit if isinstance(last, Intent) else None
    if verdict.accepted and refused_edit is None:
        return None
    if isinstance(intent, InvalidIntent):
        return Refusal(Reason.INVALID_SPEC, intent.message, intent.fields)
    return intent.refusal or refused_edit or Refusal(verdict.reason, verdict.message, verdict.fields)


def _same_name(review: Review, intent: ParsedIntent, llm_deployments: Iterable[Object]) -> tuple[Object, ...]:
    """Return the other LLMDeployments of the namespace that may serve the name of `intent`, the oldest first.

    Only these are parsed: a namespace may have thousands.
    """
    if not isinstance(intent, Intent):
        return ()
    contenders = [
        obj
        for obj in llm_deployments
        if obj["metadata"].get("namespace", "") == review.namespace
        and obj["metadata"].get("uid") != intent.uid
        and not obj["metadata"].get("deletionTimestamp")
        and _may_serve(obj, intent.served_name)
    ]
    return tuple(sorted(contenders, key=lambda obj: str(obj["metadata"].get("creationTimestamp"))))


def _may_serve(obj: Object, served_name: str) -> bool:
    """Whether the spec has the served name, or the text of the last accepted one, which may be in force."""
    model = (obj.get("spec") or {}).get("model") or {}
    accepted = str(((obj.get("status") or {}).get("acceptedSpec") or {}).get("spec"))
    is_default = obj["metadata"]["name"] == served_name
    return is_default or model.get("servedName") == served_name or f'"servedName":"{served_name}"' in accepted


def _beyond_quota(review: Review, intent: Intent, objects: ReviewedObjects) -> RefusedField | None:
    """Return that ResourceQuotas never allow the fewest replicas, where the request raises their number."""
    field = ("spec", "replicas") if intent.replicas is not None else ("spec", "scaling", "minReplicas")
    if objects.resource_quotas is None or objects.priority_classes is None:
        return None  # quotas may count by PriorityClass
    before = parse(review.old) if review.old is not None else None
    if isinstance(before, InvalidIntent) or (before and before.min_replicas >= intent.min_replicas):
        return None
    quotas = (q for q in objects.resource_quotas if q["metadata"].get("namespace") == review.namespace)
    limits = itertools.chain.from_iterable(_each(quotas, parse_quota) or ())
    classes = _each(objects.priority_classes, parse_priority_class) or ()
    unreachable = unreachable_minimum(intent, limits, class_of_unnamed_pods(classes))
    if unreachable is None:
        return None
    limit, most = unreachable
    allowed = f"ResourceQuota {limit.quota} allows {quantity(limit.hard)} {limit.resource}, enough for {most}"
    remedy = "ask for fewer, or let an administrator raise it"
    text = f"{intent.min_replicas} replicas never fit: {allowed}; {remedy}"
    return RefusedField(dotted(field), text, (ObjectKey("resourcequotas", review.namespace, limit.quota),))


def _of_pool(review: Review, objects: ReviewedObjects) -> RefusedField | None:
    pool = parse_pool(review.body)
    if isinstance(pool, InvalidPool):
        return _refused(review, pool.fields, pool.message)
    before = parse_pool(review.old) if review.old is not None else None
    selected = [node for node in _selected_nodes(pool, objects.nodes or ()) if not _selects(before, node)]
    for other in _overlapping(pool.name, selected, objects.gpu_pools or ()):
        shared = [node.name for node in selected if len(claiming_pools(node, (pool, other))) > 1]
        if shared:
            taken = f"GPUPool {other.name} has {shortened(sorted(shared))} already"
            text = f"{taken}, and no node may belong to two: make the selectors exclude each other"
            return RefusedField(dotted(_SELECTOR), text, (ObjectKey("gpupools", "", other.name),))
    return None


def _selected_nodes(pool: Pool, nodes: Iterable[Object]) -> Iterator[Node]:
    """Yield the nodes that a pool selects: name and labels alone."""
    for obj in nodes:
        labels = obj["metadata"].get("labels") or {}
        if pool.selects(labels):
            yield Node(obj["metadata"]["name"], None, "", True, (), labels=tuple(sorted(labels.items())))


def _selects(pool: Pool | InvalidPool | None, node: Node) -> bool:
    return isinstance(pool, Pool) and pool.selects(dict(node.labels))


def _overlapping(name: str, nodes: Iterable[Node], pools: Iterable[Object]) -> Iterator[Pool]:
    """Yield the other pools that select one of the nodes. Only these are parsed."""
    having: dict[tuple[str, str], set[str]] = defaultdict(set)  # names of nodes by label
    for node in nodes:
        for label in node.labels:
            having[label].add(node.name)
    for obj in pools:
        meta, selector = obj["metadata"], (obj.get("spec") or {}).get("nodeSelector") or {}
        if meta["name"] == name or meta.get("deletionTimestamp") or not selector:
            continue
        fewest, *more = sorted((having.get(label, set()) for label in selector.items()), key=len)
        if any(all(node in names for names in more) for node in fewest):
            other = pool_in_force(obj)
            if isinstance(other, Pool):
                yield other


def _of_consent(review: Review) -> RefusedField | None:
    """Return that consent comes too late for a plan that is never carried out any more."""
    status = review.body.get("status") or {}
    approves = (review.body.get("spec") or {}).get("approved") is True
    if review.old is None or not approves or not has_ended(status):
        return None
    return _refused(review, (_APPROVED,), f"FleetPlan {closed_to_consent(review.name, status)}")


def _refused(
    review: Review, fields: Iterable[FieldPath], message: str, rests_on: tuple[ObjectKey, ...] = ()
) -> RefusedField | None:
    """Return the first of the fields, where the request changes it; None: it changes none of them."""
    changed = review.changes(fields)
    if not changed:
        return None
    text, _, _ = message.partition(f"; {REPLICAS_STAY}")
    return RefusedField(dotted(changed[0]), _without_path(text, changed[0]), rests_on)


def _without_path(text: str, path: FieldPath) -> str:
    """Return a message without the path of the field, or of one that holds it, at its beginning."""
    for end in range(len(path), 1, -1):
        prefix = dotted(path[:end])
        for start in (prefix, prefix.removeprefix("spec.")):
            if text.startswith(start):
                return text.removeprefix(start).removeprefix(":").strip()
    return text


def _each(
    objects: Iterable[Object] | None, parse_one: Callable[[Object], Parsed]
) -> tuple[Parsed, ...] | None:
    """Return the objects parsed, without those that cannot be; None: they are not known."""
    if objects is None:
        return None
    parsed = []
    for obj in objects:
        with contextlib.suppress(ValueError):
            parsed.append(parse_one(obj))
    return tuple(parsed)
