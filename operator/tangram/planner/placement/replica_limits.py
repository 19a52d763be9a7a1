"""How many replicas of a shape one LLMDeployment may have, whatever room there is: quota and back-off."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from tangram.eligibility.host_resources import cpu_cores, memory_bytes
from tangram.eligibility.isolation import for_each
from tangram.eligibility.reasons import Reason
from tangram.fleet import BackOff, FleetSnapshot, HostResources, PodNeeds, QuotaLimit, Shape
from tangram.fleet.times import rfc3339
from tangram.planner.observe.back_off import RULES, Obstacles
from tangram.planner.observe.free_capacity import FreeDevices
from tangram.planner.placement.targets import Case, Limit

_MIB = 2**20
_OBJECTS = ("count/deployments.apps", "count/replicasets.apps")


def pod_amounts(asked: HostResources, shape: Shape, needs: PodNeeds) -> Mapping[str, float]:
    """Return what one engine pod of `shape` takes of each resource that a ResourceQuota may limit.

    Requests equal limits.
    """
    cpu, memory = cpu_cores(asked, shape, needs), memory_bytes(asked, shape, needs)
    return {
        "pods": 1.0,
        "count/pods": 1.0,
        **dict.fromkeys(("cpu", "requests.cpu", "limits.cpu"), cpu),
        **dict.fromkeys(("memory", "requests.memory", "limits.memory"), memory),
        f"requests.{shape.resource}": float(shape.tensor_parallel),
    }


class Quotas:
    """What ResourceQuotas leave. Taken from in turn while a plan is made."""

    def __init__(self, snapshot: FleetSnapshot) -> None:
        self._limits: dict[str, list[QuotaLimit]] = defaultdict(list)
        for limit in sorted(snapshot.quotas):
            self._limits[limit.namespace].append(limit)
        self._left = {limit: limit.hard - limit.used for limit in snapshot.quotas}
        self._needs, self._unnamed = snapshot.pod_needs, snapshot.class_of_unnamed_pods

    def more(self, case: Case, shape: Shape) -> tuple[int | None, str]:
        """Return how many more pods may be created (None: any number), and which quota allows no more.

        Without its Deployment that has to be allowed as well.
        """
        most, binding = None, ""
        exists = case.on(shape) is not None
        for limit, amount in self._of(case, shape):
            here = max(0, math.floor(self._left[limit] / amount + 1e-9))
            if most is None or here < most:
                most, binding = here, _told(limit)
        for limit in self._limits.get(case.intent.namespace, ()) if not exists else ():
            if limit.resource in _OBJECTS and self._left[limit] < 1:
                most, binding = 0, _told(limit)
        return most, binding

    def take(self, case: Case, growth: Mapping[Shape, int]) -> None:
        """Keep what so many more pods take; of alternative shapes the most of each resource."""
        most: dict[QuotaLimit, float] = {}
        for shape, count in growth.items():
            for limit, amount in self._of(case, shape):
                most[limit] = max(most.get(limit, 0.0), amount * count)
        for limit, amount in most.items():
            self._left[limit] -= amount

    def _of(self, case: Case, shape: Shape) -> Iterable[tuple[QuotaLimit, float]]:
        limits = self._limits.get(case.intent.namespace)
        if not limits:
            return ()
        amounts = pod_amounts(case.intent.resources, shape, self._needs)
        priority_class = _class_of(case, shape) or self._unnamed
        return [
            (limit, amounts[limit.resource])
            for limit in limits
            if amounts.get(limit.resource, 0) > 0 and limit.counts(priority_class)
        ]


def _class_of(case: Case, shape: Shape) -> str:
    """Return the PriorityClass of new pods: that of the Deployment that is there, until its next rollout."""
    there = case.on(shape)
    return case.intent.priority_class_name if there is None else there.priority_class_name


def _told(limit: QuotaLimit) -> str:
    used, hard = _number(limit.used), _number(limit.hard)
    name = f"ResourceQuota {limit.quota} of namespace {limit.namespace}"
    return f"{name}: {used} of {hard} {limit.resource} are used"


def _number(value: float) -> str:
    return f"{value / 2**30:g}Gi" if value >= _MIB else f"{value:g}"


def limits(
    cases: tuple[Case, ...],
    snapshot: FleetSnapshot,
    found: Obstacles,
    devices: FreeDevices,
    quotas: Quotas,
    now: float,
) -> Mapping[str, Mapping[Shape, Limit]]:
    """Return the limits by uid and shape.

    `cases` stand in the order of their turns; each takes its part of the quota of its namespace before the
    next. `devices`: before any is reserved for missing pods.
    """
    refused = _refused_namespaces(cases, found, now)
    problems = {p.owner_uid: p.message for p in snapshot.problems}

    def of(case: Case) -> tuple[str, Mapping[Shape, Limit]]:
        shapes = {c.shape for c in case.usable} | {w.shape for w in case.present}
        mine = {
            shape: limit
            for shape in sorted(shapes)
            if (limit := _limit(case, shape, found, refused, problems, quotas, now)) is not None
        }
        quotas.take(case, _growth(case, mine, devices))
        return case.intent.uid, mine

    return dict(for_each("limit", cases, lambda case: case.intent.uid, of))


def _refused_namespaces(cases: tuple[Case, ...], found: Obstacles, now: float) -> frozenset[str]:
    """Namespaces in which pods are refused: those that have no pod there yet try one at first."""
    return frozenset(
        case.intent.namespace
        for case in cases
        for each in found.back_offs.get(case.intent.uid, ())
        if each.reason != Reason.UNSCHEDULABLE and now < each.until
    )


def _limit(
    case: Case,
    shape: Shape,
    found: Obstacles,
    refused: frozenset[str],
    problems: Mapping[str, str],
    quotas: Quotas,
    now: float,
) -> Limit | None:
    """Return the narrowest limit. None of them takes down a pod that exists."""
    intent, mine = case.intent, case.on(shape)
    pods, given = (mine.total, mine.replicas) if mine is not None else (0, 0)
    each: list[Limit] = []
    more, binding = quotas.more(case, shape)
    if more is not None:  # what was given before may be on its way: a refusal is what takes it back
        each.append(Limit(max(pods + more, given), Reason.QUOTA_EXCEEDED, binding))
    each += [
        _backed_off(back_off, shape, pods, now)
        for back_off in found.back_offs.get(intent.uid, ())
        if back_off.shape == shape or RULES[back_off.reason].every_shape
    ]
    if intent.namespace in refused and not any(w.total for w in case.present):
        text = (
            f"pods of other LLMDeployments of namespace {intent.namespace} are refused; one is tried at first"
        )
        each.append(Limit(max(1, given), Reason.FAILED_CREATE, text))
    if intent.uid in problems and mine is None:
        each.append(Limit(0, Reason.FAILED_CREATE, f"its Deployment is refused: {problems[intent.uid]}"))
    return min(each, key=lambda limit: limit.replicas, default=None)


def _backed_off(back_off: BackOff, shape: Shape, pods: int, now: float) -> Limit:
    here = back_off.replicas if back_off.shape == shape else pods
    is_over = now >= back_off.until
    told = f"{back_off.shape.described}: {back_off.message}" if back_off.message else back_off.shape.described
    again = (
        "is tried with one more replica now" if is_over else f"is tried again at {rfc3339(back_off.until)}"
    )
    text = f"{told} (attempt {back_off.attempts}, since {rfc3339(back_off.since)}); it {again}"
    until = None if is_over else back_off.until
    return Limit(here + is_over, Reason(back_off.reason), text, until, is_over)


def _stays(case: Case, shape: Shape, mine: Mapping[Shape, Limit], devices: FreeDevices) -> bool:
    """Whether it serves on `shape` and holds the units of its minimum there: then it does not move."""
    there, least = case.on(shape), case.intent.min_replicas
    if there is None or not there.available:
        return False
    may = mine[shape].replicas if shape in mine else least
    return min(may, devices.count_held(case.intent.uid, shape)) >= least


def _growth(case: Case, mine: Mapping[Shape, Limit], devices: FreeDevices) -> Mapping[Shape, int]:
    """Return how many more pods it may create on each shape that it may come to run on."""
    growth: dict[Shape, int] = {}
    usable = case.usable or tuple(filter(None, (case.slow,)))
    staying = [c for c in usable if _stays(case, c.shape, mine, devices)]
    stays = {c.shape for kept in staying for c in (kept, *case.cheaper_formats(kept))}
    for candidate in usable:
        shape = candidate.shape
        if stays and shape not in stays:
            continue
        there = case.on(shape)
        pods = there.total if there is not None else 0
        free = devices.count_free(case.intent.uid, shape) + devices.count_held(case.intent.uid, shape)
        wanted = min(case.replicas(candidate), max(free, pods))
        wanted += there is not None and there.is_rolling and there.total <= there.replicas
        most = mine[shape].replicas if shape in mine else wanted
        growth[shape] = max(0, min(wanted, most) - pods)
    return growth
