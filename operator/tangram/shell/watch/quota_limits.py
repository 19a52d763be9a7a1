"""ResourceQuotas as far as they count engine pods: which do, and what they limit. Pure."""

from tangram.fleet import QuotaLimit
from tangram.fleet.quantity import parse_quantity
from tangram.shell.objects.kinds import Object, key_of

_PRIORITY_CLASS = "PriorityClass"
# Of the other scopes engine pods are in these: they are Guaranteed, and end by no deadline.
_ALWAYS = ("NotTerminating", "NotBestEffort")


def concerns_engines(spec: Object) -> bool:
    """Say whether a quota may count engine pods, whatever their PriorityClass.

    Source: kubernetes/pkg/quota/v1/evaluator/core/pods.go, podMatchesScopeFunc.
    """
    return all(name in (_PRIORITY_CLASS, *_ALWAYS) for name, _, _ in _scopes(spec))


def class_terms(spec: Object) -> list[list[object]]:
    """Return what a quota asks of the PriorityClass of the pods that it counts: [operator, values] each."""
    return [[operator, values] for name, operator, values in _scopes(spec) if name == _PRIORITY_CLASS]


def quota_limits(obj: Object) -> list[QuotaLimit]:
    """Return what a mirrored quota limits. Raises ValueError for a quantity that is none."""
    namespace, name = key_of(obj)
    terms = tuple((operator, tuple(values)) for operator, values in obj.get("priorityClasses", ()))
    used = obj["used"]
    return [
        QuotaLimit(
            namespace, name, resource, parse_quantity(hard), parse_quantity(used.get(resource, 0)), terms
        )
        for resource, hard in obj["hard"].items()
    ]


def _scopes(spec: Object) -> list[tuple[str, str, list[str]]]:
    selected = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    return [
        *((scope, "Exists", []) for scope in spec.get("scopes") or ()),
        *((t.get("scopeName", ""), t.get("operator", ""), list(t.get("values") or ())) for t in selected),
    ]
