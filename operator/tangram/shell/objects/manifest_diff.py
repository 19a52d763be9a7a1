"""Does a live object already say what we would write? Pure.

Server-side apply would answer that with a request per object; in steady state we make none. Live objects
hold more than we render (defaults, foreign fields): those never count. What we render must be there with
our value, so foreign edits of our fields are seen and healed. A field that we no longer render changes the
hash annotation, which we do.
"""

from typing import Any

from tangram.shell.objects.kinds import Object

# Keys of the lists that the API server merges element by element (listType=map in the OpenAPI schema).
_MERGE_KEYS = {
    "containers": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "name",
    "ownerReferences": "uid",
    "imagePullSecrets": "name",
    "topologySpreadConstraints": "topologyKey",
}


def covers(live: Any, rendered: Any, field: str = "") -> bool:
    """Say whether every value of `rendered` is in `live`; `field` is the name under which both stand."""
    if isinstance(rendered, dict):
        return isinstance(live, dict) and all(
            (key in live and covers(live[key], value, key)) or (_empty(value) and not live.get(key))
            for key, value in rendered.items()
        )
    if isinstance(rendered, list):
        return isinstance(live, list) and _covers_list(live, rendered, field)
    return bool(live == rendered)


def up_to_date(live: Object, rendered: Object) -> bool:
    """Say whether applying `rendered` would change nothing of `live`."""
    return covers({k: v for k, v in live.items() if k != "status"}, rendered)


def _empty(value: Any) -> bool:
    """Say whether the API server drops this value (an empty map or list is stored as nothing)."""
    return value in ({}, [])


def _covers_list(live: list[Any], rendered: list[Any], field: str) -> bool:
    merge_key = _MERGE_KEYS.get(field)
    if merge_key is None:
        return len(live) == len(rendered) and all(covers(*pair) for pair in zip(live, rendered, strict=True))
    by_key = {item.get(merge_key): item for item in live if isinstance(item, dict)}
    return all(item[merge_key] in by_key and covers(by_key[item[merge_key]], item) for item in rendered)
