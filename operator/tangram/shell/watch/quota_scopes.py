"""Which ResourceQuotas count engine pods, by their scopes. Pure."""

from tangram.shell.objects.kinds import Object

_PRIORITY_CLASS = "PriorityClass"
# Of the other scopes engine pods are in these: they are Guaranteed and have no deadline.
_ENGINE_SCOPES = ("NotTerminating", "NotBestEffort")


def counts_engines(spec: Object) -> bool:
    """Say whether a quota may count engine pods, whatever their PriorityClass.

    Source: kubernetes/pkg/quota/v1/evaluator/core/pods.go, podMatchesScopeFunc.
    """
    return all(name in (_PRIORITY_CLASS, *_ENGINE_SCOPES) for name, _, _ in _scopes(spec))


def priority_class_terms(spec: Object) -> list[list[object]]:
    """Return the terms on the PriorityClass of the pods that a quota counts: [operator, values] each."""
    return [[operator, values] for name, operator, values in _scopes(spec) if name == _PRIORITY_CLASS]


def _scopes(spec: Object) -> list[tuple[str, str, list[str]]]:
    selected = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    return [
        *((scope, "Exists", []) for scope in spec.get("scopes") or ()),
        *((t.get("scopeName", ""), t.get("operator", ""), list(t.get("values") or ())) for t in selected),
    ]
