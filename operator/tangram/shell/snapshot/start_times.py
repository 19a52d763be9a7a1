"""How long replicas took to start, by LLMDeployment and shape, as their pods record it. Pure."""

import math
from collections.abc import Mapping

from tangram.fleet import Shape
from tangram.fleet.times import epoch_or
from tangram.kube.kinds import Object, key_of
from tangram.shell.objects.owned_objects import shape_of
from tangram.shell.snapshot.conversion import convert_each, ignore_skipped, integer_or_zero
from tangram.shell.snapshot.ownership import owned_deployments, owner_uid
from tangram.shell.watch.mirror_view import MirrorView

_SHARE = 0.9  # of the starts that took at most as long
_LONGEST_S = 86_400.0

StartTimes = Mapping[tuple[str, Shape], float]
"""Seconds from the creation of a pod to its readiness, P90, by UID of the LLMDeployment and shape."""


def start_times(view: MirrorView) -> StartTimes:
    """Return the P90 over the ready pods of each Deployment; pods that were restarted do not count.

    A container that ends and starts again makes its pod ready anew, long after the start of the pod.
    """
    owned = owned_deployments(view)
    pods_of = {key_of(deployment): pods for deployment, pods in owned}
    taken: dict[tuple[str, Shape], list[float]] = {}
    for key, seconds in convert_each(
        (deployment for deployment, _ in owned),
        lambda deployment: _starts(deployment, pods_of[key_of(deployment)]),
        ignore_skipped,  # what cannot be read is reported where the workload is
    ):
        taken.setdefault(key, []).extend(seconds)
    return {key: _p90(seconds) for key, seconds in taken.items() if seconds}


def _starts(deployment: Object, pods: list[Object]) -> tuple[tuple[str, Shape], list[float]]:
    seconds = (_start_s(pod) for pod in pods)
    return (owner_uid(deployment), shape_of(deployment)), [s for s in seconds if s is not None]


def _start_s(pod: Object) -> float | None:
    ready = next((c for c in pod["conditions"] if c["type"] == "Ready" and c["status"] == "True"), None)
    if ready is None or any(integer_or_zero(container["restarts"]) for container in pod["containers"]):
        return None
    created = epoch_or(pod["metadata"].get("creationTimestamp"), math.inf)
    seconds = epoch_or(ready.get("since"), -math.inf) - created
    return seconds if 0 <= seconds <= _LONGEST_S else None


def _p90(seconds: list[float]) -> float:
    ordered = sorted(seconds)
    return ordered[math.ceil(_SHARE * len(ordered)) - 1]
