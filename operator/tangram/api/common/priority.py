"""Resolve `spec.priorityClassName`: a class name becomes a number, or the reason why it is refused."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tangram.catalog.reading.field_path import dotted
from tangram.fleet import Intent, PriorityClass, Refusal
from tangram.fleet.priority import REPLICAS_STAY

PRIORITY_CLASS_LABEL = "tangram.dev/priority-class"
NEVER, PREEMPTS = "Never", "PreemptLowerPriority"  # preemptionPolicy; the second is the default
NOT_FOUND = "PriorityClassNotFound"
UNKNOWN = "PriorityClassUnknown"
NOT_ALLOWED = "PriorityClassNotAllowed"
PREEMPTING = "PriorityClassPreempts"
_FIELD = ("spec", "priorityClassName")
_MOST_NAMES = 8
_LOWEST, _HIGHEST = -(2**31), 2**31 - 1

# The PriorityClasses of the chart, as a release of the name tangram has them.
CHART_DEFAULT = "tangram-standard"
CHART_CLASSES = tuple(
    PriorityClass(name, value, is_allowed=True, preempts=False)
    for name, value in (("tangram-low", 0), (CHART_DEFAULT, 1000), ("tangram-high", 10_000))
)


@dataclass(frozen=True, slots=True)
class ResolvedPriority:
    """The priority of an LLMDeployment, or why its class is refused."""

    value: int = 0  # that of pods without a class
    class_name: str = ""  # that its pods carry, or should; empty: none
    refusal: Refusal | None = None
    warning: str = ""  # about the operator's default class


@dataclass(frozen=True, slots=True)
class PriorityClasses:
    """The PriorityClasses of a cluster, and which of them LLMDeployments without the field use."""

    by_name: Mapping[str, PriorityClass] = field(default_factory=dict)
    default: str = ""  # empty: none, and pods carry no class
    visible: bool = True  # else the operator may not list them, and none is known
    in_files: bool = False  # they are those of the files of a plan, not of a cluster

    def resolve(self, name: str | None) -> ResolvedPriority:
        """Return the priority of an LLMDeployment that names this class, or none."""
        if name is None:
            return self._of_default()
        priority_class = self.by_name.get(name)
        reason, why = self._refused(name, priority_class)
        if priority_class is None or reason:
            return ResolvedPriority(
                class_name=name, refusal=Refusal(reason, f"{dotted(_FIELD)}: {why}", (_FIELD,))
            )
        return ResolvedPriority(priority_class.value, priority_class.name)

    def default_warning(self) -> str:
        """Return why the operator's default class is not used; empty: it is, or there is none."""
        if not self.default:
            return ""
        subject = f"the operator's defaultPriorityClassName {self.default}"
        without = "pods carry no PriorityClass, may preempt others, and count with priority 0"
        priority_class = self.by_name.get(self.default)
        if priority_class is None:
            missing = "does not exist" if self.visible else "is not known: the operator may not list them"
            return f"{subject} {missing}: {without}"
        return f"{subject} has preemptionPolicy {PREEMPTS}: {without}" if priority_class.preempts else ""

    def _of_default(self) -> ResolvedPriority:
        warning = self.default_warning()
        if warning or not self.default:
            return ResolvedPriority(warning=warning)
        priority_class = self.by_name[self.default]
        return ResolvedPriority(priority_class.value, priority_class.name)

    def _refused(self, name: str, priority_class: PriorityClass | None) -> tuple[str, str]:
        """Return the reason and the sentence; empty where the class may be used."""
        if not self.visible:
            return UNKNOWN, (
                f"the operator may not list PriorityClasses, so {name} is not known: give it the right to "
                "list and watch priorityclasses in scheduling.k8s.io (the chart's role has it), or leave the "
                f"field out; {REPLICAS_STAY}"
            )
        if priority_class is None and self.in_files:
            return NOT_FOUND, (
                f"PriorityClass {name} is not among the files: add it "
                f"(kubectl get priorityclass {name} -o yaml), or {self._instead()}"
            )
        if priority_class is None:
            return NOT_FOUND, (
                f"PriorityClass {name} does not exist; {self._instead()}; {REPLICAS_STAY}, but pods of "
                "that class that end meanwhile cannot be created again"
            )
        if priority_class.preempts:
            return PREEMPTING, (
                f"PriorityClass {name} has preemptionPolicy {PREEMPTS}: its pods could evict replicas that "
                f"are to stay, and the policy of a class cannot be changed; {self._instead(or_new=True)}; "
                f"{REPLICAS_STAY}"
            )
        if not priority_class.is_allowed:
            return NOT_ALLOWED, (
                f'PriorityClass {name} has no label {PRIORITY_CLASS_LABEL}: "true", by which an '
                f"administrator allows its use here; {self._instead()}; {REPLICAS_STAY}"
            )
        return "", ""

    def _instead(self, *, or_new: bool = False) -> str:
        """Return what to write. `or_new`: a new class is an answer beside the present ones."""
        usable = sorted(c.name for c in self.by_name.values() if c.is_allowed and not c.preempts)
        new = f'with the label {PRIORITY_CLASS_LABEL}: "true" and preemptionPolicy {NEVER}'
        if not usable:
            return f"create {'another' if or_new else 'one'} {new}"
        more = ", ..." if len(usable) > _MOST_NAMES else ""
        named = f"name one of {', '.join(usable[:_MOST_NAMES])}{more}"
        return f"{named}, or create another {new}" if or_new else named


def with_priority(intent: Intent, resolved: ResolvedPriority) -> Intent:
    """Return the intent with the priority of its class."""
    return replace(
        intent,
        priority=resolved.value,
        priority_class_name=resolved.class_name,
        refusal=resolved.refusal,
        warnings=(resolved.warning,) if resolved.warning else (),
    )


def classes_of_files(classes: Iterable[PriorityClass]) -> PriorityClasses:
    """Return the PriorityClasses of files, and those of the chart with other names."""
    return PriorityClasses({c.name: c for c in (*CHART_CLASSES, *classes)}, CHART_DEFAULT, in_files=True)


def priority_classes(classes: Iterable[PriorityClass] | None, default: str = "") -> PriorityClasses:
    """Return PriorityClasses by name; None: they cannot be listed."""
    by_name = {priority_class.name: priority_class for priority_class in classes or ()}
    return PriorityClasses(by_name, default, classes is not None)


def parse_priority_class(obj: Mapping[str, Any]) -> PriorityClass:
    """Return a PriorityClass as the API server stores it. Raises ValueError with the field's path."""
    meta = obj.get("metadata")
    name = meta.get("name") if isinstance(meta, Mapping) else None
    if not isinstance(meta, Mapping) or not isinstance(name, str) or not name:
        raise ValueError("metadata.name must be the name of the PriorityClass")
    value = obj.get("value")
    if not isinstance(value, int) or isinstance(value, bool) or not _LOWEST <= value <= _HIGHEST:
        raise ValueError(f"value must be a whole number of 32 bit, is {str(value)[:40]!r}")
    policy = obj.get("preemptionPolicy") or PREEMPTS
    if policy not in (NEVER, PREEMPTS):
        raise ValueError(f"preemptionPolicy must be {NEVER} or {PREEMPTS}, is {str(policy)[:40]!r}")
    labels = meta.get("labels")
    allowed = isinstance(labels, Mapping) and labels.get(PRIORITY_CLASS_LABEL) == "true"
    return PriorityClass(name, value, allowed, policy == PREEMPTS, obj.get("globalDefault") is True)
