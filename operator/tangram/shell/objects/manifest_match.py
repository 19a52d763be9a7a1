"""Whether applying a manifest would change the live object, found without a request. Pure.

Live objects hold more fields than a manifest (defaults, fields of other managers): those do not count. Each
field of the manifest must be in the live object with the same value, so that edits of these fields by others
are found and reverted. A field that is no longer rendered changes the hash annotation.
"""

from typing import Any

from tangram.kube.kinds import Object

# Keys of the lists that the API server merges element by element (listType=map in the OpenAPI schema).
_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "env": "name",
    "ports": "name",
    "ownerReferences": "uid",
    "imagePullSecrets": "name",
    "topologySpreadConstraints": "topologyKey",
    "groups": "name",  # of a PrometheusRule
}


def contains(live: Any, rendered: Any, field: str = "") -> bool:
    """Say whether `live` contains every value of `rendered`; `field` is the field name of both."""
    if isinstance(rendered, dict):
        return isinstance(live, dict) and all(
            (key in live and contains(live[key], value, key)) or (_empty(value) and not live.get(key))
            for key, value in rendered.items()
        )
    if isinstance(rendered, list):
        return isinstance(live, list) and _contains_list(live, rendered, field)
    return bool(live == rendered)


def up_to_date(live: Object, rendered: Object) -> bool:
    """Say whether applying `rendered` would leave `live` unchanged."""
    return contains({k: v for k, v in live.items() if k != "status"}, rendered)


def _empty(value: Any) -> bool:
    """Say whether the API server drops this value: it stores no empty map or list."""
    return value in ({}, [])


def _contains_list(live: list[Any], rendered: list[Any], field: str) -> bool:
    merge_key = _MERGE_KEYS.get(field)
    if merge_key is None:
        return len(live) == len(rendered) and all(
            contains(*pair) for pair in zip(live, rendered, strict=True)
        )
    by_key = {item.get(merge_key): item for item in live if isinstance(item, dict)}
    return all(item[merge_key] in by_key and contains(by_key[item[merge_key]], item) for item in rendered)
