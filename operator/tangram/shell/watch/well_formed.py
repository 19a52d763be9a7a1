"""The frame of Kubernetes objects, checked once before anything reads them. Pure.

The API server guarantees it; a proxy, a webhook or a bug may break it. What is inside the frame (texts,
numbers, statuses) is checked where it is read.
"""

from dataclasses import fields, replace
from typing import Any

from tangram.shell.objects.kinds import DEPLOYMENTS, JOBS, Object
from tangram.shell.watch.view import MirrorView, Skipped

_READ = (("spec", "selector", "matchLabels"), ("spec", "template", "metadata", "annotations"), ("status",))


def well_formed(view: MirrorView, skipped: Skipped) -> MirrorView:
    """Return the view without objects whose frame is broken; `skipped` takes each of them.

    A pod stays, as one of which nothing is known but what it holds: its devices are not free.
    """
    found = {each.name: getattr(view, each.name) for each in fields(view)}
    kinds = {name: objects for name, objects in found.items() if objects is not None}
    kept = {name: _kept(name, objects, skipped) for name, objects in kinds.items()}
    return replace(view, **{name: objects for name, objects in kept.items() if objects is not kinds[name]})


def _kept(kind: str, objects: tuple[Object, ...], skipped: Skipped) -> tuple[Object, ...]:
    """Return the same tuple where every object is whole: thousands of pods are looked at in each round."""
    broken = {number: error for number, obj in enumerate(objects) if (error := _error(obj))}
    if not broken:
        return objects
    for number, error in broken.items():
        skipped(objects[number], error)
    instead = _bare if kind == "pods" else _nothing
    known = (instead(obj) if number in broken else obj for number, obj in enumerate(objects))
    return tuple(obj for obj in known if obj is not None)


def _nothing(_obj: Object) -> None:
    """Leave it out."""


def _error(obj: Object) -> Exception | None:
    try:
        _check(obj)
    except Exception as error:  # noqa: BLE001 - what is wrong with this object
        return error
    return None


def _check(obj: Object) -> None:
    """Raise TypeError or KeyError for a frame that is not that of a Kubernetes object."""
    meta = _a(dict, obj["metadata"], "metadata")
    _a(str, meta["name"], "metadata.name")
    for key in ("namespace", "uid"):
        _a(str, meta.get(key, ""), f"metadata.{key}")
    for key in ("labels", "annotations"):
        if meta.get(key) is not None:
            _a(dict, meta[key], f"metadata.{key}")
    for reference in meta.get("ownerReferences") or ():
        _a(dict, reference, "metadata.ownerReferences[]")
    if obj.get("kind") in (DEPLOYMENTS.kind, JOBS.kind):
        for path in _READ:
            inner = obj
            for key in path:
                inner = _a(dict, inner.get(key) or {}, ".".join(path))
    _a(str, obj.get("nodeName", ""), "nodeName")  # of reduced pods, and so the rest
    for condition in obj.get("conditions") or ():
        _a(dict, condition, "conditions[]")


def _a(kind: type, value: Any, name: str) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {type(value).__name__}, not {kind.__name__}")
    return value


def _bare(pod: Object) -> Object | None:
    """Return a pod of which only the identity and what it holds are known, None where not even those are."""
    meta = pod.get("metadata")
    if not isinstance(meta, dict) or not isinstance(meta.get("name"), str):
        return None
    bare = {**pod, "metadata": {key: meta[key] for key in ("name", "namespace", "uid") if key in meta}}
    bare |= {"conditions": [], "containers": []}
    return None if _error(bare) else bare
