"""The devices that a pod holds, as the scheduler counts them."""

from collections.abc import Iterable, Mapping
from typing import Any

from tangram.fleet.labels import NVIDIA_PREFIX

SHARED_SUFFIX = ".shared"  # of a resource that the device plugin renamed because pods share it
FINISHED_PHASES = ("Succeeded", "Failed")  # a pod in one of them holds no devices
MAX_DEVICES = 1024  # of one resource in one container; the API server bounds nothing


def gpu_requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return the NVIDIA resources that a pod of this `spec` holds, sorted by name.

    Containers run together with every sidecar (an init container with restartPolicy Always). An init
    container runs with the sidecars that stand before it. The larger of the two is held, by resource
    (KEP-753). A share of a GPU (`nvidia.com/gpu.shared`) counts as all of it: nothing else is given there.
    """
    together = _sum(_nvidia(container) for container in _objects(spec.get("containers")))
    sidecars: dict[str, int] = {}
    largest: dict[str, int] = {}
    for container in _objects(spec.get("initContainers")):
        running = _sum((sidecars, _nvidia(container)))
        largest = {r: max(largest.get(r, 0), running.get(r, 0)) for r in largest.keys() | running.keys()}
        if container.get("restartPolicy") == "Always":
            sidecars = running
    together = _sum((together, sidecars))
    return {r: max(together.get(r, 0), largest.get(r, 0)) for r in sorted(together.keys() | largest.keys())}


def _sum(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for resource, count in part.items():
            total[resource] = total.get(resource, 0) + count
    return total


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def _nvidia(container: Mapping[str, Any]) -> dict[str, int]:
    """Extended resources: limits equal requests; a pod may give only one of the two."""
    resources = container.get("resources") or {}
    amounts = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return _sum(
        {str(name).removesuffix(SHARED_SUFFIX): min(int(value), MAX_DEVICES)}
        for name, value in amounts.items()
        if str(name).startswith(NVIDIA_PREFIX) and _positive(value)
    )


def _positive(value: object) -> bool:
    text = str(value)
    return text.isascii() and text.isdecimal() and len(text) < 20 and int(text) > 0
