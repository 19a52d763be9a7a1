"""Leave out mirrored objects that lack the frame of a Kubernetes object, before all other reading. Pure.

The API server guarantees the frame; a proxy, a webhook or a bug may break it. The values inside the frame
(texts, numbers, statuses) are checked where they are read.
"""

from dataclasses import fields, replace
from typing import Any

from tangram.kube.kinds import DEPLOYMENTS, JOBS, Object
from tangram.shell.snapshot.conversion import SkipHandler
from tangram.shell.watch.mirror_view import MirrorView

_MAPPINGS_OF_WORKLOADS = (
    ("spec", "selector", "matchLabels"),
    ("spec", "template", "metadata", "annotations"),
    ("status",),
)


def without_broken_objects(view: MirrorView, on_skipped: SkipHandler) -> MirrorView:
    """Return the view without objects whose frame is broken; each of them is passed to `on_skipped`.

    A pod stays with its identity and the devices that it holds: they are not free.
    """
    kinds = {
        field.name: objects for field in fields(view) if (objects := getattr(view, field.name)) is not None
    }
    intact = {name: _intact(name, objects, on_skipped) for name, objects in kinds.items()}
    return replace(view, **{name: objects for name, objects in intact.items() if objects is not kinds[name]})


def _intact(kind: str, objects: tuple[Object, ...], on_skipped: SkipHandler) -> tuple[Object, ...]:
    """Return the very same tuple where no object is broken: each round checks thousands of pods."""
    errors = {index: error for index, obj in enumerate(objects) if (error := _frame_error(obj))}
    if not errors:
        return objects
    for index, error in errors.items():
        on_skipped(objects[index], error)
    replaced = (
        obj if index not in errors else _stripped_pod(obj) if kind == "pods" else None
        for index, obj in enumerate(objects)
    )
    return tuple(obj for obj in replaced if obj is not None)


def _frame_error(obj: Object) -> Exception | None:
    try:
        _check_types(obj)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with this object
        return error
    return None


def _check_types(obj: Object) -> None:
    """Raise unless the fields that every reader uses have the right types."""
    meta = _typed(dict, obj["metadata"], "metadata")
    _typed(str, meta["name"], "metadata.name")
    for key in ("namespace", "uid"):
        _typed(str, meta.get(key, ""), f"metadata.{key}")
    for key in ("labels", "annotations"):
        if meta.get(key) is not None:
            _typed(dict, meta[key], f"metadata.{key}")
    for reference in meta.get("ownerReferences") or ():
        _typed(dict, reference, "metadata.ownerReferences[]")
    if obj.get("kind") in (DEPLOYMENTS.kind, JOBS.kind):
        for path in _MAPPINGS_OF_WORKLOADS:
            inner = obj
            for key in path:
                inner = _typed(dict, inner.get(key) or {}, ".".join(path))
    _typed(str, obj.get("nodeName", ""), "nodeName")  # a field of mirrored pods, as are those below
    for condition in obj.get("conditions") or ():
        _typed(dict, condition, "conditions[]")


def _typed(kind: type, value: Any, field: str) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{field} is {type(value).__name__}, not {kind.__name__}")
    return value


def _stripped_pod(pod: Object) -> Object | None:
    """Return a pod with its identity and devices only, None where not even those can be read."""
    meta = pod.get("metadata")
    if not isinstance(meta, dict) or not isinstance(meta.get("name"), str):
        return None
    stripped = {**pod, "metadata": {key: meta[key] for key in ("name", "namespace", "uid") if key in meta}}
    stripped |= {"conditions": [], "containers": []}
    return None if _frame_error(stripped) else stripped
